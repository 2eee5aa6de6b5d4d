"""Real jobs for tests: scheduler and servers in this process, ranks in processes of a pool."""

from __future__ import annotations

import importlib
import os
import secrets
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Protocol

from byteps_like.config import Config
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.server.process import EmbeddedServer
from tests.multiprocess import warm
from tests.ports import HeldPorts

DEADLINE = 60.0


class Ranks(Protocol):
    """Something that ranks can join."""

    ranks: int

    def rank_settings(self, rank: int) -> dict[str, Any]:
        """What `bps.init` is given on a rank."""


class Cluster:
    """A scheduler and `servers` servers on loopback; `settings` are those of the job."""

    def __init__(self, ranks: int, servers: int, start: bool = True, **settings: Any) -> None:
        """Without `start` the servers are the caller's to make."""
        self.ranks = ranks
        self._settings = {"secret": secrets.token_hex(32), "job": f"test-{secrets.token_hex(4)}", **settings}
        self._settings |= {"world_size": ranks, "num_servers": servers, "host": "127.0.0.1"}
        self._scheduler = SchedulerServer(self.config(role="scheduler", scheduler="127.0.0.1:0"))
        self._settings["scheduler"] = self._scheduler.start()
        made = servers if start else 0
        self.servers = [EmbeddedServer(self.config(role="server", shards=2)) for _ in range(made)]
        for server in self.servers:
            server.start()

    def config(self, **more: Any) -> Config:
        """The configuration of one member."""
        return Config.from_env({}, **(self._settings | more))

    def rank_settings(self, rank: int) -> dict[str, Any]:
        """What `bps.init` is given on a rank."""
        return {**self._settings, "rank": rank, "join_timeout": 30.0}

    def close(self) -> None:
        """Stops everything."""
        for server in self.servers:
            server.stop()
        self._scheduler.stop()


class Processes:
    """A job whose scheduler ("scheduler") and servers ("server", "server1", ...) are processes of their own."""

    def __init__(self, ranks: int, servers: int = 1, **settings: Any) -> None:
        self.ranks = ranks
        self._servers, self._more = servers, settings
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Processes:
        self._held = HeldPorts()
        self._settings = {
            "scheduler": f"127.0.0.1:{self._held.numbers[0]}",
            "secret": "s" * 64,
            "job": "killed",
            "num_servers": self._servers,
            "host": "127.0.0.1",
            **self._more,
        }
        environment = {f"BYTEPS_LIKE_{name.upper()}": str(value) for name, value in self._settings.items()}
        environment["BYTEPS_LIKE_WORLD_SIZE"] = str(self.ranks)
        self._environment = {**os.environ, **environment}
        for name in ("scheduler", *("server" + (str(i) if i else "") for i in range(self._servers))):
            self.start(name)
        return self

    def start(self, name: str) -> None:
        """Starts the scheduler, or a server, whose name tells so."""
        command = [sys.executable, "-m", "byteps_like", name.rstrip("0123456789")]
        self.processes[name] = subprocess.Popen(command, env=self._environment)

    def rank_settings(self, rank: int) -> dict[str, Any]:
        return {**self._settings, "world_size": self.ranks, "rank": rank, "join_timeout": 30.0}

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        self._held.close()


class Pool:
    """Processes that run bodies as ranks of one world after the other; `context`: how they are started."""

    def __init__(self, size: int, context: Any = None) -> None:
        context = context or warm.context()
        self._pipes: list[Connection] = []
        self.processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def run(self, cluster: Ranks, body: Callable[..., Any], *args: Any, together: bool = False) -> list[Any]:
        """`body(bps, rank, size, *args)` on every rank of `cluster`: the results, or an AssertionError with all.

        `together`: no rank leaves before all have ended, since who leaves is lost to those that still want something.
        """
        answers = self.answers(cluster, body, *args, together=together)
        failures = [f"--- rank {rank} ---\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        assert not failures, "\n".join(failures)
        return [result for _, result in answers]

    def answers(
        self, cluster: Ranks, body: Callable[..., Any], *args: Any, together: bool = False
    ) -> list[tuple[bool, Any]]:
        """The same, with whatever became of each rank: (True, result) or (False, traceback)."""
        name = (body.__module__, body.__qualname__)
        for rank in range(cluster.ranks):
            self._pipes[rank].send((name, cluster.rank_settings(rank), args, together))
        return [self._answer(rank) for rank in range(cluster.ranks)]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        if not self._pipes[rank].poll(DEADLINE):
            return False, f"no answer within {DEADLINE:.0f} s"
        try:
            answer: tuple[bool, Any] = self._pipes[rank].recv()
        except EOFError:
            return False, "the process died"
        return answer

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes:
            process.kill()
            process.join()


@contextmanager
def job(ranks: int, servers: int, **settings: Any) -> Iterator[Cluster]:
    """A cluster for the length of a block."""
    cluster = Cluster(ranks, servers, **settings)
    try:
        yield cluster
    finally:
        cluster.close()


def _serve(pipe: Connection) -> None:
    import torch

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    while True:
        try:
            (module, name), settings, args, together = pipe.recv()
        except EOFError:
            return
        try:
            bps.init(**settings)
            body = importlib.import_module(module)
            for part in name.split("."):
                body = getattr(body, part)
            result = body(bps, bps.rank(), bps.size(), *args)
            if together:
                bps.barrier()
            bps.shutdown()
            pipe.send((True, result))
        except BaseException:  # noqa: BLE001 - whatever it is, the test shows it
            pipe.send((False, traceback.format_exc()))
            bps.shutdown()
