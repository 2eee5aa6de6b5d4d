"""Servers beside workers and on spare machines, each weighted by the optimum, against gloo and our own ring.

    python -m bench.servers.placement                    all cases (root): minutes
    python -m bench.servers.placement --cases spare      one kind: spare, eight, slow
    python -m bench.servers.placement --cases spare --spare 0 4 --mbits 10000
    python -m bench.servers.placement --cases spare --sizes 16384 65536 262144 --mbits 100

Each host of the lab has its own shaped link; a worker and the server beside it share one. The prediction is the time of
the busiest card (byteps_like/control/placing/optimum.py) at the line's measured goodput. Every sum is checked.
"slow": one spare host has a quarter of the rate; the job is told of it, or it is not, which gives all servers equal
shares, or it has to find out by itself.
Leaves out/placement.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import module
from bench.servers import push_pull
from bench.servers.push_pull_plan import OURS, RING, RIVAL, Plan
from byteps_like.control.placing.optimum import Machine, card_time, shares
from byteps_like.launch.fleet import Fleet, choose
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions


@dataclass(frozen=True)
class Case:
    """`workers` hosts with a worker each, and `spare` ones; `slow` of the spare ones have a quarter of the rate."""

    kind: str
    workers: int
    spare: int
    mbits: int
    sizes: tuple[int, ...]
    repeats: int
    """Of the last size; smaller ones are repeated as often as takes about as long, up to 20 times."""
    contenders: tuple[str, ...] = (OURS, RIVAL, RING)
    slow: int = 0
    told: bool = True
    live: bool = False

    @property
    def ratios(self) -> list[float]:
        """Rate of each host, in units of the usual one."""
        return [1.0] * (self.workers + self.spare - self.slow) + [0.25] * self.slow

    @property
    def rates(self) -> list[str]:
        """The same for the lab."""
        return [f"{round(self.mbits * ratio)}mbit" for ratio in self.ratios]

    @property
    def fleet(self) -> Fleet:
        """The servers that `--servers auto` starts, as far as it knows the rates."""
        return choose(self.ratios if self.told else [1.0] * len(self.ratios), self.workers)

    def limit(self, goodput: float, size: int) -> float:
        """The busiest card's time, in seconds."""
        real = [self._host(place, ratio * goodput) for place, ratio in enumerate(self.ratios)]
        known = real if self.told or self.live else [self._host(place, goodput) for place in range(len(real))]
        return card_time(real, shares(known)) * size

    def _host(self, place: int, rate: float) -> Machine:
        return Machine(int(place < self.workers), place in self.fleet.hosts, rate)

    def __str__(self) -> str:
        how = "weighted" if self.told else "found while running" if self.live else "equal shares"
        slow = f", {self.slow} of them at 1/4: {how}" if self.slow else ""
        return f"{self.workers} workers, {self.spare} spare at {self.mbits} Mb/s{slow}"


LARGE = (64 << 20,)
SIZES = (64 << 10, 1 << 20, 16 << 20, 64 << 20)
CASES = [
    *(Case("spare", 4, spare, 1000, SIZES, 5) for spare in range(5)),
    Case("eight", 8, 8, 200, LARGE, 3, (OURS, RING)),
    *(Case("slow", 4, 4, 1000, LARGE, 5, (OURS,), slow=1, told=told) for told in (False, True)),
    Case("slow", 4, 4, 1000, LARGE, 20, (OURS,), slow=1, told=False, live=True),
]


@dataclass(frozen=True)
class Measured:
    """What push_pull.rows wants to know of a case."""

    case: Case
    goodput: float

    def limit(self, size: int) -> float:
        """See Case.limit."""
        return self.case.limit(self.goodput, size)

    def rival_limit(self, size: int) -> float:
        """A ring's."""
        return 2 * (self.case.workers - 1) / self.case.workers * size / self.goodput

    def __str__(self) -> str:
        return str(self.case)


