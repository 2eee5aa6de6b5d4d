"""`byteps-like schedule`: lists, checks and draws the algorithms of collectives."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from byteps_like.collectives import library
from byteps_like.collectives.planning import draw, timeline
from byteps_like.collectives.planning.timeline import TimedMessage
from byteps_like.collectives.schedules import count
from byteps_like.collectives.schedules.schedule import Kind, Layout, RankSchedule
from byteps_like.errors import InvalidArgumentError

app = typer.Typer(no_args_is_help=True, help="Lists, checks, draws and explains the algorithms of collectives.")
_WIDE = 8  # ranks; beyond that a column for each does not fit

Ranks = Annotated[int, typer.Option("-n", "--ranks", min=1, max=128, help="Number of ranks, one per host.")]
Hosts = Annotated[str, typer.Option("--hosts", metavar="2x4|4,2,2", help="Number of ranks per host; overrides -n.")]


@app.command("list")
def list_all(
    ranks: Ranks = 8,
    hosts: Hosts = "",
) -> None:
    """Lists the algorithms of each collective with their rounds, messages and volume (in sections) per rank."""
    layout = layout_of(ranks, hosts)
    table = Table(box=None, title=f"{layout.size} ranks on {len(layout.members)} hosts", title_justify="left")
    for heading in ("collective", "algorithm", "rounds", "messages", "sections", ""):
        table.add_column(heading, justify="right" if heading in ("rounds", "messages", "sections") else "left")
    for row in library.algorithms():
        name = row.name + (":1" if row.name == "multi_ring" else "")
        reason = library.why_unavailable(row.kind, name, layout)
        if reason:
            table.add_row(row.kind, name, "", "", "", reason, style="dim")
            continue
        cost = library.cost(row.kind, name, layout)
        table.add_row(row.kind, name, str(cost.rounds), str(cost.messages), _share(cost.sections), "")
    Console().print(table)


@app.command(no_args_is_help=True)
def show(
    algorithm: Annotated[str, typer.Argument(help="Name of the algorithm, as in `schedule list`.")],
    ranks: Ranks = 4,
    kind: Annotated[Kind | None, typer.Option(help="Collective; default: the first that has the algorithm.")] = None,
    hosts: Hosts = "",
    root: Annotated[int, typer.Option(min=0, help="Root of a broadcast, reduce, scatter or gather.")] = 0,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the schedule to this file.")] = None,
) -> None:
    """Checks a schedule on all ranks, and prints its messages by round and the volume that each rank sends.

    A cell shows what a rank sends: 2→3 is chunk 2 to rank 3, +2→3 is added there, 2→3! completes the sum.
    """
    layout, found = layout_of(ranks, hosts), kind or _first_kind(algorithm)
    schedules = [library.rank_schedule(found, algorithm, rank, layout, root) for rank in range(layout.size)]
    messages = timeline.messages(found, schedules)
    console = Console()
    if layout.size <= _WIDE:
        console.print(_rounds(messages, layout.size))
    console.print(_counts(schedules, layout))
    rounds = max((message.round for message in messages), default=0)
    summary = f"{found} by {algorithm}, {layout.size} ranks: checked, {rounds} rounds, {len(messages)} messages"
    console.print(summary)
    if svg is not None:
        cost = library.cost(found, algorithm, layout)
        caption = f"{rounds} rounds; busiest rank: {cost.messages} messages, {_share(cost.sections)} sections"
        svg.write_text(draw.svg(f"{found} by {algorithm}", caption, messages, layout), encoding="utf-8")
        console.print(f"drawn in {svg}")


@app.command()
def explain(
    kind: Annotated[Kind, typer.Argument(help="Collective.")],
    nbytes: Annotated[int, typer.Argument(min=0, help="Size in bytes of the larger of its two buffers.")],
    ranks: Ranks = 4,
    hosts: Hosts = "",
) -> None:
    """Shows which algorithm would be chosen with the settings of the environment, and why."""
    from byteps_like.collectives.selection.selector import Selector
    from byteps_like.config import Config

    config = Config.from_env()
    selector = Selector.from_settings(config.collective_algorithm, config.collective_table)
    print(selector.explain(kind, nbytes, layout_of(ranks, hosts)))


def layout_of(ranks: int, hosts: str) -> Layout:
    """One rank on each host, or "2x4": two hosts of four, or "4,2,2": three hosts. Raises InvalidArgumentError."""
    if not hosts:
        return Layout(tuple(range(ranks)))
    try:
        if "x" in hosts:
            count, each = map(int, hosts.split("x"))
            sizes = [each] * count
        else:
            sizes = [int(size) for size in hosts.split(",")]
    except ValueError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InvalidArgumentError(f"--hosts {hosts} is not valid; write 2x4 (two hosts of four ranks) or 4,2,2")
    return Layout(tuple(host for host, size in enumerate(sizes) for _ in range(size)))


def _first_kind(algorithm: str) -> Kind:
    bare = algorithm.partition(":")[0]
    kinds = [row.kind for row in library.algorithms() if row.name == bare]
    if not kinds:
        raise InvalidArgumentError(f"there is no algorithm {algorithm!r}; see `byteps-like schedule list`")
    return kinds[0]


def _rounds(messages: list[TimedMessage], size: int) -> Table:
    table = Table(box=None, show_lines=False)
    table.add_column("round", justify="right", style="dim")
    for rank in range(size):
        table.add_column(f"rank {rank}")
    for number in range(1, max((message.round for message in messages), default=0) + 1):
        cells: list[list[str]] = [[] for _ in range(size)]
        for message in messages:
            if message.round == number:
                mark = "+" if message.reduces else ""
                cells[message.source].append(f"{mark}{message.label}→{message.target}{'!' if message.final else ''}")
        table.add_row(str(number), *("\n".join(cell) for cell in cells))
    return table


def _counts(schedules: list[RankSchedule], layout: Layout) -> Table:
    table = Table(box=None)
    for heading in ("rank", "host", "steps", "messages", "sections", "to other hosts", "scratch chunks"):
        table.add_column(heading, justify="right")
    everywhere, across = count.sent(schedules), count.sent(schedules, layout)
    for rank, schedule in enumerate(schedules):
        counted = (everywhere[rank].messages, _share(everywhere[rank].sections), _share(across[rank].sections))
        numbers = (rank, layout.place(rank)[0], len(schedule.steps), *counted, len(schedule.scratch))
        table.add_row(*map(str, numbers))
    return table


def _share(sections: Fraction) -> str:
    if sections.denominator == 1 or sections.denominator > 64:
        return f"{float(sections):.4g}"
    return f"{sections.numerator}/{sections.denominator}"
