"""push_pull against gloo's all_reduce, in turn, by the same processes on the same bytes.

    python -m bench.servers.push_pull                                         one host: 2 workers, 1 server
    python -m bench.servers.push_pull --lab --hosts 4 --servers 4 --rate 1gbit    4 worker hosts, 4 server hosts (root)

Small operations are timed in bursts, one after the other. Every sum is checked. The limit of a shaped line is the
busiest link at the line's measured goodput B: a worker's, M/B, or a server's, n·M/(k·B); gloo's is a ring's. On one
host it is memory: each worker's buffer is read and written once, 2·n·M bytes at the rate measured for `a += b` on all
cores, which moves 3 bytes per byte of a. "Again" is what of its segments TCP sent more than once, on the workers'
hosts. "Sleeps" are of all threads of workers and servers in one operation, "CPU s/GB" their processor time for each
gigabyte of each worker. Leaves out/push_pull.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench import report
from bench.processes import module
from bench.servers.push_pull_plan import OURS, RIVAL, Operation, Plan
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job

SIZES = [1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24, 1 << 26, 1 << 28]
HOST_RATE = 1e9  # bytes per second; only to choose how often to repeat


@dataclass(frozen=True)
class Setup:
    """What is measured, and what is known of the path: the line's goodput, or None on one host."""

    workers: int
    servers: int
    rate: str
    goodput: float | None

    def limit(self, size: int) -> float:
        """The least time for `size` bytes per worker, in seconds."""
        if self.goodput is None:
            return 2 * self.workers * size / (3 * add_rate(size))
        if not self.servers:  # then our own ring's
            return self._ring(size) / self.goodput
        return max(size, self.workers * size / self.servers) / self.goodput

    def rival_limit(self, size: int) -> float | None:
        """That of gloo's ring, which sends 2(n-1)/n of the bytes each way."""
        if self.goodput is None:
            return None
        return self._ring(size) / self.goodput

    def _ring(self, size: int) -> float:
        """Bytes that each worker sends."""
        return 2 * (self.workers - 1) / self.workers * size

    def __str__(self) -> str:
        where = f"{self.workers} worker hosts, {self.servers} server hosts at {self.rate}"
        return where if self.goodput else f"one host, {self.workers} workers, {self.servers} servers"


