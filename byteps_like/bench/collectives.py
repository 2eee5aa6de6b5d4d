"""Collectives in the manner of nccl-tests and OSU: ours, rivals and limit in turn, by the same processes in one run.

The bytes of a case are those of a rank's larger buffer. Algorithm bandwidth is that over the time, bus bandwidth is
nccl-tests': times 2(n-1)/n for all_reduce, (n-1)/n for reduce_scatter, all_gather and all_to_all, 1 for the others. A
time is from the last rank's start to the last rank's end, over the calls of a sample. A rival that has an operation
only in place, or only out of place, is compared by what it has.

On one host, OpenMPI takes part with that of its components (xhc, sm, han, adapt, tuned, as far as they are installed)
which is the fastest in a short trial, unless an OMPI_MCA_coll* in the environment decides. DeepSpeed takes part with
its all-reduce in shared memory, where it can be imported; its extension is compiled at first use.

On a machine that does other work besides, or with as many ranks as cores, OpenMPI's ranks spin while those they wait
for have no CPU: OMPI_MCA_mpi_yield_when_idle=1 in the environment then lets it show what it can do.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from byteps_like.bench import openmpi, report
from byteps_like.bench.plan import C10D, DEEPSPEED, DIRECT, GLOO, MPI, NATIVE, OPERATIONS, OURS, RIVALS, BenchPlan, Case
from byteps_like.bench.start import run_ranks, why_no_deepspeed, why_no_mpi
from byteps_like.errors import ConfigError
from byteps_like.launch.lab.hosts import Lab

Row = dict[str, Any]
TRIAL_TIMEOUT = 120.0  # seconds


@dataclass(frozen=True)
class Options:
    """What to measure. Sizes in bytes; `lab` as "4x1gbit": so many hosts at that rate."""

    operations: Sequence[str] = OPERATIONS
    ranks: int = 2
    least: int = 8
    most: int = 256 << 20
    factor: int = 8
    places: Sequence[bool] = (True, False)
    memory: Sequence[str] = ("shared", "private")
    doors: Sequence[str] = ("native",)
    rivals: Sequence[str] = RIVALS
    lab: str = ""
    bind: bool | None = None
    """A core for each rank, as mpirun does; None: where there are enough."""
    seconds: float = 0.5
    timeout: float = 3600.0
    json: Path = field(default_factory=lambda: report.OUT / "collectives.jsonl")
    plots: Path | None = None
    """Folder for one PNG per operation; None: no plots."""

    def check(self) -> None:
        """Raises ConfigError for what can't be run."""
        unknown = set(self.operations) - set(OPERATIONS)
        if unknown:
            raise ConfigError(f"no operation {', '.join(sorted(unknown))}: there are {', '.join(OPERATIONS)}")
        if set(self.rivals) - set(RIVALS) or set(self.doors) - {"native", "c10d"}:
            raise ConfigError("--compare takes gloo, mpi and deepspeed, --api takes native and c10d")
        if self.ranks < 2 or self.least < 1 or self.most < self.least or self.factor < 2:
            raise ConfigError(
                "the benchmark needs at least 2 ranks, sizes of at least 1 byte and a factor of at least 2"
            )

    def binds(self) -> bool:
        """Whether each rank gets a core of its own."""
        return self.ranks <= len(os.sched_getaffinity(0)) if self.bind is None else self.bind

    def sizes(self) -> list[int]:
        """From `least` by `factor` up to `most`."""
        sizes = [self.least]
        while sizes[-1] * self.factor <= self.most:
            sizes.append(sizes[-1] * self.factor)
        return sizes


def run(options: Options) -> list[Row]:
    """Measures, prints a table for each operation, leaves JSON lines and plots. Blocks; one row per case and contender.

    Raises ConfigError, SystemCallError if a rank fails (it has printed why), DeadlineError.
    """
    options.check()
    with _lab(options.lab) or nullcontext() as lab:
        goodput = max(lab.goodput() for _ in range(3)) if lab is not None else None
        with tempfile.TemporaryDirectory(prefix="bench-", dir=_shared_folder()) as folder:
            plan = _with_best_mpi(_plan(options, folder, lab))
            run_ranks(plan, lab, options.timeout)
            rows = list(_rows(plan, goodput))
    title = (options.lab or "one host") + (", a core each" if plan.bind else "")
    for operation in options.operations:
        _show([row for row in rows if row["operation"] == operation], f"{operation}, {plan.ranks} ranks, {title}")
    report.write_json_lines(options.json, _config(options, plan), rows)
    if options.plots is not None:
        _plot(options.plots, rows, plan.ranks, title)
    return rows


