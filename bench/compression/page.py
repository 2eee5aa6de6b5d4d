"""Makes docs/reference/compression-measured.md from the results of the compression benchmarks in out/.

    python -m bench.compression.page

The newest row of each contender is used. Rows that have not been measured are left out.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.compression import blocksparse
from bench.compression.reductions_plan import DATA, FP32
from bench.compression.training import summary

PAGE = report.ROOT / "docs" / "reference" / "compression-measured.md"
RATES = {"100mbit": "100 Mb/s", "400mbit": "400 Mb/s", "1gbit": "1 Gb/s", "none": "one host"}
Row = dict[str, Any]


def newest(path: Path, *keys: str) -> list[Row]:
    """The rows of `path`, of those alike in `keys` the last one only, in the order of their first."""
    if not path.exists():
        return []
    found: dict[tuple[Any, ...], Row] = {}
    for line in path.read_text().splitlines():
        row = json.loads(line)
        found[tuple(row[key] for key in keys)] = row
    return list(found.values())


def table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """In Markdown; the first column to the left, the others to the right."""
    head = [f"| {' | '.join(columns)} |", "|---|" + "---:|" * (len(columns) - 1)]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def paragraph(text: str) -> str:
    """`text` in lines of at most 120 columns."""
    return textwrap.fill(text, 120, break_on_hyphens=False) + "\n"


def where(rows: Sequence[Row]) -> str:
    """Machine, versions and commits of some rows."""
    commits = sorted({str(row["commit"]).split("-", 1)[0] for row in rows})
    last = rows[-1]
    machine = f"{last['machine']['cpu']}, {last['machine']['cores']} cores for all processes"
    return f"{machine}; torch {last['versions']['torch']}; {last['time'][:10]}, of commit {', '.join(commits)}.\n"


def setup(rows: Sequence[Row]) -> str:
    """How many workers and servers there were."""
    told = []
    for place, chosen in (
        ("Lab of shaped links, a host each", [row for row in rows if row["rate"] != "none"]),
        ("One host", [row for row in rows if row["rate"] == "none"]),
    ):
        if chosen:
            told.append(f"{place}: {chosen[0]['workers']} workers, {chosen[0]['servers']} servers.")
    return " ".join(told)


def reductions(rows: list[Row]) -> str:
    """Time, bytes and error of every contender at every rate, by servers."""
    rates = [rate for rate in RATES if any(row["rate"] == rate for row in rows)]
    names = list(dict.fromkeys(row["contender"] for row in rows))
    by = {(row["rate"], row["contender"]): row for row in rows}
    return table(
        ("codec", *(RATES[rate] for rate in rates), "sent", "received", *(f"NMSE {kind}" for kind in DATA)),
        (reduction(name, rates, by) for name in names),
    )


def reduction(name: str, rates: Sequence[str], by: dict[tuple[str, str], Row]) -> tuple[str, ...]:
    """The line of one contender: seconds, and times as fast as fp32; bytes where it was first measured."""
    first = next(by[rate, name] for rate in rates if (rate, name) in by)
    times = []
    for rate in rates:
        row = by.get((rate, name))
        faster = f"{by[rate, FP32]['seconds'] / row['seconds']:.2f}" if row and (rate, FP32) in by else ""
        times.append(f"{report.show_time(row['seconds'])} ({faster})" if row else "")
    wire = (f"{first[way] / first['bytes']:.3f}" for way in ("wire_sent", "wire_received"))
    return f"`{name}`", *times, *wire, *(f"{first['nmse'][kind]:.2g}" for kind in DATA)


def training(rows: list[Row], task: str) -> str:
    """Final losses and times of steps."""
    columns = ("codec", "final loss", "minus exact", "1 % + 2 sd", "within", "step")
    return table(columns, summary(rows, task))


def page(folder: Path) -> str:
    """All of it."""
    parts = [
        "# Compression benchmarks\n",
        "Made by `make bench-compression`; [compression](../how-to/compression.md) interprets these results.\n",
    ]
    codecs = newest(folder / "compression.jsonl", "route", "rate", "contender")
    for route, title in (("server", "Through servers"), ("allreduce", "In two hops, without servers")):
        rows = [row for row in codecs if row["route"] == route and row["rate"] in RATES]
        if rows:
            parts += [
                f"## {title}\n",
                paragraph(
                    f"One reduction of {report.show_bytes(rows[0]['bytes'])} of fp32, from the last start to the last"
                    " end, median; the speedup over fp32 in brackets. Bytes sent and received are one worker's, with"
                    f" headers and retransmissions, relative to the tensor's. {setup(rows)} {where(rows)}"
                ),
                reductions(rows),
            ]
    if codecs:
        parts.append("![Time against error](../images/compression.png)\n")
    sparse = [row for row in newest(folder / "blocksparse.jsonl", "servers", "density", "contender") if row["servers"]]
    if sparse:
        what = f"{sparse[0]['workers']} workers, {sparse[0]['servers']} servers, links of {sparse[0]['rate']}"
        parts += [f"## Block-sparse: {what}\n", table(blocksparse.COLUMNS, blocksparse.cells(sparse))]
    trained = newest(folder / "compression_training.jsonl", "task", "contender", "seed")
    if trained:
        config = trained[-1]["config"]
        parts += [
            "## Training\n",
            paragraph(
                f"Final loss (mean of the last tenth of {config['steps']} steps), mean and standard deviation of"
                f" {config['seeds']} seeds; {config['workers']} workers, {config['servers']} servers at"
                f" {config['rate']}. {where(trained)}"
            ),
        ]
        for task in dict.fromkeys(row["task"] for row in trained):
            parts += [f"### {task}\n", training([row for row in trained if row["task"] == task], task)]
        parts.append("![Loss by step and by time](../images/compression-training.png)\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--folder", type=Path, default=report.OUT, help="with the results")
    parser.add_argument("--page", type=Path, default=PAGE)
    arguments = parser.parse_args()
    arguments.page.write_text(page(arguments.folder))
    print(f"wrote {arguments.page}")


if __name__ == "__main__":
    main()
