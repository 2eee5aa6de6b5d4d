"""How often the shipped rules pick the fastest algorithm: all are measured in a lab, then the rules are asked.

    python -m bench.collectives.selector --worlds 4x1 2x4 4x4 --rate 1gbit        (root; hosts x ranks on each)

A choice is right if its median is within 5 % of the fastest's. Prints what was chosen wrongly, by how much, and the
share of sizes that was right. With --table the measurements are left as a table for `collective_table`; with --ask a
table of an earlier run is asked instead of the rules: how often what was measured once is right again.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import again
from byteps_like.bench import world
from byteps_like.cli.tune import save
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.measured_table import MeasuredTable
from byteps_like.collectives.selection.selector import Selector
from byteps_like.collectives.selection.tune import Timing, TuneOptions, tune
from byteps_like.launch.lab.hosts import Lab

KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all"]
SIZES = [1 << exponent for exponent in range(6, 25, 2)]  # 64 B to 16 MiB
SLACK = 1.05


def layout_of(hosts: int, each: int) -> Layout:
    return Layout(tuple(world.host_of(rank, hosts * each, hosts) for rank in range(hosts * each)))


def rank(arguments: argparse.Namespace, hosts: int) -> None:
    """What each rank does: all measurements of one world."""
    with world.join() as (here, ranks):
        options = TuneOptions(tuple(map(Kind, arguments.kinds)), tuple(arguments.sizes), arguments.repeats)
        found: list[Timing] = []
        tune(ranks.group("tune"), layout_of(hosts, here.size // hosts), options, found.append)
        here.save([(one.kind, one.nbytes, one.algorithm, one.seconds) for one in found] if here.rank == 0 else [])


def measure(arguments: argparse.Namespace, hosts: int, each: int) -> list[dict[str, Any]]:
    """One row per collective and size."""
    with tempfile.TemporaryDirectory(prefix="selector-") as folder, Lab(hosts, rate=arguments.rate) as lab:
        command = again("--of", str(hosts))
        world.run(command, hosts * each, Path(folder), lab, arguments.timeout)
        [timings, *_] = world.results(Path(folder), hosts * each)
    seconds: dict[tuple[str, int], dict[str, float]] = {}
    for kind, nbytes, algorithm, taken in timings:  # type: ignore[attr-defined]
        seconds.setdefault((kind, nbytes), {})[algorithm] = taken
    layout = layout_of(hosts, each)
    if arguments.table:
        save(arguments.table, _table(layout, seconds), layout)
    selector = Selector.from_settings(collective_table=str(arguments.ask or ""))
    name = f"{hosts}x{each}"
    return [_row(name, layout, Kind(kind), size, taken, selector) for (kind, size), taken in seconds.items()]


def _table(layout: Layout, seconds: dict[tuple[str, int], dict[str, float]]) -> MeasuredTable:
    from byteps_like.collectives.selection.measured_table import Point

    table = MeasuredTable()
    for kind in dict.fromkeys(kind for kind, _ in seconds):
        table.put(layout, Kind(kind), [Point(size, taken) for (of, size), taken in seconds.items() if of == kind])
    return table


def _row(
    name: str, layout: Layout, kind: Kind, nbytes: int, seconds: dict[str, float], selector: Selector
) -> dict[str, Any]:
    chosen = selector.choose(kind, nbytes, layout).algorithm
    best = min(seconds, key=lambda algorithm: seconds[algorithm])
    taken = seconds.get(chosen)  # None: it was left out, having been far too slow at a smaller size
    return {
        "bench": "selector", "world": name, "kind": kind, "bytes": nbytes, "chosen": chosen, "best": best,
        "seconds": seconds, "ratio": taken / seconds[best] if taken is not None else None,
        "machine_load": os.getloadavg()[0],
    }  # fmt: skip


def is_right(row: dict[str, Any]) -> bool:
    return row["ratio"] is not None and row["ratio"] <= SLACK


def show(name: str, rows: list[dict[str, Any]]) -> None:
    wrong = [
        (row["kind"], report.show_bytes(row["bytes"]), row["chosen"], row["best"],
         report.show_time(row["seconds"][row["best"]]), "left out" if row["ratio"] is None else f"{row['ratio']:.2f}")
        for row in rows if not is_right(row)
    ]  # fmt: skip
    share = sum(map(is_right, rows)) / len(rows)
    report.print_table(
        f"{name}: right at {share:.0%} of {len(rows)} sizes; machine load {rows[0]['machine_load']:.1f}; wrong:",
        ("collective", "size", "chosen", "fastest", "its time", "ratio"), wrong,
    )  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--worlds", nargs="+", default=["4x1", "2x4", "4x4"], help="hosts x ranks on each")
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--kinds", nargs="+", default=KINDS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, metavar="BYTES")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--timeout", type=float, default=1200.0)
    parser.add_argument("--table", type=Path, help="where to leave the measurements")
    parser.add_argument("--ask", type=Path, help="the table that chooses")
    parser.add_argument("--json", type=Path, default=report.OUT / "selector.jsonl")
    parser.add_argument("--of", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.of:
        return rank(arguments, arguments.of)
    for name in arguments.worlds:
        hosts, _, each = name.partition("x")
        rows = measure(arguments, int(hosts), int(each))
        show(name, rows)
        report.write_json_lines(arguments.json, {key: str(value) for key, value in vars(arguments).items()}, rows)
        print(json.dumps({"world": name, "right": sum(map(is_right, rows)) / len(rows)}))
    return None


if __name__ == "__main__":
    main()
