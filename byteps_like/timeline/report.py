"""A trace in words: tables for a terminal, and the sentences that go with them."""

from __future__ import annotations

from collections import defaultdict
from statistics import fmean
from typing import TYPE_CHECKING, Any

from byteps_like.timeline.analysis import Analysis, MeasuredStep

if TYPE_CHECKING:
    from rich.console import Console

Row = tuple[str, ...]


def show(analysis: Analysis, console: Console) -> None:
    """Prints everything: where the steps went, who is late, servers, the slowest partitions."""
    for title, heading, rows in tables(analysis):
        console.print(title, style="bold", highlight=False)
        console.print(_table(heading, rows))
    for line in verdict(analysis):
        console.print(line, highlight=False)


def tables(analysis: Analysis) -> list[tuple[str, Row, list[Row]]]:
    """(title, headings, rows) of each table that has any rows."""
    found = [
        ("Where the step went, in the mean (ms)", *_ranks(analysis)),
        ("What was waited for, per step (ms)", *_waits(analysis)),
        ("Lateness beside the other ranks (ms)", *_lateness(analysis)),
        ("Servers: from the last contribution to the last result (ms)", *_servers(analysis)),
        ("The slowest partitions, from ready to received (ms)", *_slowest(analysis)),
    ]
    return [table for table in found if table[2]]


def verdict(analysis: Analysis) -> list[str]:
    """What it comes to, a sentence each."""
    if not analysis.steps:
        return ["no steps and no events of workers were recorded"]
    seconds, exposed = (fmean(getattr(step, name) for step in analysis.steps) for name in ("seconds", "exposed"))
    share = exposed / seconds if seconds else 0.0
    lines = [f"A step takes {seconds * 1e3:.2f} ms, of which {share:.0%} are exposed communication."]
    if analysis.straggler is None:
        return [*lines, "No rank holds the others up by more than 5 % of a step."]
    rank, why, behind = analysis.straggler
    what = "its gradients are ready" if why == "compute" else "its gradients arrive, once they are ready,"
    return [*lines, f"Straggler: rank {rank}: {what} {behind * 1e3:.2f} ms after the others' ({why})."]


def _ranks(analysis: Analysis) -> tuple[Row, list[Row]]:
    heading = ("rank", "steps", "step", "compute", "forward", "backward", "update", "exposed", "exposed %")
    by_rank: dict[str, list[MeasuredStep]] = defaultdict(list)
    for step in analysis.steps:
        by_rank[f"rank {step.rank}"].append(step)
    if len(by_rank) > 1:
        by_rank["mean"] = analysis.steps
    return heading, [_means(name, steps) for name, steps in by_rank.items()]


def _means(name: str, steps: list[MeasuredStep]) -> Row:
    fields = ("seconds", "compute", "forward", "backward", "update", "exposed")
    means = [fmean(getattr(step, field) for step in steps) for field in fields]
    share = means[-1] / means[0] if means[0] else 0.0
    return (name, str(len(steps)), *(_ms(mean) for mean in means), f"{share:.0%}")


def _waits(analysis: Analysis) -> tuple[Row, list[Row]]:
    heading = ("rank", "cause", "whom", "per step", "share of the step")
    sums: dict[tuple[int, str, str], float] = defaultdict(float)
    of_rank: dict[int, list[MeasuredStep]] = defaultdict(list)
    for step in analysis.steps:
        of_rank[step.rank].append(step)
        for (cause, whom), seconds in step.waits.items():
            sums[step.rank, cause, whom] += seconds
    rows: list[Row] = []
    for (rank, cause, whom), seconds in sorted(sums.items(), key=lambda item: (item[0][0], -item[1])):
        steps = of_rank[rank]
        share = seconds / sum(step.seconds for step in steps)
        rows.append((f"rank {rank}", cause, whom, _ms(seconds / len(steps)), f"{share:.1%}"))
    return heading, rows


def _lateness(analysis: Analysis) -> tuple[Row, list[Row]]:
    heading = ("rank", "ready later by", "ready last in", "arrives later by")
    rows: list[Row] = [
        (f"rank {one.rank}", _ms(one.ready), f"{one.last:.0%}", _ms(one.link)) for one in analysis.lateness
    ]
    return heading, rows


def _servers(analysis: Analysis) -> tuple[Row, list[Row]]:
    rows: list[Row] = [(f"server {one.server}", str(one.rounds), _ms(one.seconds)) for one in analysis.servers]
    return ("server", "rounds", "mean"), rows


def _slowest(analysis: Analysis) -> tuple[Row, list[Row]]:
    heading = ("tensor", "part", "KiB", "total", "queued", "to the server", "for the others", "back")
    rows: list[Row] = []
    for one in analysis.slowest():
        times = (_ms(seconds) for seconds in (one.total, one.queued, one.sent, one.others, one.back))
        rows.append((one.tensor, str(one.part), f"{one.nbytes / 1024:.0f}", *times))
    return heading, rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def _table(heading: Row, rows: list[Row]) -> Any:
    from rich.table import Table

    words = {"rank", "cause", "whom", "tensor", "server"}
    table = Table(box=None)
    for name in heading:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table
