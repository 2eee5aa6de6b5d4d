"""`byteps-like status`: a live table of a job's members."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from byteps_like.config import Config
from byteps_like.control.types import MemberRole
from byteps_like.errors import DeadlineError, PeerLostError

if TYPE_CHECKING:
    from byteps_like.control.calls.status import MemberStatus
    from byteps_like.launch.monitor import StatusSample
    from byteps_like.server.figures import KeptFigures, RankFigures, Seconds

app = typer.Typer(add_completion=False)
_STATES = {"running": "green", "waiting": "yellow", "suspected": "bold yellow", "over": "bold red", "left": "dim"}
_COLUMNS = ("member", "process", "state", "GB sent", "received", "in place", "links")
_NUMBERS = _COLUMNS[3:6]
_KEPT_COLUMNS = ("rank", "clock", "counted", "late", "held", "inf/nan", "age", "waited (s)", "caused (s)")
_KEPT_NUMBERS = _KEPT_COLUMNS[1:6]
_QUIET = 2.0
"""Seconds without a heartbeat that are shown."""
_ROUTE, _LINKS = "route_", "links_"
_EPILOG = """
The environment gives scheduler, job and secret, as for a worker (see byteps-like config).

[bold]Example[/bold]  BYTEPS_LIKE_SECRET_FILE=secret byteps-like status --scheduler node1:7077 --job digits
"""


@app.command(epilog=_EPILOG)
def status(
    scheduler: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the job's scheduler.")] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="The job runs with --tls.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between updates.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the table once and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per update.")] = False,
) -> None:
    """Shows a job's members, their states and their rates, until Ctrl-C or the end of the job.

    "Sent" and "received" count payload bytes on links; "in place" counts bytes that servers sum in the workers' shared
    memory. "Links" counts a worker's links to servers and other workers, by transport.
    Of each store of values that servers keep, a table shows what became of each rank's contributions: how many counted,
    were late, were held for another version, or were not finite; how old they were (mean, greatest); how long the rank
    has waited, and others for it: for the first value, to read, for a version's other contributions, for a change of
    policy.
    Exits with code 1 if no scheduler answers.
    """
    config = Config.from_env(scheduler=scheduler, job=job, tls="on" if tls else None)
    show = _as_json if as_json else _as_table if once or not sys.stdout.isatty() else _live
    try:
        show(_samples(config, interval, once))
    except KeyboardInterrupt:
        return
    except (PeerLostError, DeadlineError) as error:
        print(f"byteps-like: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def _samples(config: Config, interval: float, once: bool) -> Iterator[StatusSample]:
    """One sample per interval until the job is over: its scheduler has ended after it had answered."""
    from byteps_like.launch.kept import with_kept
    from byteps_like.launch.monitor import take_sample

    yield with_kept(config, take_sample(config))
    pause = threading.Event()
    while not once:
        pause.wait(interval)
        try:
            yield with_kept(config, take_sample(config))
        except PeerLostError:
            print("byteps-like: the job is over, its scheduler has ended", file=sys.stderr)
            return


def _as_json(samples: Iterator[StatusSample]) -> None:
    for sample in samples:
        kept = {name: asdict(figures) for name, figures in sample.kept.items()}
        print(json.dumps({**asdict(sample.status), "kept": kept}), flush=True)


def _as_table(samples: Iterator[StatusSample]) -> None:
    from rich.console import Console

    _each(samples, Console().print)


def _live(samples: Iterator[StatusSample]) -> None:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        _each(samples, lambda table: live.update(table, refresh=True))


def _each(samples: Iterator[StatusSample], show: Callable[[Any], None]) -> None:
    before = None
    for sample in samples:
        show(_shown(before, sample))
        before = sample


def _shown(before: StatusSample | None, now: StatusSample) -> Any:
    """The table of members, one for each store, and which servers are missing from those."""
    from rich.console import Group

    return Group(_table(before, now), *(_kept_table(name, one) for name, one in now.kept.items()), *now.silent)


def _kept_table(name: str, figures: KeptFigures) -> Any:
    """A row for each rank."""
    from rich.table import Table

    partitions = f"{figures.partitions} partition{'' if figures.partitions == 1 else 's'}"
    table = Table(title=f"\n{name} · {partitions}", title_justify="left", box=None, padding=(0, 1, 0, 0))
    for heading in _KEPT_COLUMNS:
        table.add_column(heading, justify="right" if heading in _KEPT_NUMBERS else "left", no_wrap=True)
    for rank, one in enumerate(figures.ranks):
        table.add_row(*_kept_cells(rank, one))
    return table


def _kept_cells(rank: int, one: RankFigures) -> list[str]:
    counts = (rank, one.clock, one.counted, one.late, one.held, one.not_finite)
    age = f"{one.staleness:.2f}, {one.oldest}"
    return [*map(str, counts), age, _waits(one.waited), _waits(one.awaited)]


def _waits(seconds: Seconds) -> str:
    """ "reading 1.20" and "version 0.03" below it: what was waited for, as far as it can be seen."""
    from byteps_like.timeline.records import AWAITED

    return "\n".join(f"{what} {long:.2f}" for what, long in zip(AWAITED, seconds, strict=True) if long >= 0.005)


def _table(before: StatusSample | None, now: StatusSample) -> Any:
    """A row for each member, no wider than 80 columns; below it what is said about some or all."""
    from rich.table import Table

    from byteps_like.launch.monitor import summary

    title, notes = f"job {now.status.job} · {summary(before, now)}", _notes(now)
    table = Table(
        title=title,
        caption=notes or None,
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    for heading in _COLUMNS:
        numbers = heading in _NUMBERS
        table.add_column(
            heading,
            justify="right" if numbers else "left",
            no_wrap=heading != "links",
            max_width=18 if heading == "process" else None,
        )
    for status in now.status.members:
        table.add_row(*_cells(status))
    return table


def _cells(status: MemberStatus) -> list[Any]:
    from rich.text import Text

    quiet = f" {status.heartbeat_age:.0f} s" if status.heartbeat_age >= _QUIET else ""
    return [
        _name(status),
        Text(f"{status.member.pid}@{status.member.host}", overflow="ellipsis"),
        Text(f"{status.state}{quiet}", _STATES.get(status.state, "")),
        _gigabytes(status.stats.get("payload_sent")),
        _gigabytes(status.stats.get("payload_received")),
        _gigabytes(status.stats.get("referenced")),
        _links(status.stats),
    ]


def _name(status: MemberStatus) -> str:
    member = status.member
    return f"{member.role} {member.rank}" if member.rank >= 0 else str(member.role)


def _notes(now: StatusSample) -> str:
    """How gradients travel, who waits for what, what the scheduler says."""
    members = now.status.members
    routes = sorted({name[len(_ROUTE) :] for each in members for name in each.stats if name.startswith(_ROUTE)})
    lines = [f"gradients by {', '.join(routes)}"] if routes else []
    lines += [_relayed(each) for each in members if each.member.rack and each.member.role is MemberRole.SERVER]
    lines += _copied(members)
    waits = ((each, each.waiting) for each in members)
    lines += [f"{_name(each)} waits for {w.get('name', '?')} round {w.get('round', '?')}" for each, w in waits if w]
    lines += _kept_out(now)
    return "\n".join([*lines, *([now.status.text] if now.status.text else [])])


def _copied(members: Sequence[MemberStatus]) -> list[str]:
    """ "values with a copy elsewhere: 6 of server 0, 8 of server 1; 1.20 GB went there"; nothing without copies."""
    servers = [each for each in members if each.member.role is MemberRole.SERVER]
    counts = [f"{each.stats['replicated']:.0f} of {_name(each)}" for each in servers if each.stats.get("replicated")]
    sent = _gigabytes(sum(each.stats.get("copied", 0.0) for each in servers))
    return [f"values with a copy elsewhere: {', '.join(counts)}; {sent} GB went there"] if counts else []


def _kept_out(now: StatusSample) -> list[str]:
    """ "kept out, having proven nothing: 12 by the scheduler, 3 by server 0"; nothing where nobody was."""
    from byteps_like.control.calls.entrance import kept_out

    who = [("the scheduler", now.status.stats), *((_name(each), each.stats) for each in now.status.members)]
    counts = [f"{count} by {name}" for name, stats in who if (count := kept_out(stats))]
    return [f"kept out, having proven nothing: {', '.join(counts)}"] if counts else []


def _relayed(status: MemberStatus) -> str:
    """What an aggregator has passed on, and got back."""
    up, down = (_gigabytes(status.stats.get(f"relayed_{way}", 0.0)) for way in ("up", "down"))
    return f"rack {status.member.rack} by {_name(status)}: {up} GB up, {down} GB down"


def _links(stats: Mapping[str, float]) -> str:
    """ "rdma 2, tcp 1": a worker's links to servers and to other workers, by transport."""
    counts = {name[len(_LINKS) :]: count for name, count in stats.items() if name.startswith(_LINKS)}
    return ", ".join(f"{transport} {count:.0f}" for transport, count in sorted(counts.items()))


def _gigabytes(count: float | None) -> str:
    return "" if count is None else f"{count / 1e9:.2f}"
