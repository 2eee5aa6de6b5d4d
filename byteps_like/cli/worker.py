"""`byteps-like worker drain`: has a worker leave an elastic job. Workers themselves are started as any program."""

from __future__ import annotations

import typer

from byteps_like.cli import draining
from byteps_like.config import Config
from byteps_like.control.types import MemberRole

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Has workers leave an elastic job.")


@app.callback()
def _group() -> None:
    pass


@app.command(epilog="[bold]Example[/bold]  byteps-like worker drain 3 --scheduler node1:7077 --job digits")
def drain(
    rank: draining.Rank,
    scheduler: draining.Scheduler = None,
    job: draining.JobName = None,
    tls: draining.Tls = False,
    replace: draining.Replace = False,
    timeout: draining.Timeout = 60.0,
) -> None:
    """Asks worker N of a running elastic job to leave, and waits until it has.

    It leaves at its next commit() or check_host_updates(): no step is lost, no sample is lost or repeated, and its
    process ends with exit code 0. The environment gives scheduler, job and secret, as for byteps-like status.
    """
    from byteps_like.control.members.drains import DrainOrder

    config = Config.from_env(scheduler=scheduler, job=job, tls="on" if tls else None)
    raise typer.Exit(draining.drain(config, DrainOrder(MemberRole.WORKER, rank, replace=replace), timeout))
