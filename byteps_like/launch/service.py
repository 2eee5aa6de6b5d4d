"""The scheduler and the servers of a job as the launcher starts them: their settings are all in the environment.

`byteps-like scheduler` and `byteps-like server` do the same for people. The library that reads their options takes
longer to import than all that these processes need. The members of the job are started as soon as the scheduler has an
address, while it still imports what it needs: they try again until it listens.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from byteps_like.config import Config, split_address
from byteps_like.errors import SystemCallError
from byteps_like.launch.exits import errors_in_one_line


def scheduler_command(told: int, deaths: int) -> list[str]:
    """Runs the scheduler, which writes its address and a line end to the descriptor `told` before it listens there, and
    reads from `deaths` the ids of members' processes that have ended, a line each."""
    return [sys.executable, "-m", __name__, "scheduler", str(told), str(deaths)]


def server_command() -> list[str]:
    """Runs one summation server."""
    return [sys.executable, "-m", __name__, "server"]


def main(role: str, told: str = "", deaths: str = "") -> int:
    """Runs the service until its job has ended, and returns its exit code."""
    if role == "server":
        from byteps_like.server.process import run_server, server_config

        return run_server(server_config())
    config = Config.from_env(role=role)
    with _reserved(config.scheduler) as address:
        _tell(int(told), address)
        from byteps_like.control.calls.scheduler import run_scheduler

        return run_scheduler(replace(config, scheduler=address), deaths=int(deaths))


@contextmanager
def _reserved(where: str) -> Iterator[str]:
    """Within the block, the address of a free port at the host of `where` is nobody else's, and gRPC can listen there:
    Linux lets sockets that ask for it share an address of which only one listens. Raises SystemCallError."""
    host, port = split_address("scheduler", where)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((host, port))
        except OSError as error:
            raise SystemCallError(f"can't listen on {where}: {error.strerror}") from error
        yield f"{where.rpartition(':')[0]}:{holder.getsockname()[1]}"


def _tell(told: int, address: str) -> None:
    os.write(told, address.encode() + b"\n")
    os.close(told)


if __name__ == "__main__":
    with errors_in_one_line():
        sys.exit(main(*sys.argv[1:]))
