"""A whole job in one process: scheduler, native servers with their doors, native and portable workers on loopback."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.control.hosts.routes import host_id, listen_urls
from byteps_like.control.types import Member, MemberRole
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError
from byteps_like.portable.connect import connect
from byteps_like.portable.join import join
from byteps_like.server.door import open_door
from byteps_like.server.native import NativeServer
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.engine.native import NativeWorker

DEADLINE = 30.0
T = TypeVar("T")
Maker = Callable[[Config], Worker]


class ServerMember:
    """What a server process does, on a thread: joins, serves each world, ends with the job. `host`: where it says it
    is; "": here."""

    def __init__(self, config: Config, shards: int, host: str = "", rack: str = "") -> None:
        self.client = ControlClient(config)
        unique = secrets.token_hex(8)
        self.native = NativeServer(
            config.job, self.client.secret, listen_urls("auto", "127.0.0.1", 0, unique), shards=shards,
            on_event=self._on_event,
        )  # fmt: skip
        self.door = open_door("127.0.0.1", config.job, self.client.secret, shards, f"inproc://{unique}")
        self.member = Member(
            MemberRole.SERVER, -1, host or host_id(), "localhost", 1, self.native.urls, shards, self.door.url,
            gbps=config.link_gbps, rack=rack,
        )  # fmt: skip
        self.config = config
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _on_event(self, epoch: int, error: BytePSLikeError, fatal: bool) -> None:
        if fatal:
            self.client.report(error, epoch)

    def _serve(self) -> None:
        try:
            world = self.client.join(self.member, DEADLINE)
            while True:
                rank = self.client.rank
                self.native.set_view(world, rank, self.config.stall_warning, self.config.stall_timeout)
                self.door.set_view(world, rank)
                self.client.ready(world)
                world = self.client.next_view()
        except BytePSLikeError:
            return  # the job has ended

    def stop(self) -> None:
        self.client.leave()
        self.thread.join(DEADLINE)
        self.door.stop()
        self.native.stop()


class MixedJob:
    """Rank by rank, a worker of each of `makers` (two native and two portable ones); the last `others` are not ours.

    Without others the job starts at once; else `start` joins, when the others do. `hosts`, `racks`: those of servers.
    """

    def __init__(
        self,
        makers: Sequence[Maker] | None = None,
        others: int = 0,
        hosts: Sequence[str] = ("", ""),
        racks: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        self.makers = [native_worker, native_worker, join, join] if makers is None else list(makers)
        self.workers: list[Worker] = []
        secret = secrets.token_hex(16)
        common = {"job": "mixed", "secret": secret, "num_servers": len(hosts), "world_size": len(self.makers) + others}
        self.scheduler = SchedulerServer(Config(role="scheduler", **(common | settings)))
        self.common = common | settings | {"scheduler": self.scheduler.start()}
        server = Config(role="server", **self.common)
        of = racks or [""] * len(hosts)
        self.servers = [ServerMember(server, 2, host, rack) for host, rack in zip(hosts, of, strict=True)]
        if not others:
            self.start()

    def start(self) -> None:
        self.workers = in_threads(
            [lambda rank=rank, make=make: make(self.config(rank)) for rank, make in enumerate(self.makers)]
        )

    def environment(self, rank: int) -> dict[str, str]:
        """Of a worker process."""
        names = {name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS", "DMLC"))}
        settings = self.common | {"rank": rank}
        return names | {f"BYTEPS_LIKE_{name.upper()}": str(value) for name, value in settings.items()}

    def config(self, rank: int) -> Config:
        return Config(role="worker", rank=rank, **self.common)

    def everybody(self, call: Callable[[Worker], T]) -> list[T]:
        return in_threads([lambda worker=worker: call(worker) for worker in self.workers])

    def close(self) -> None:
        in_threads([worker.close for worker in self.workers])
        in_threads([server.stop for server in self.servers])
        self.scheduler.stop()


def native_worker(config: Config, host: str = "", rack: str = "") -> Worker:
    """`host`: where it says it is; "": here. `rack`: its rack."""
    client = ControlClient(config)
    communicator = Communicator(config, config.job, client.secret)
    communicator.own = replace(communicator.own, host_id=host or communicator.own.host_id)
    urls = communicator.own.urls
    member = Member(
        MemberRole.WORKER, config.rank, host or host_id(), "localhost", 1, urls, gbps=config.link_gbps, rack=rack
    )
    world = client.join(member, DEADLINE)
    return NativeWorker(config, client, world, communicator)


def portable_through(config: Config, way: Callable[[str], str]) -> Worker:
    """A portable worker that reaches every door by the address that `way` gives for it."""
    client = ControlClient(config)
    world = client.join(Member(MemberRole.WORKER, config.rank, host_id(), "localhost", 1), DEADLINE)
    servers = tuple(replace(server, door=way(server.door)) for server in world.servers)
    return connect(config, client, replace(world, servers=servers))


def in_threads(calls: Sequence[Callable[[], T]]) -> list[T]:
    if not calls:
        return []
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(DEADLINE * 2) for future in [pool.submit(call) for call in calls]]


def reduce(worker: Worker, name: str, array: np.ndarray, op: Op, *, root: int = 0, dtype: DType | None = None) -> Any:
    """push_pull of a copy; returns it."""
    array = array.copy()
    code = DType[array.dtype.name.upper()] if dtype is None else dtype
    (declared,) = worker.declare([TensorSpec(name, code, array.shape)])
    worker.push_pull(declared, array.ctypes.data, op, root=root).wait(DEADLINE)
    return array


WORLDS: dict[str, list[Maker]] = {
    "portable": [join] * 3,
    "native": [native_worker] * 3,
    "mixed": [native_worker, join, native_worker],
}
"""Worlds of three ranks, by what they are."""
