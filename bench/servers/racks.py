"""Sums on the way: a server with a fast link, two levels of servers, and small gradients without waits for all.

    python -m bench.servers.racks                    all cases (root): minutes
    python -m bench.servers.racks --cases fast tree small

"fast": n workers and one server, whose link is eight times as fast, against our ring: n links carry each byte once each
way, whatever n is. "tree": eight workers in two racks, an aggregator in each with such a link, and one server for both
racks whose link is only twice as fast as a worker's; with and without the aggregators. "small": 4 KB of eight workers,
by a store whose versions are made of the first half of the contributions, against our ring; each call by itself.
Every sum is checked. Leaves out/racks.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import report
from bench.lab_ranks import join_process_group, ranks_found
from bench.processes import module
from bench.servers import push_pull
from bench.servers.push_pull_plan import OURS, RING, Plan
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import racks_of_hosts, run_in_lab
from byteps_like.launch.options import RunOptions

FAST_LINK = 8
SMALL, CALLS, TURNS = 4096, 200, 5
"""Bytes of a small gradient; calls in a turn of a way, and turns."""


@dataclass(frozen=True)
class Case:
    """`workers` hosts, an aggregator's for each rack, a server's; links in units of a worker's, of `mbits`."""

    kind: str
    workers: int
    racks: int
    owner: int
    mbits: int = 50
    size: int = 4 << 20
    repeats: int = 3

    @property
    def links(self) -> list[int]:
        """Of each host."""
        return [1] * self.workers + [FAST_LINK] * self.racks + [self.owner]

    def limit(self, goodput: float) -> float:
        """The busiest card's time, in seconds."""
        sources = self.racks or self.workers
        loads = [1.0, sources / self.owner]
        if self.racks:
            loads.append((self.workers / self.racks + 1) / FAST_LINK)
        return max(loads) * self.size / goodput

    def __str__(self) -> str:
        racks = f" in {self.racks} racks" if self.racks else ""
        return f"{self.workers} workers{racks} at {self.mbits} Mb/s, the server's link {self.owner} times as fast"


CASES = [
    *(Case("fast", workers, 0, FAST_LINK) for workers in (2, 4, 8)),
    Case("tree", 8, 2, 2),
    Case("tree", 8, 0, 2),
]


@dataclass(frozen=True)
class Measured:
    """What push_pull.rows wants to know of a case."""

    case: Case
    goodput: float

    def limit(self, _size: int) -> float:
        """See Case.limit."""
        return self.case.limit(self.goodput)

    def rival_limit(self, size: int) -> float:
        """A ring's."""
        return 2 * (self.case.workers - 1) / self.case.workers * size / self.goodput

    def __str__(self) -> str:
        return str(self.case)


def measure(case: Case) -> list[dict[str, Any]]:
    """A row for ours and one for our ring."""
    rates = [f"{case.mbits * link}mbit" for link in case.links]
    with Lab(len(rates), rate=rates) as lab, tempfile.TemporaryDirectory(prefix="racks-") as folder:
        measured = Measured(case, max(lab.goodput() for _ in range(3)))
        plan = Plan([case.size], [1], [case.repeats], ["arena"], [OURS, RING], folder, "eth0")
        command = module("bench.servers.push_pull_worker", str(plan.save()))
        options = RunOptions(command, case.workers, case.racks + 1, quiet=True)
        if code := run_in_lab(lab, options, racks=racks_of_hosts(case.workers, case.racks)):
            sys.exit(code)
        ranks = [push_pull.read_operations(Path(folder) / f"rank{rank}.jsonl") for rank in range(case.workers)]
        found = push_pull.rows(measured, ranks)
        about = {"bench": "racks", "kind": case.kind, "workers": case.workers, "racks": case.racks}
        return [{**row, **about} for row in found]


def small_gradients(_arguments: argparse.Namespace) -> dict[str, Any]:
    """On a rank: seconds of each call, by way."""
    import numpy as np
    import torch
    import torch.distributed as dist

    import byteps_like.torch as bps

    join_process_group()
    half = bps.size() // 2
    policy = f"k_of_n:k={half},late=next,max_age=8"
    store = bps.Store(
        "small", {"g": np.zeros(SMALL // 4, np.float32)}, update="assign", combine="sum", consistency=policy
    )  # fmt: skip
    gradient, out = np.ones(SMALL // 4, np.float32), np.zeros(SMALL // 4, np.float32)
    tensor = torch.ones(SMALL // 4)

    def by_store() -> None:
        store.push_pull("g", gradient, out).wait(60)
        if not 1 <= out[0] <= bps.size() or (out != out[0]).any():
            raise RuntimeError(f"a version of {out[0]} to {out[-1]} contributions")

    def by_ring() -> None:
        dist.all_reduce(tensor.fill_(1.0))
        if (tensor != bps.size()).any():
            raise RuntimeError("a sum is wrong")

    times: dict[str, list[float]] = {"store": [], "ring": []}
    for _ in range(TURNS):
        for way, call in (("store", by_store), ("ring", by_ring)):
            store.change(policy)
            dist.barrier()
            for _ in range(CALLS):
                start = time.perf_counter()
                call()
                times[way].append(time.perf_counter() - start)
            for handle in store.start_finish():  # the last ones would wait for ranks that have ended
                handle.wait()
    dist.barrier()
    return {"times": times}


def measure_small(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way: the median over all calls of all ranks."""
    ranks = ranks_found(arguments, small_gradients, {"BYTEPS_LIKE_COLLECTIVE_ALGORITHM": "all_reduce=ring"}, servers=1)
    rows = []
    for way in ("store", "ring"):
        times = [seconds for rank in ranks for seconds in rank["times"][way]]
        rows.append({"bench": "racks", "kind": "small", "contender": way, "seconds": statistics.median(times)})
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    """A line for each case."""
    cells = []
    for ours in (row for row in rows if row["contender"] == OURS):
        ring = next(row for row in rows if row["contender"] == RING and row["setup"] == ours["setup"])
        cells.append(
            (
                ours["setup"],
                report.show_bytes(ours["bytes"]),
                report.show_time(ours["seconds"]),
                report.show_time(ours["limit"]),
                report.show_time(ring["seconds"]),
                f"{ring['seconds'] / ours['seconds']:.2f}",
            )
        )
    if cells:
        report.print_table("sums on the way", ("setup", "size", "time", "predicted", "our ring", "ring/time"), cells)
    small = {row["contender"]: row["seconds"] for row in rows if row["kind"] == "small"}
    if small:
        shown = {way: report.show_time(seconds) for way, seconds in small.items()}
        ratio = small["store"] / small["ring"]
        print(f"4 KB, medians: the store {shown['store']}, our ring {shown['ring']}: {ratio:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", nargs="+", choices=["fast", "tree", "small"], default=["fast", "tree", "small"])
    parser.add_argument("--hosts", type=int, default=8, help="of small gradients")
    parser.add_argument("--rate", default="1gbit", help="of their links")
    parser.add_argument("--json", type=Path, default=report.OUT / "racks.jsonl")
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        measure_small(arguments)
    rows = [row for case in CASES if case.kind in arguments.cases for row in measure(case)]
    if "small" in arguments.cases:
        rows += measure_small(arguments)
    show(rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)


if __name__ == "__main__":
    main()