def _config(options: Options, plan: BenchPlan) -> dict[str, str]:
    """For the JSON lines: the options, and what OpenMPI was told besides."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}
    settings |= {f"OMPI_MCA_{name}": value for name, value in plan.mpi.items()}
    return {**{name: str(value) for name, value in vars(options).items()}, **settings}


def _with_best_mpi(plan: BenchPlan) -> BenchPlan:
    """On one host, OpenMPI takes part with the component that all-reduces fastest; in a lab with its own choice."""
    if MPI not in plan.contenders or plan.addresses or openmpi.is_decided():
        return plan
    found = openmpi.installed()
    settings, tried = openmpi.fastest(found.choices(), lambda settings: _mpi_seconds(plan, settings))
    print(f"{found}; {tried}")
    return replace(plan, mpi=settings)


def _mpi_seconds(plan: BenchPlan, settings: openmpi.Settings) -> float:
    """The geometric mean of a short all-reduce's times, over sizes from latency to bandwidth. Raises as run_ranks."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=_shared_folder()) as folder:
        trial = replace(
            plan, operations=["all_reduce"], sizes=[1 << 10, 1 << 16, 1 << 22], places=[True], memory=["private"],
            contenders=[MPI], seconds=0.2, folder=folder, mpi=settings,
        )  # fmt: skip
        run_ranks(trial, None, TRIAL_TIMEOUT)
        return statistics.geometric_mean(row["seconds"] for row in _rows(trial, None))


def _lab(text: str) -> Lab | None:
    if not text:
        return None
    hosts, _, rate = text.partition("x")
    if not hosts.isdigit() or not rate:
        raise ConfigError(f"lab {text!r} is not valid; write it as 4x1gbit")
    return Lab(int(hosts), rate=rate)


