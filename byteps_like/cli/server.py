"""`byteps-like server`: one summation server, in the foreground."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(add_completion=False)
_EPILOG = """
Start one per node, on spare CPU machines or beside the workers. Job and secret come from the environment
(BYTEPS_LIKE_JOB, BYTEPS_LIKE_SECRET_FILE); the server waits for its scheduler to come up.

[bold]Example[/bold]  BYTEPS_LIKE_SECRET_FILE=secret byteps-like server --scheduler node1:7077
"""


@app.command(epilog=_EPILOG)
def server(
    scheduler: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The job's scheduler.")] = None,
    job: Annotated[str | None, typer.Option(help="The job's name.")] = None,
    host: Annotated[str | None, typer.Option(help="Own address, as the workers reach it.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="Threads; by default by cores.")] = None,
) -> None:
    """Runs one summation server until its job has ended."""
    from byteps_like.server.process import run_server, server_config

    config = server_config(scheduler=scheduler, job=job, host=host, port=port, shards=shards)
    raise typer.Exit(run_server(config))
