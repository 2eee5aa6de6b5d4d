"""`byteps-like server`: runs one summation server in the foreground, or has one leave its job."""

from __future__ import annotations

from typing import Annotated

import typer

from byteps_like.cli import draining
from byteps_like.config import Config
from byteps_like.control.types import MemberRole

app = typer.Typer(add_completion=False)
_EPILOG = """
Start one server per host, on CPU machines without workers or on the hosts of the workers. The environment gives the
job and its secret (BYTEPS_LIKE_JOB, BYTEPS_LIKE_SECRET_FILE). The server waits until its scheduler is up.

[bold]Example[/bold]  BYTEPS_LIKE_SECRET_FILE=secret byteps-like server --scheduler node1:7077
"""


@app.callback(epilog=_EPILOG, invoke_without_command=True)
def server(
    context: typer.Context,
    scheduler: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Address of the job's scheduler.")] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    host: Annotated[str | None, typer.Option(help="Address at which workers reach this server.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = None,
    rack: Annotated[
        str | None, typer.Option(help="Sum for the workers of this rack, and pass the sums on to servers without one.")
    ] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="Number of threads; default: by number of cores.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, as all members of the job do.")] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="Module with functions that run on this server; repeatable."),
    ] = None,
) -> None:
    """Runs one summation server until its job has ended."""
    if context.invoked_subcommand is not None:
        return
    from byteps_like.server.process import run_server, server_config

    named = ",".join(imports) if imports else None
    config = server_config(
        scheduler=scheduler,
        job=job,
        host=host,
        port=port,
        rack=rack,
        shards=shards,
        server_imports=named,
        tls="on" if tls else None,
    )
    raise typer.Exit(run_server(config))


@app.command(epilog="[bold]Example[/bold]  byteps-like server drain 1 --scheduler node1:7077 --job digits")
def drain(
    rank: draining.Rank,
    scheduler: draining.Scheduler = None,
    job: draining.JobName = None,
    tls: draining.Tls = False,
    replace: draining.Replace = False,
    timeout: draining.Timeout = 60.0,
) -> None:
    """Asks server N of a running elastic job to leave, and waits until it has.

    Other servers take over what it sums and keeps: no call fails and no step is lost. Its process ends with exit code
    0. The environment gives scheduler, job and secret, as for byteps-like status.
    """
    from byteps_like.control.members.drains import DrainOrder

    config = Config.from_env(scheduler=scheduler, job=job, tls="on" if tls else None)
    raise typer.Exit(draining.drain(config, DrainOrder(MemberRole.SERVER, rank, replace=replace), timeout))
