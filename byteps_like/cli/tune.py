"""`byteps-like tune`: measures collectives on this cluster, to choose algorithms by measurement."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.measured_table import MeasuredTable, canonical
from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError

if TYPE_CHECKING:
    from byteps_like.collectives.selection.tune import Timing

app = typer.Typer(
    no_args_is_help=True, help="Measures collectives on this cluster, to choose algorithms by measurement."
)


@app.callback()
def _root() -> None:
    """Keeps `collectives` a command of its own while there is no other."""


@app.command(
    epilog="[bold]Example[/bold]  byteps-like run -n 4 -s 0 -- byteps-like tune collectives table.json, "
    "then BYTEPS_LIKE_COLLECTIVE_TABLE=table.json"
)
def collectives(
    table: Annotated[Path, typer.Argument(help="Output JSON file; its entries for other layouts are kept.")],
    kinds: Annotated[str, typer.Option(metavar="all_reduce,...", help="Collectives to measure; default: all.")] = "",
    largest: Annotated[int, typer.Option(min=256, help="Largest size in bytes.")] = 64 << 20,
    repeats: Annotated[
        int,
        typer.Option(
            min=1,
            help="Minimum number of measurements per case; their median counts. Quick cases are measured more often.",
        ),
    ] = 7,
) -> None:
    """Measures every algorithm of every collective; run it as every worker of a job.

    Rank 0 writes the table. Then name it in the setting `collective_table` on all ranks.
    """
    from byteps_like.collectives.selection.tune import SIZES, TuneOptions, layout_of, tune
    from byteps_like.control.hosts.routes import host_id
    from byteps_like.worker.session import connect

    chosen = _kinds(kinds) or TuneOptions.kinds
    options = TuneOptions(chosen, tuple(size for size in SIZES if size <= largest), repeats)
    worker = connect(Config.from_env())
    try:
        group = worker.group("tune")
        layout = layout_of(group, host_id())
        found: list[Timing] = []
        measured = tune(group, layout, options, found.append)
        if group.rank == 0:
            save(table, measured, layout)
            Console().print(show(found))
            print(f"written to {table}; BYTEPS_LIKE_COLLECTIVE_TABLE={table} makes ranks use it")
        group.barrier().wait()
    finally:
        worker.close()


def save(path: Path, measured: MeasuredTable, layout: Layout) -> None:
    """Puts what was measured on a layout into the file, beside what is there of other layouts and kinds."""
    kept = MeasuredTable.load(path) if path.exists() else MeasuredTable()
    for kind, points in measured.worlds.get(canonical(layout), {}).items():
        kept.put(layout, kind, points)
    kept.save(path)


def show(timings: list[Timing]) -> Table:
    """The fastest algorithm of each collective and size, and the next one with its ratio."""
    table = Table(box=None)
    for heading in ("collective", "bytes", "fastest", "µs", "next", "ratio"):
        words = heading in ("collective", "fastest", "next")
        table.add_column(heading, justify="left" if words else "right", no_wrap=True)
    for kind, nbytes in dict.fromkeys((timing.kind, timing.nbytes) for timing in timings):
        same = [timing for timing in timings if (timing.kind, timing.nbytes) == (kind, nbytes)]
        first, *others = sorted(same, key=lambda timing: timing.seconds)
        after = (others[0].algorithm, f"{others[0].seconds / first.seconds:.2f}") if others else ("", "")
        table.add_row(kind, str(nbytes), first.algorithm, f"{first.seconds * 1e6:.1f}", *after)
    return table


def _kinds(text: str) -> tuple[Kind, ...]:
    try:
        return tuple(Kind(name.strip()) for name in text.split(",") if name.strip())
    except ValueError as error:
        raise InvalidArgumentError(f"--kinds {text}: {error}; use some of {', '.join(Kind)}") from error