def _shared_folder() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _plan(options: Options, folder: str, lab: Lab | None) -> BenchPlan:
    rivals = list(options.rivals)
    if MPI in rivals and (why := why_no_mpi()):
        print(f"without OpenMPI: {why}")
        rivals.remove(MPI)
    if DEEPSPEED in rivals and (why := why_no_deepspeed(in_lab=lab is not None)):
        print(f"without DeepSpeed: {why}")
        rivals.remove(DEEPSPEED)
    if lab is not None and options.ranks % len(lab.hosts):
        raise ConfigError(f"{options.ranks} ranks can't be divided evenly among {len(lab.hosts)} hosts")
    doors = {"native": NATIVE, "c10d": C10D}
    return BenchPlan(
        ranks=options.ranks, operations=list(options.operations), sizes=options.sizes(), places=list(options.places),
        memory=list(options.memory), seconds=options.seconds, folder=folder, interface="eth0" if lab else "",
        bind=options.binds(),
        contenders=[*(doors[door] for door in options.doors), *rivals, *([] if lab else [DIRECT])],
        addresses=[lab.hosts[rank * len(lab.hosts) // options.ranks].address for rank in range(options.ranks)]
        if lab else [],
    )  # fmt: skip


def _rows(plan: BenchPlan, goodput: float | None) -> Iterator[Row]:
    """Joins what the ranks recorded."""
    ranks = [_read(Path(plan.folder) / f"rank{rank}.jsonl") for rank in range(plan.ranks)]
    samples: dict[tuple[int, str], list[tuple[Row, ...]]] = defaultdict(list)
    remarks = {}
    for turn in zip(*ranks, strict=True):
        key = turn[0]["case"], turn[0]["contender"]
        if any((item["case"], item["contender"]) != key for item in turn):
            raise RuntimeError("the ranks recorded different cases")
        if "why" in turn[0]:
            remarks[key] = turn[0]["why"]
        else:
            samples[key].append(turn)
    cases = list(plan.cases())
    for (number, contender), turns in samples.items():
        yield _row(plan, cases[number], contender, turns, goodput)
    for (number, contender), why in remarks.items():
        yield {**_case_fields(plan, cases[number]), "contender": contender, "why": why}


def _read(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _case_fields(plan: BenchPlan, case: Case) -> Row:
    return {
        "bench": "collectives", "ranks": plan.ranks, "operation": case.operation, "in_place": case.in_place,
        "bytes": case.elements(plan.ranks) * 4, "memory": case.memory,
    }  # fmt: skip


def _row(plan: BenchPlan, case: Case, contender: str, turns: list[tuple[Row, ...]], goodput: float | None) -> Row:
    times = sorted(
        (max(item["end"] for item in turn) - max(item["start"] for item in turn)) / turn[0]["calls"] for turn in turns
    )
    calls = sum(turn[0]["calls"] for turn in turns)
    sent = max(sum(turn[rank]["sent"] for turn in turns) for rank in range(plan.ranks)) / calls
    middle, fields = statistics.median(times), _case_fields(plan, case)
    return {
        **fields, "contender": contender, "seconds": middle, "p10": _share(times, 0.1), "p90": _share(times, 0.9),
        "samples": len(times), "calls": calls, "algorithm_bandwidth": fields["bytes"] / middle,
        "bus_bandwidth": fields["bytes"] * case.moved(plan.ranks) / middle, "wire_sent": sent,
        "crossed_wire": sent >= fields["bytes"] / plan.ranks if plan.interface else None,
        "limit": fields["bytes"] * case.moved(plan.ranks) / goodput if goodput else None,
    }  # fmt: skip


def _share(ordered: Sequence[float], share: float) -> float:
    return ordered[round(share * (len(ordered) - 1))]


def _show(rows: list[Row], title: str) -> None:
    """One line per case and door of ours (or, without ours, per rival), rivals and limit beside it."""
    measured = [row for row in rows if "seconds" in row]
    ours = [row for row in measured if row["contender"] in OURS] or [
        row for row in measured if row["contender"] == GLOO
    ]
    rivals = [name for name in RIVALS if any(row["contender"] == name for row in measured)]
    columns = ["size", "memory", "contender", "time", "p10 - p90", "alg GB/s", "bus GB/s"]
    for name in rivals:
        columns += [name, "ratio"]
    columns += ["limit", "time/limit", "sent/M", "check"]
    report.print_table(title, columns, [_cells(row, measured, rivals) for row in ours])
    for name, why in sorted({(row["contender"], row["why"]) for row in rows if "why" in row}):
        print(f"  {name}: {why}")


def _cells(row: Row, measured: list[Row], rivals: list[str]) -> list[str]:
    place = f"{row['memory']}, {'in' if row['in_place'] else 'out of'} place"
    cells = [
        report.show_bytes(row["bytes"]), place, row["contender"], report.show_time(row["seconds"]),
        f"{report.show_time(row['p10'])} - {report.show_time(row['p90'])}",
        f"{row['algorithm_bandwidth'] / 1e9:.3f}", f"{row['bus_bandwidth'] / 1e9:.3f}",
    ]  # fmt: skip
    for name in rivals:
        other = _like(row, measured, name)
        cells += [report.show_time(other), f"{other / row['seconds']:.2f}"] if other else ["-", "-"]
    limit = limit_of(row, measured)
    cells += [report.show_time(limit), f"{row['seconds'] / limit:.2f}"] if limit else ["-", "-"]
    sent = f"{row['wire_sent'] / row['bytes']:.3f}" if row["wire_sent"] and row["bytes"] else "-"
    return [*cells, sent, "ok" if row["crossed_wire"] in (None, True) else "NOT OVER THE WIRE"]


def limit_of(row: Row, measured: Iterable[Row]) -> float | None:
    """Seconds: the closed form where there is a line, else what the plain loop took in the same run."""
    return row["limit"] or _like(row, measured, DIRECT)


def _like(row: Row, measured: Iterable[Row], contender: str) -> float | None:
    """Its time for the same case; for want of that, the better one of the same operation and size."""
    same = [
        (other["in_place"] != row["in_place"] or other["memory"] != row["memory"], other["seconds"])
        for other in measured
        if other["contender"] == contender and other["bytes"] == row["bytes"] and other["operation"] == row["operation"]
    ]
    return min(same)[1] if same else None


def _plot(folder: Path, rows: list[Row], ranks: int, title: str) -> None:
    """A PNG per operation: time over bytes, the best of in place and out of place."""
    for operation in sorted({row["operation"] for row in rows if row["bytes"]}):
        lines: dict[str, dict[int, float]] = defaultdict(dict)
        for row in rows:
            if row["operation"] == operation and "seconds" in row:
                name = f"{row['contender']}, {row['memory']}" if row["contender"] in OURS else row["contender"]
                lines[name][row["bytes"]] = min(row["seconds"], lines[name].get(row["bytes"], float("inf")))
                if row["limit"]:
                    lines["limit"][row["bytes"]] = row["limit"]
        series = {
            name: ([float(x) for x in sorted(line)], [line[x] for x in sorted(line)]) for name, line in lines.items()
        }
        path = folder / f"{operation}-{ranks}-{title.replace(',', '').replace(' ', '-')}.png"
        report.plot_lines(path, f"{operation}, {ranks} ranks, {title}", ("bytes", "seconds"), series)