def measure(case: Case) -> list[dict[str, Any]]:
    """One row per contender."""
    with Lab(len(case.rates), rate=case.rates) as lab, tempfile.TemporaryDirectory(prefix="placement-") as folder:
        measured = Measured(case, max(lab.goodput() for _ in range(3)))
        bursts = [push_pull.burst_for(size, measured.goodput) for size in case.sizes]
        repeats = [max(case.repeats, min(20, case.repeats * case.sizes[-1] // size)) for size in case.sizes]
        plan = Plan(list(case.sizes), bursts, repeats, ["arena"], list(case.contenders), folder, "eth0")
        command = module("bench.servers.push_pull_worker", str(plan.save()))
        environment = {"BYTEPS_LIKE_REPLAN": str(case.live)}
        options = RunOptions(command, case.workers, environment=environment, quiet=True)
        if code := run_in_lab(lab, options, 1, case.fleet, tell_rates=case.told):
            sys.exit(code)
        ranks = [push_pull.read_operations(Path(folder) / f"rank{rank}.jsonl") for rank in range(case.workers)]
        if case.live:  # the last quarter: what it has come to
            timed = [[one for one in operations if not one.look] for operations in ranks]
            ranks = [operations[-case.repeats // 4 :] for operations in timed]
        found = push_pull.rows(measured, ranks)
        return [{**row, "bench": "placement", "kind": case.kind, "spare": case.spare} for row in found]


def show(rows: list[dict[str, Any]]) -> None:
    """The table: ours beside its prediction and the others."""
    times = {(row["setup"], row["bytes"], row["contender"]): row for row in rows}
    columns = ("setup", "size", "time", "predicted", "time/predicted", "gloo", "vs gloo", "our ring", "vs ring")
    ours = [row for row in rows if row["contender"] == OURS]
    cells = []
    for row in ours:
        others = []
        for name in (RIVAL, RING):
            other = times.get((row["setup"], row["bytes"], name))
            others += [show_time(other), f"{other['seconds'] / row['seconds']:.2f}"] if other else ["", ""]
        ratio = f"{row['seconds'] / row['limit']:.3f}"
        cells.append(
            (
                row["setup"],
                report.show_bytes(row["bytes"]),
                show_time(row),
                report.show_time(row["limit"]),
                ratio,
                *others,
            )
        )
    goodputs = sorted({round(row["goodput"] / 1e6, 1) for row in ours})
    report.print_table(f"placement, fp32 in the arena, goodput {goodputs} MB/s", columns, cells)


def show_time(row: dict[str, Any]) -> str:
    return report.show_spread(report.Spread(row["seconds"], row["low"], row["high"], row["count"]))


def plot(path: Path, rows: list[dict[str, Any]]) -> None:
    some = [row for row in rows if row["kind"] == "spare" and row["bytes"] == LARGE[-1]]
    series = {name: points(some, name, "seconds") for name in (OURS, RIVAL, RING)} | {
        "limit (predicted)": points(some, OURS, "limit")
    }
    report.plot_curves(path, "64 MB", ("spare servers", "seconds"), series)


def points(rows: list[dict[str, Any]], contender: str, key: str) -> tuple[list[float], list[float]]:
    found = sorted((row["spare"], row[key]) for row in rows if row["contender"] == contender)
    return [spare for spare, _ in found], [value for _, value in found]


def cases_of(arguments: argparse.Namespace) -> list[Case]:
    """Those that were chosen, with the rate, the sizes and the repetitions that were given."""
    return [
        replace(
            case,
            mbits=arguments.mbits or case.mbits,
            repeats=arguments.repeats or case.repeats,
            sizes=tuple(arguments.sizes or case.sizes),
        )
        for case in CASES
        if case.kind in arguments.cases and case.spare in (arguments.spare or [case.spare])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--cases", nargs="+", choices=["spare", "eight", "slow"], default=["spare", "eight", "slow"])
    parser.add_argument("--spare", type=int, nargs="+", help="only with so many spare hosts")
    parser.add_argument("--mbits", type=int, help="the rate of all hosts but slow ones, in place of the cases' own")
    parser.add_argument("--sizes", type=int, nargs="+", metavar="BYTES", help="in place of the cases' own, ascending")
    parser.add_argument("--repeats", type=int, help="of the last size, in place of the cases' own")
    parser.add_argument("--json", type=Path, default=report.OUT / "placement.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "placement.png")
    arguments = parser.parse_args()
    rows = [row for case in cases_of(arguments) for row in measure(case)]
    show(rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    if any(row["kind"] == "spare" for row in rows):
        plot(arguments.plot, rows)


if __name__ == "__main__":
    main()
