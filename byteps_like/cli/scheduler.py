"""`byteps-like scheduler`: runs the scheduler of one job in the foreground."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Annotated

import typer

from byteps_like.config import Config, split_address
from byteps_like.errors import ConfigError

app = typer.Typer(add_completion=False)
_EPILOG = """
Every member needs the scheduler's address (BYTEPS_LIKE_SCHEDULER), the job's name (BYTEPS_LIKE_JOB) and its secret
(BYTEPS_LIKE_SECRET_FILE: a file that only you can read; make it with
python -c 'import secrets; print(secrets.token_hex(32))').

[bold]Example[/bold]  BYTEPS_LIKE_SECRET_FILE=secret byteps-like scheduler --port 7077 -n 4 -s 2
"""


@app.command(epilog=_EPILOG)
def scheduler(
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: as configured, else all.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free port.")] = None,
    workers: Annotated[
        int | None, typer.Option("-n", "--workers", min=1, help="Number of workers; default: as the workers say.")
    ] = None,
    servers: Annotated[
        int | None, typer.Option("-s", "--servers", min=0, help="Number of servers; default: as the workers say.")
    ] = None,
    job: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Encrypt, as all members of the job do.")] = False,
    state: Annotated[
        str | None,
        typer.Option(
            metavar="PLACE",
            help="Where to keep decisions, so that the next scheduler goes on from them: a folder, or an etcd as"
            " etcd://host:port,host:port/prefix.",
        ),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="With --state: wait until the scheduler that rules there ends.")
    ] = False,
) -> None:
    """Runs the scheduler of one job until the job has ended.

    Exits with code 1 if the job failed.
    """
    from byteps_like.control.calls.scheduler import run_scheduler

    config = Config.from_env(
        role="scheduler", job=job, world_size=workers, num_servers=servers, tls="on" if tls else None,
        scheduler_state=state,
    )  # fmt: skip
    if standby and not config.scheduler_state:
        raise typer.BadParameter("there is nothing to wait for without --state", param_hint="--standby")
    config = replace(config, scheduler=listen_on(config.scheduler, host, port))
    raise typer.Exit(run_scheduler(config, lambda address: _announce(address, config), standby=standby))


def listen_on(configured: str, host: str | None, port: int | None) -> str:
    """Where to listen: the configured address with what the options say instead; by default anywhere, any port. Of
    several addresses the port counts, which must then be the same. Raises ConfigError."""
    addresses = [split_address("scheduler", address.strip()) for address in configured.split(",") if configured]
    default_host, default_port = addresses[0] if len(addresses) == 1 else ("0.0.0.0", 0)
    if len(addresses) > 1 and port is None:
        default_port = addresses[0][1]
        if any(other != default_port for _, other in addresses):
            raise ConfigError(f"scheduler={configured!r} has several ports: say --port, and --host if need be")
    host = default_host if host is None else host
    return f"{f'[{host}]' if ':' in host else host}:{default_port if port is None else port}"


def _announce(address: str, config: Config) -> None:
    print(f"scheduler of job {config.job!r} listens on {address} (pid {os.getpid()})", flush=True)
