"""What a small push of high priority waits while a large one of low priority is in flight, on the lab.

    python -m bench.servers.priority --workers 2 --servers 1 --rate 1gbit       (root; --servers 0: the allreduce route)

In one run, in turn: a push of 64 bytes (the round trip), 64 KB alone, 64 MB alone, and 64 KB pushed by all ranks
several times while 64 MB are in flight. With servers the last may take (credit of a worker's links) / B + 2 round
trips, where B is the rate at which the 64 MB alone go. Every sum is checked. The whole is done once for each `--queue`,
what of a link may lie unsent in the kernel (0: as much as it likes, 4 MB here), and each `--credit`.
Leaves out/priority.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import module
from bench.servers.priority_worker import Plan, Record
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.lab.network import parse_rate
from byteps_like.launch.options import RunOptions

SHORT, LONG = 64 << 10, 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1, help="0: the allreduce route")
    parser.add_argument("--shards", type=int, default=1, help="threads, and links per worker, of a server")
    parser.add_argument("--rate", default="1gbit", help="of every host's link")
    parser.add_argument("--small", type=int, default=64 << 10, metavar="BYTES")
    parser.add_argument("--large", type=int, default=64 << 20, metavar="BYTES")
    parser.add_argument("--queue", nargs="+", type=int, default=[SHORT, LONG], metavar="BYTES")
    parser.add_argument("--credit", nargs="+", type=int, default=[1 << 20, 16 << 20], metavar="BYTES")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--json", type=Path, default=report.OUT / "priority.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "priority.png")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row per queue and credit."""
    with Lab(arguments.workers + arguments.servers, rate=arguments.rate) as lab:
        goodput = max(lab.goodput() for _ in range(2))
        for credit in arguments.credit if arguments.servers else arguments.credit[:1]:
            for queue in arguments.queue:
                yield row(arguments, queue, credit, goodput, run(lab, arguments, queue, credit))


def run(lab: Lab, arguments: argparse.Namespace, queue: int, credit: int) -> list[list[Record]]:
    """One job; the records of each rank."""
    with tempfile.TemporaryDirectory(prefix="priority-") as folder:
        plan = Plan(arguments.small, arguments.large, arguments.turns, folder, gap(arguments))
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(asdict(plan)))
        settings = {
            "BYTEPS_LIKE_CREDIT_BYTES": str(credit),
            "BYTEPS_LIKE_KERNEL_QUEUE_BYTES": str(queue),
        }
        command = module("bench.servers.priority_worker", str(path))
        options = RunOptions(
            command, arguments.workers, arguments.servers, arguments.shards, environment=settings, quiet=True
        )
        if code := run_in_lab(lab, options):
            sys.exit(code)
        files = [Path(folder) / f"rank{rank}.jsonl" for rank in range(arguments.workers)]
        return [[Record(**json.loads(line)) for line in file.read_text().splitlines()] for file in files]


def gap(arguments: argparse.Namespace) -> float:
    """So that all small ones are posted within the least time that the large one can take."""
    least = arguments.large / (parse_rate(arguments.rate) / 8)
    if arguments.servers:
        return least * max(1.0, arguments.workers / arguments.servers) / (Plan.beside + 2)
    return least * 2 * (arguments.workers - 1) / arguments.workers / (Plan.beside + 2)


def row(
    arguments: argparse.Namespace, queue: int, credit: int, goodput: float, ranks: list[list[Record]]
) -> dict[str, Any]:
    """An operation lasts from the last rank's post to the last rank's end."""
    times: dict[str, list[float]] = {}
    for turn in zip(*ranks, strict=True):
        if len({(record.phase, record.turn, record.index) for record in turn}) != 1:
            raise RuntimeError("the ranks did not do the same operations")
        seconds = max(record.end for record in turn) - max(record.begin for record in turn)
        times.setdefault(turn[0].phase, []).append(seconds)
    spreads = {phase: report.Spread.of(values) for phase, values in times.items()}
    rate = arguments.large / spreads["large alone"].median
    links = arguments.servers * arguments.shards
    found = {
        "bench": "priority", "workers": arguments.workers, "servers": arguments.servers, "links": links,
        "rate": arguments.rate, "goodput": goodput, "queue": queue, "credit": credit, "bulk_rate": rate,
        "bound": links * credit / rate + 2 * spreads["round trip"].median if links else None,
    }  # fmt: skip
    for phase, spread in spreads.items():
        found[phase] = {**asdict(spread), "most": max(times[phase]), "all": times[phase]}
    return found


def show(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The table."""
    columns = ("kernel's queue", "credit", "round trip", "alone", "beside 64 MB", "worst", "bound", "worst/bound",
               "64 MB alone", "with the small ones")  # fmt: skip
    where = f"{arguments.servers} servers" if arguments.servers else "no server"
    title = f"{report.show_bytes(arguments.small)}, {arguments.workers} workers, {where}, {arguments.rate}"
    report.print_table(f"{title}, goodput {rows[0]['goodput'] / 1e6:.1f} MB/s", columns, map(_cells, rows))


def _cells(found: dict[str, Any]) -> tuple[str, ...]:
    beside, bound = found["beside"], found["bound"]
    shown = [report.show_time(found[phase]["median"]) for phase in ("round trip", "alone", "beside")]
    return (
        _queue(found["queue"]), report.show_bytes(found["credit"]) if bound else "", *shown,
        report.show_time(beside["most"]),
        report.show_time(bound) if bound else "", f"{beside['most'] / bound:.2f}" if bound else "",
        report.show_time(found["large alone"]["median"]), report.show_time(found["beside, large"]["median"]),
    )  # fmt: skip


def _queue(queue: int) -> str:
    return report.show_bytes(queue) if queue else "long"


def plot(path: Path, title: str, rows: list[dict[str, Any]]) -> None:
    """Every time of a small push, by queue and credit, beside its bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for at, found in enumerate(rows):
        for phase, color in (("alone", "tab:gray"), ("beside", "tab:blue")):
            times = [seconds * 1e3 for seconds in found[phase]["all"]]
            axis.plot([at] * len(times), times, "o", color=color, alpha=0.4, label=phase if at == 0 else None)
        if found["bound"]:
            ends, height = [at - 0.3, at + 0.3], [found["bound"] * 1e3] * 2
            axis.plot(ends, height, color="tab:red", label="credit / B + 2 round trips" if at == 0 else None)
    names = [f"queue {_queue(found['queue'])}\ncredit {report.show_bytes(found['credit'])}" for found in rows]
    axis.set(title=title, ylabel="milliseconds", yscale="log")
    axis.set_xticks(range(len(rows)), names)
    axis.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = parse_arguments()
    rows = list(measure(arguments))
    show(arguments, rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    plot(arguments.plot, f"{arguments.workers} workers, {arguments.servers} servers, {arguments.rate}", rows)
    print(f"wrote {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
