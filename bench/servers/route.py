"""What push_pull by servers costs on one host, by size, memory and transport: one table.

    python -m bench.servers.route [--sizes 4096 67108864] [--seconds 1]

Rival, limit, wake-ups (threads that went to sleep) and processor seconds are those of bench.servers.push_pull, of all
workers and servers together. Copies are of each byte of a worker, there and back: two where it goes by way of shared
memory, two for each way over a link, into the kernel and out of it. Calls are the system calls of one operation, as
perf counts them; without perf the column is empty. Leaves out/route.jsonl, and the table in out/route.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import report
from bench.servers import push_pull
from bench.servers.push_pull_plan import OURS, RIVAL

SIZES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 64 << 20)
CASES = (
    (1, 1, "shm", ("arena", "private")),
    (2, 1, "shm", ("arena", "private")),
    (2, 1, "tcp", ("private",)),
    (2, 2, "tcp", ("private",)),
)
"""Workers, servers, transport, and in which memory tensors are."""

COLUMNS = (
    "workers + servers", "transport", "memory", "size", "time", "gloo", "gloo / time", "limit", "time / limit",
    "copies", "calls", "gloo's", "wake-ups", "gloo's", "CPU s/GB", "gloo's",
)  # fmt: skip

Row = dict[str, Any]


def measure(sizes: list[int], seconds: float) -> Iterator[Row]:
    """A row per case, size, memory and contender; says on the way what is being measured."""
    for workers, servers, transport, memory in CASES:
        print(f"{workers} workers, {servers} servers, {transport} ...", flush=True)
        options = ["--workers", workers, "--servers", servers, "--transport", transport, "--seconds", seconds]
        options += ["--sizes", *sizes, "--memory", *memory, *(["--only", OURS] if workers == 1 else [])]
        _, found = push_pull.measure(push_pull.parse_arguments([str(option) for option in options]))
        yield from ({**row, "workers": workers, "servers": servers, "transport": transport} for row in found)


def cells(ours: Row, rival: Row | None) -> tuple[str, ...]:
    """One line of the table; gloo's are empty for a worker alone."""
    return (
        f"{ours['workers']} + {ours['servers']}", ours["transport"], ours["memory"], report.show_bytes(ours["bytes"]),
        report.show_time(ours["seconds"]), report.show_time(rival["seconds"]) if rival else "",
        f"{rival['seconds'] / ours['seconds']:.2f}" if rival else "",
        report.show_time(ours["limit"]), f"{ours['seconds'] / ours['limit']:.1f}", f"{copies(ours):.0f}",
        *("" if one is None or one["calls"] is None else f"{one['calls']:.1f}" for one in (ours, rival)),
        *("" if one is None else f"{one['sleeps']:.1f}" for one in (ours, rival)),
        *("" if one is None else f"{one['processor'] * 1e9:.2f}" for one in (ours, rival)),
    )  # fmt: skip


def copies(row: Row) -> float:
    """Of each byte of a worker, by what the worker has counted."""
    streamed = row["payload_sent"] + row["payload_received"]
    return float((row["bounced"] + 2 * streamed) / row["bytes"])


def lines(found: list[Row]) -> list[tuple[str, ...]]:
    """The table."""

    def place(row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in ("workers", "servers", "transport", "memory", "bytes"))

    rivals = {place(row): row for row in found if row["contender"] == RIVAL}
    return [cells(row, rivals.get(place(row))) for row in found if row["contender"] == OURS]


def markdown(table: list[tuple[str, ...]]) -> str:
    """The same, for the documentation."""
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *table]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="BYTES")
    parser.add_argument("--seconds", type=float, default=1.0, help="about how long to measure one size")
    parser.add_argument("--json", type=Path, default=report.OUT / "route.jsonl")
    arguments = parser.parse_args()
    found = list(measure(arguments.sizes, arguments.seconds))
    table = lines(found)
    report.print_table("push_pull by servers of the same host, fp32", COLUMNS, table)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, found)
    page = arguments.json.with_suffix(".md")
    page.write_text(markdown(table))
    print(f"wrote {arguments.json} and {page}")


if __name__ == "__main__":
    main()
