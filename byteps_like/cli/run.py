"""`byteps-like run`: runs a whole job on this host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from byteps_like.launch.elastic.crew import ElasticOptions

app = typer.Typer(add_completion=False)

_EXAMPLES = """
[bold]Examples[/bold]

  byteps-like run -n 2 -s 1 -- python train.py --epochs 3

  byteps-like run -n 4 -s 2 --env BYTEPS_LIKE_STALL_TIMEOUT=30 --log-dir logs -- python train.py

  byteps-like run -n 2 --min-workers 1 --max-workers 4 --discover ./hosts.sh --start 'ssh {host} {command}' -- python
  train.py

  byteps-like run -n 4 -s auto -- python train.py   (on one host: one server; for clusters see docs/how-to/placement.md)

The exit code is that of the process that failed first (128 + signal if a signal ended it), 124 after --timeout,
130 after Ctrl-C. The first Ctrl-C interrupts the workers (SIGINT), the second kills all processes. Workers read
their rank and the job's address from the environment (BYTEPS_LIKE_RANK and others; see byteps-like config).
"""


def _environment(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair.lstrip("="):
            raise typer.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--env")
    return dict(pair.split("=", 1) for pair in pairs)


def parse_servers(text: str) -> int | None:
    """The number, None for "auto"."""
    if text == "auto":
        return None
    if not text.isdigit():
        raise typer.BadParameter(f"{text!r} is neither a number nor auto", param_hint="--servers")
    return int(text)


def _server_count(text: str, workers: int, quiet: bool) -> int:
    """As many as are asked for, or improve speed."""
    if (count := parse_servers(text)) is not None:
        return count
    from byteps_like.launch.fleet import choose

    fleet = choose([1.0], 1, workers)
    if not quiet:
        typer.echo(f"byteps-like: {fleet.why}", err=True)
    return len(fleet.hosts)


MaxWorkers = Annotated[
    int | None,
    typer.Option(min=1, help="Replace workers that die, and let others join, up to so many: an elastic job."),
]
Spares = Annotated[
    int, typer.Option(min=0, help="Of an elastic job: worker processes beyond --max-workers, ready to take over.")
]
Discover = Annotated[
    str, typer.Option(metavar="SCRIPT", help="Of an elastic job: a script that prints host:slots lines.")
]
MinWorkers = Annotated[
    int | None,
    typer.Option(min=1, help="Let the others finish while so many workers are left; default: a failure ends it."),
]
Tls = Annotated[bool, typer.Option("--tls", help="Encrypt links between hosts, and calls to scheduler and servers.")]
MaxDeaths = Annotated[
    int,
    typer.Option(min=0, help="Replace who dies no more often than so many times a minute; 0: any number of times."),
]
State = Annotated[
    str,
    typer.Option(
        metavar="PLACE",
        help="Where the scheduler keeps its decisions: a folder, or an etcd as etcd://host:port,host:port/prefix;"
        " default: a temporary folder.",
    ),
]
NoPin = Annotated[bool, typer.Option("--no-pin", help="Do not pin workers to the cores next to their GPUs.")]
Start = Annotated[
    str, typer.Option(metavar="TEMPLATE", help="What starts workers on other hosts, as in 'ssh {host} {command}'.")
]


@app.command(epilog=_EXAMPLES, no_args_is_help=True, context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Command that each worker runs.")],
    workers: Annotated[int, typer.Option("-n", "--workers", min=1, help="Number of workers.")] = 1,
    servers: Annotated[
        str, typer.Option("-s", "--servers", help="Number of summation servers; auto: as many as improve speed.")
    ] = "1",
    shards: Annotated[int | None, typer.Option(min=1, help="Threads per server; default: by number of cores.")] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Environment variable for every process; repeatable.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(help="Also write the output of each process to a file in this folder.")
    ] = None,
    no_prefix: Annotated[bool, typer.Option("--no-prefix", help="Do not prefix output with role and rank.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no messages except the final result.")] = False,
    timeout: Annotated[float | None, typer.Option(min=0.0, help="End the job after this many seconds.")] = None,
    grace: Annotated[float, typer.Option(min=0.0, help="Seconds between SIGTERM and SIGKILL.")] = 5.0,
    job: Annotated[str, typer.Option(help="Name of the job; default: a new one.")] = "",
    state: State = "",
    tls: Tls = False,
    min_workers: MinWorkers = None,
    max_workers: MaxWorkers = None,
    spares: Spares = 0,
    discover: Discover = "",
    start: Start = "",
    max_deaths: MaxDeaths = 3,
    no_pin: NoPin = False,
) -> None:
    """Starts scheduler, servers and workers on this host and shows their output, each line prefixed with role and rank.

    The first failure ends the job and is shown last, with its traceback, unless --min-workers lets the others finish
    (docs/how-to/survive-losses.md), or others take its place (docs/how-to/elastic.md). No process of the job outlives
    this command.
    """
    from byteps_like.launch.exits import errors_in_one_line
    from byteps_like.launch.options import RunOptions
    from byteps_like.launch.run import run_job

    elastic = _elastic(workers, min_workers, max_workers, Elsewhere(spares, discover, start))
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    options = RunOptions(
        command=command,
        workers=workers,
        servers=_server_count(servers, workers, quiet),
        shards=shards,
        environment=_environment(env or []) | _settings(tls, elastic),
        log_dir=log_dir,
        prefix=not no_prefix,
        quiet=quiet,
        timeout=timeout,
        grace=grace,
        job=job,
        state=state,
        min_workers=min_workers,
        elastic=elastic,
        most_deaths=max_deaths,
        pin=not no_pin,
    )
    with errors_in_one_line():
        code = run_job(options)
    raise typer.Exit(code)


def _settings(tls: bool, elastic: ElasticOptions | None) -> dict[str, str]:
    """Those of all processes that follow from the options."""
    return ({"BYTEPS_LIKE_TLS": "on"} if tls else {}) | ({} if elastic is None else elastic.environment())


@dataclass(frozen=True)
class Elsewhere:
    """Workers of an elastic job beside those of this host."""

    spares: int
    discover: str
    start: str


def _elastic(workers: int, least: int | None, most: int | None, elsewhere: Elsewhere) -> ElasticOptions | None:
    from byteps_like.launch.elastic.crew import ElasticOptions

    if most is None and not elsewhere.spares and not elsewhere.discover:
        if elsewhere.start:
            raise typer.BadParameter("it is for the hosts that --discover finds", param_hint="--start")
        if least is not None and least > workers:
            raise typer.BadParameter(f"{least} of {workers} workers", param_hint="--min-workers")
        return None
    most, least = workers if most is None else most, least or 1
    if least > most:
        raise typer.BadParameter(f"{least} is more than --max-workers {most}", param_hint="--min-workers")
    if workers > most:
        raise typer.BadParameter(f"{workers} is more than --max-workers {most}", param_hint="--workers")
    if elsewhere.start and "{command}" not in elsewhere.start.split():
        raise typer.BadParameter(f"{elsewhere.start!r} has no word {{command}}", param_hint="--start")
    return ElasticOptions(least, most, elsewhere.spares, elsewhere.discover, elsewhere.start)