def add_rate(size: int) -> float:
    """Bytes of `a` per second for `a += b` (fp32) on all cores at once, arrays of `size`; the best of five."""
    cores = report.cores()
    pairs = [(np.ones(size // 4, np.float32), np.ones(size // 4, np.float32)) for _ in range(cores)]
    rounds = max(1, (1 << 27) // size)

    def add(pair: tuple[Any, Any]) -> None:
        for _ in range(rounds):
            np.add(pair[0], pair[1], out=pair[0])

    best = float("inf")
    for _ in range(5):
        threads = [threading.Thread(target=add, args=(pair,)) for pair in pairs]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        best = min(best, time.perf_counter() - start)
    return cores * rounds * size / best


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", "--hosts", type=int, default=0, help="workers, or worker hosts (2; in a lab 4)")
    parser.add_argument("--servers", type=int, default=1, help="servers, or server hosts (1); 0: collectives")
    parser.add_argument("--lab", action="store_true", help="each process on a host of its own, links shaped (root)")
    parser.add_argument("--rate", default="1gbit", help="speed of the links of the lab")
    parser.add_argument("--queue", type=int, default=0, metavar="BYTES", help="of a port of its switch (10 ms)")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--memory", nargs="+", choices=["arena", "private"], default=["arena", "private"])
    parser.add_argument("--transport", default="auto", help="of the job: auto, shm, tcp, ... (auto)")
    parser.add_argument("--only", choices=[OURS, RIVAL], help="leave the other out")
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long to measure one size")
    parser.add_argument("--repeats", type=int, default=0, help="instead of as many as fit")
    parser.add_argument("--json", type=Path, default=report.OUT / "push_pull.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "push_pull.png")
    arguments = parser.parse_args(given)
    arguments.workers = arguments.workers or (4 if arguments.lab else 2)
    return arguments


def burst_for(size: int, goodput: float | None) -> int:
    """Operations that take some 20 ms together: one alone would tell more of how the ranks come out of the barrier."""
    return int(min(20, max(1, 0.02 / (size / (goodput or HOST_RATE)))))


def repeats_for(size: int, arguments: argparse.Namespace, goodput: float | None) -> int:
    if arguments.repeats:
        return int(arguments.repeats)
    return int(min(30, max(3, arguments.seconds / (size / (goodput or HOST_RATE)))))


def measure(arguments: argparse.Namespace) -> tuple[Setup, list[dict[str, Any]]]:
    """Runs the job and gives one row per size, memory and contender."""
    if not arguments.lab:
        return _measured(arguments, None)
    with Lab(arguments.workers + arguments.servers, rate=arguments.rate, queue=arguments.queue) as lab:
        return _measured(arguments, lab)


def _measured(arguments: argparse.Namespace, lab: Lab | None) -> tuple[Setup, list[dict[str, Any]]]:
    # The best of three: a receiver that the machine keeps waiting would measure the machine, not the line.
    goodput = max(lab.goodput() for _ in range(3)) if lab is not None else None
    setup = Setup(arguments.workers, arguments.servers, arguments.rate if lab else "none", goodput)
    with tempfile.TemporaryDirectory(prefix="push_pull-") as folder:
        plan = Plan(
            sizes=arguments.sizes,
            bursts=[burst_for(size, goodput) for size in arguments.sizes],
            repeats=[repeats_for(size, arguments, goodput) for size in arguments.sizes],
            memory=arguments.memory,
            contenders=[arguments.only] if arguments.only else [OURS, RIVAL],
            folder=folder,
            interface="eth0" if lab else "lo",
        )
        command = module("bench.servers.push_pull_worker", str(plan.save()))
        environment = {"BYTEPS_LIKE_TRANSPORT": arguments.transport}
        options = RunOptions(command, setup.workers, setup.servers, environment=environment, quiet=True)
        if code := run_job(options) if lab is None else run_in_lab(lab, options):
            sys.exit(code)
        ranks = [read_operations(Path(folder) / f"rank{rank}.jsonl") for rank in range(setup.workers)]
    return setup, list(rows(setup, ranks))


def read_operations(path: Path) -> list[Operation]:
    return [Operation(**json.loads(line)) for line in path.read_text().splitlines()]


def rows(setup: Setup, ranks: list[list[Operation]]) -> Iterator[dict[str, Any]]:
    """Joins the ranks' records. A burst lasts from the last rank's start to the last rank's end."""
    groups: dict[tuple[int, str, str], list[tuple[Operation, ...]]] = defaultdict(list)
    for turn in zip(*ranks, strict=True):
        first = turn[0]
        if len({(item.size, item.memory, item.contender) for item in turn}) != 1:
            raise RuntimeError("the ranks did not do the same operations")
        groups[first.size, first.memory, first.contender].append(turn)
    limits = {size: setup.limit(size) for size, _, _ in groups}
    for (size, memory, contender), all_turns in groups.items():
        turns, looked_at, counted = (
            [turn for turn in all_turns if turn[0].look == look] for look in ("", "use", "calls")
        )
        times = [_duration(turn) for turn in turns]
        spread = report.Spread.of(times)
        yield {
            "bench": "push_pull", "setup": str(setup), "goodput": setup.goodput, "bytes": size, "memory": memory,
            "contender": contender, "seconds": spread.median, "low": spread.low, "high": spread.high,
            "count": spread.count, "limit": limits[size], "ring_limit": setup.rival_limit(size),
            "again": _again(turns), **_moved(turns), **(_used(looked_at) if looked_at else {}),
            "calls": _calls(counted),
        }  # fmt: skip


def _duration(turn: tuple[Operation, ...]) -> float:
    """Of one operation of the burst, in seconds."""
    return (max(item.end for item in turn) - max(item.start for item in turn)) / turn[0].burst


def _moved(turns: list[tuple[Operation, ...]]) -> dict[str, float]:
    """The most that any rank moved for an operation, by its own counters and by its interface's."""
    names = ("payload_sent", "payload_received", "wire_sent", "wire_received", "bounced")
    return {name: max(getattr(item, name) / item.burst for turn in turns for item in turn) for name in names}


def _used(turns: list[tuple[Operation, ...]]) -> dict[str, float]:
    """By all processes together, for one operation: how often threads went to sleep, and seconds of processor time for
    each byte that a worker gives."""
    spent = [sum(item.processor / (item.size * item.burst) for item in turn) / len(turn) for turn in turns]
    return {
        "sleeps": report.Spread.of([sum(item.sleeps / item.burst for item in turn) for turn in turns]).median,
        "processor": report.Spread.of(spent).median,
    }


def _calls(turns: list[tuple[Operation, ...]]) -> float | None:
    """System calls of one operation, by all; None: they could not be counted."""
    counts = [turn[0].calls / turn[0].burst for turn in turns if turn[0].calls is not None]
    return sum(counts) / len(counts) if counts else None


def _again(turns: list[tuple[Operation, ...]]) -> float:
    operations = [item for turn in turns for item in turn]
    return sum(item.again for item in operations) / max(1, sum(item.segments for item in operations))


def show(setup: Setup, found: list[dict[str, Any]]) -> None:
    """The table: ours beside the rival and the limit."""
    rival = {(row["bytes"], row["memory"]): row for row in found if row["contender"] == RIVAL}
    ours = [row for row in found if row["contender"] == OURS] or list(rival.values())
    goodput = f", goodput {setup.goodput / 1e6:.1f} MB/s" if setup.goodput else ""
    columns = (
        "size", "memory", "byteps_like", "GB/s", "gloo", "GB/s", "vs gloo", "limit", "time/limit", "gloo's", "sent/M",
        "again", "gloo's", "sleeps", "gloo's", "CPU s/GB", "gloo's",
    )  # fmt: skip
    report.print_table(f"push_pull, fp32: {setup}{goodput}", columns, (_cells(row, rival) for row in ours))


def _cells(row: dict[str, Any], rival: dict[tuple[int, str], dict[str, Any]]) -> tuple[str, ...]:
    other = rival.get((row["bytes"], row["memory"]))
    is_ours = row["contender"] == OURS
    return (
        report.show_bytes(row["bytes"]), row["memory"], *(_time_and_speed(row) if is_ours else ("", "")),
        *(_time_and_speed(other) if other else ("", "")),
        f"{other['seconds'] / row['seconds']:.2f}" if other and is_ours else "", report.show_time(row["limit"]),
        *_on_a_line(row if is_ours else None, other),
        *(f"{one['sleeps']:.1f}" if one else "" for one in (row if is_ours else None, other)),
        *(f"{one['processor'] * 1e9:.2f}" if one else "" for one in (row if is_ours else None, other)),
    )  # fmt: skip


def _on_a_line(ours: dict[str, Any] | None, rival: dict[str, Any] | None) -> tuple[str, ...]:
    row = ours or rival or {}
    lab = row["goodput"] is not None
    return (
        f"{ours['seconds'] / ours['limit']:.3f}" if ours else "",
        f"{rival['seconds'] / rival['ring_limit']:.3f}" if rival and lab else "",
        f"{row['wire_sent'] / row['bytes']:.4f}" if lab else "",
        *(f"{one['again']:.2%}" if one and lab else "" for one in (ours, rival)),
    )


def _time_and_speed(row: dict[str, Any]) -> tuple[str, str]:
    spread = report.Spread(row["seconds"], row["low"], row["high"], row["count"])
    return report.show_spread(spread), f"{row['bytes'] / row['seconds'] / 1e9:.3f}"


def plot(path: Path, setup: Setup, found: list[dict[str, Any]]) -> None:
    series = {}
    for contender, memory in sorted({(row["contender"], row["memory"]) for row in found}):
        mine = [row for row in found if (row["contender"], row["memory"]) == (contender, memory)]
        series[f"{contender}, {memory}"] = _points(mine, "seconds")
    series["limit"] = _points(mine, "limit")
    report.plot_lines(path, f"push_pull, {setup}", ("bytes per worker", "seconds"), series)


def _points(found: Iterable[dict[str, Any]], key: str) -> tuple[list[float], list[float]]:
    ordered = sorted((row["bytes"], row[key]) for row in found)
    return [size for size, _ in ordered], [value for _, value in ordered]


def main() -> None:
    arguments = parse_arguments()
    setup, found = measure(arguments)
    show(setup, found)
    config = {name: str(value) for name, value in vars(arguments).items()}
    report.write_json_lines(arguments.json, config, found)
    plot(arguments.plot, setup, found)
    print(f"wrote {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
