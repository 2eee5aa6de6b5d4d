"""`byteps-like chaos`: jobs to which bad things happen, and whether they keep the rules."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from byteps_like.launch.chaos.disturber import ChaosPlan
    from byteps_like.launch.options import RunOptions

app = typer.Typer(add_completion=False)

_KINDS = "worker,server,scheduler"
_EPILOG = """
[bold]Examples[/bold]  byteps-like chaos --sim --seeds 0:500

byteps-like chaos --sim --seed 4711 --shrink

byteps-like chaos --minutes 5 --every 0.5:2 --spawn 0.6 -n 8 -s 2

byteps-like chaos --minutes 10 --every 15 --max-gap 5 --min-goodput 0.85 -n 4 -s 2 -- python train.py
"""


@app.command(epilog=_EPILOG, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def chaos(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Command that each worker runs; default: sums.")
    ] = None,
    sim: Annotated[
        bool, typer.Option("--sim", help="Simulate the jobs: one thread each, and a clock of their own.")
    ] = False,
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Kill real processes of one job for so long.")] = None,
    every: Annotated[
        str, typer.Option(metavar="FROM:TO", help="Seconds between two that are killed; one number: exactly so many.")
    ] = "0.5:2",
    spawn: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of them whose place is taken at once; the others': later.")
    ] = 0.6,
    kinds: Annotated[str, typer.Option(help="Who is killed.")] = _KINDS,
    pauses: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of times when one is stopped for a while, and not killed.")
    ] = 0.0,
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, help="Number of workers.")] = 4,
    servers: Annotated[int, typer.Option("-s", "--servers", min=0, help="Number of servers.")] = 2,
    min_workers: Annotated[int, typer.Option(min=1, help="So many are there at any time.")] = 2,
    calm: Annotated[float, typer.Option(min=0.0, help="Seconds at first in which nobody is killed.")] = 10.0,
    steps: Annotated[
        str, typer.Option(metavar="REGEX", help="What workers print after each step; the group is its number.")
    ] = r"\bstep (\d+)",
    max_gap: Annotated[float | None, typer.Option(help="Fail if there is no new step for so many seconds.")] = None,
    min_goodput: Annotated[
        float | None, typer.Option(help="Fail if less of the time went into new steps, as a share.")
    ] = None,
    max_growth: Annotated[
        float | None, typer.Option(help="Fail if a process grows by more MiB after its first two minutes.")
    ] = None,
    max_descriptors: Annotated[
        int | None, typer.Option(help="Fail if it has so many more descriptors open, likewise.")
    ] = None,
    lab: Annotated[
        str, typer.Option(metavar="RATE", help="On emulated hosts, with links of this rate: 1gbit, ... Needs root.")
    ] = "",
    log_dir: Annotated[
        Path | None, typer.Option(help="Also write the output of each process to a file in this folder.")
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report there.")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="What happens follows from it; with --sim: run this one, print its trace.")
    ] = None,
    seeds: Annotated[
        str, typer.Option(metavar="FIRST:LAST", help="--sim: run those before LAST, and count.")
    ] = "0:100",
    shrink: Annotated[
        bool, typer.Option("--shrink", help="--sim --seed: the smallest job found that breaks a rule as well.")
    ] = False,
    control: Annotated[bool, typer.Option("--control", help="--sim: schedulers and what they are asked.")] = False,
    defect: Annotated[str, typer.Option(help="--sim: plant a defect that should be found; `list` lists them.")] = "",
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", min=1, help="--sim: number of threads; default: all cores.")
    ] = None,
) -> None:
    """Kills processes of an elastic job and reports how it went on, or simulates jobs on a network that fails.

    Exit code 1 if the job fails, or breaks a rule or a bound. The same seed makes the same things happen.
    """
    if sim == (minutes is not None):
        raise typer.BadParameter("say either --sim or --minutes", param_hint="--sim")
    if sim:
        from byteps_like.cli.chaos_simulated import simulate

        raise typer.Exit(0 if simulate(seed, seeds, defect, shrink, jobs, control) else 1)
    from byteps_like.launch.chaos.report import Bounds
    from byteps_like.launch.chaos.running import ChaosOptions, run_chaos
    from byteps_like.launch.exits import errors_in_one_line

    with errors_in_one_line():
        job = _job(command or [], workers, servers, min_workers, log_dir)
        how = _How(every, spawn, kinds, pauses, secrets.randbelow(10**6) if seed is None else seed)
        plan = _plan(how, (minutes or 0.0) * 60, calm, steps, {"worker": min_workers, "server": servers})
        bounds = Bounds(max_gap, min_goodput, max_growth, max_descriptors)
        code = run_chaos(ChaosOptions(job, plan, bounds, lab, json))
    raise typer.Exit(code)


@dataclass(frozen=True)
class _How:
    """As the options say it."""

    every: str
    spawn: float
    kinds: str
    pauses: float
    seed: int


def _job(command: list[str], workers: int, servers: int, least: int, log_dir: Path | None) -> RunOptions:
    from byteps_like.launch.chaos.running import SOAK
    from byteps_like.launch.chaos.soak import MOST_WORKERS
    from byteps_like.launch.elastic.crew import ElasticOptions
    from byteps_like.launch.options import RunOptions

    if least > workers:
        raise typer.BadParameter(f"{least} is more than -n {workers}", param_hint="--min-workers")
    if not command and workers > MOST_WORKERS:
        raise typer.BadParameter(f"the sums are of {MOST_WORKERS} workers at most", param_hint="--workers")
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    elastic = ElasticOptions(least, workers)
    environment = elastic.environment()
    return RunOptions(command or list(SOAK), workers, servers, environment=environment, log_dir=log_dir, quiet=True,
                      elastic=elastic)  # fmt: skip


def _plan(how: _How, seconds: float, calm: float, steps: str, least: dict[str, int]) -> ChaosPlan:
    from byteps_like.launch.chaos.disturber import ChaosPlan
    from byteps_like.launch.chaos.schedule import Violence

    kinds = tuple(how.kinds.split(","))
    if wrong := set(kinds) - set(_KINDS.split(",")):
        raise typer.BadParameter(f"{wrong.pop()!r} is none of {_KINDS}", param_hint="--kinds")
    violence = Violence(how.seed, _between(how.every), how.spawn, kinds, how.pauses)
    return ChaosPlan(violence, seconds, calm, _pattern(steps), least)


def _between(text: str) -> tuple[float, float]:
    first, colon, last = text.partition(":")
    try:
        low, high = float(first), float(last if colon else first)
    except ValueError:
        low = high = 0.0
    if not 0 < low <= high < float("inf"):
        raise typer.BadParameter(f"{text!r} is not FROM:TO in seconds, as 0.5:2", param_hint="--every")
    return low, high


def _pattern(text: str) -> re.Pattern[bytes]:
    try:
        pattern = re.compile(text.encode())
    except re.error as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint="--steps") from None
    if pattern.groups != 1:
        raise typer.BadParameter(f"{text!r} has {pattern.groups} groups, not one", param_hint="--steps")
    return pattern
