"""A process of one start of job "job", for test_two_starts.py: python -m tests.fault.one_start ROLE START RANK [URL].

ROLE: "server", with its door, or a worker: "native" of the server at URL, "portable" of the door there, "mesh" of the
other worker, whose addresses it reads first. A worker then reads how many rounds to make, again and again, and prints
what they came to. START is its start's incarnation, one letter.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import byteps_like._core as core
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.control.calls.door_keys import door_keys
from byteps_like.control.types import EventKind, Member, MemberRole, View, WatchEvent
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError
from byteps_like.portable.worker import PortableOptions, PortableWorker
from byteps_like.server.door import open_door
from byteps_like.worker.api import Declared, Partition, TensorSpec
from byteps_like.worker.standing import Standing

SECRET = b"s" * 32
WORKERS, SERVER = (11, 12), 13
COUNT, SECONDS = 10_000, 60.0
Round = Callable[[np.ndarray], None]


class Alone:
    """The control plane of a portable worker that has none: each rank cuts tensors alike."""

    def __init__(self) -> None:
        self._heard: list[Callable[[WatchEvent], None]] = []

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """One partition each."""
        return [Declared(spec, 1, (Partition(1, 0, spec.nbytes, 0, 0),)) for spec in specs]

    def on_event(self, callback: Callable[[WatchEvent], None]) -> None:
        """Is told of what the worker reports."""
        self._heard.append(callback)

    def report(self, error: BytePSLikeError, epoch: int) -> None:
        """Ends the job."""
        del epoch
        for callback in self._heard:
            callback(WatchEvent(EventKind.FAILED, "", error))

    def leave(self) -> None:
        """Nobody has to know."""

    waiting = meet = barrier = lambda *_: None


def server(start: bytes) -> None:
    """Serves until its standard input ends."""
    inproc = f"inproc://one-start-{os.getpid()}"
    store = core.Server("job", SECRET, ["tcp://127.0.0.1:0", inproc])
    store.set_world(start, 1, list(WORKERS), SERVER, 5.0, SECONDS, 0)
    door = open_door("127.0.0.1", "job", SECRET, 1, inproc)
    workers = tuple(Member(MemberRole.WORKER, rank, "h", "h", 1, number=WORKERS[rank]) for rank in range(2))
    servers = (Member(MemberRole.SERVER, 0, "h", "h", 1, number=SERVER),)
    door.set_view(View("job", 1, workers, servers, incarnation=start), 0)
    say({"native": store.urls[0], "portable": door.url})
    sys.stdin.read()


def native(start: bytes, rank: int, url: str) -> Round:
    """A worker over the native store."""
    shards = [(0, 0, [url], SERVER)]
    engine = core.Engine("job", SECRET, start, 1, rank, WORKERS[rank], 2, shards, 1 << 17, 1 << 20, 20.0, 5.0, SECONDS)
    engine.declare(int(DType.FLOAT32), [(1, 0, 4 * COUNT, 0)])
    return lambda values: done(engine.wait(engine.submit(0, values.ctypes.data, 0, 1, int(Op.SUM), 0, 0), SECONDS))


def portable(start: bytes, rank: int, url: str) -> Round:
    """A worker over the portable door."""
    keys, doors = door_keys(SECRET, start), (("server 0", url, SERVER),)
    worker = PortableWorker(PortableOptions("job", keys, start, 1, Standing(rank, WORKERS, rank, 2), doors), Alone())
    (declared,) = worker.declare([TensorSpec("w", DType.FLOAT32, (COUNT,))])
    return lambda values: worker.push_pull(declared, values.ctypes.data, Op.SUM).wait(SECONDS)


def mesh(start: bytes, rank: int) -> Round:
    """A worker without servers."""
    communicator = Communicator(Config.from_env({}, transport="tcp", host="127.0.0.1"), "job", SECRET)
    say({"mesh": communicator.own.urls[0]})
    urls = json.loads(sys.stdin.readline())
    peers = [replace(communicator.own, urls=(urls[peer],), number=WORKERS[peer]) for peer in range(2)]
    communicator.join(1, rank, peers, start)
    group = communicator.group("all")

    def call(values: np.ndarray) -> None:
        group.all_reduce(values.ctypes.data, values.ctypes.data, COUNT, DType.FLOAT32, Op.SUM).wait(SECONDS)

    return call


def done(ended: bool) -> None:
    """Of a wait that may not run into its limit."""
    assert ended, "no end of a round"


def say(what: dict[str, Any]) -> None:
    """To the test."""
    print(json.dumps(what), flush=True)


def make(one: Round, rounds: int, rank: int) -> dict[str, Any]:
    """What so many rounds came to."""
    try:
        for number in range(rounds):
            values = np.full(COUNT, 10.0**rank, np.float32)
            one(values)
            if not (values == 11.0).all():
                return {"wrong": [number, float(values.min()), float(values.max())]}
        return {"rounds": rounds}
    except BytePSLikeError as error:
        return {"error": type(error).__name__, "text": str(error)}


def main() -> None:
    role, start, *more = sys.argv[1:]
    incarnation = start.encode() * 16
    if role == "server":
        server(incarnation)
        return
    rank = int(more[0])
    one = {"native": native, "portable": portable, "mesh": mesh}[role](incarnation, rank, *more[1:])
    say({"joined": rank})
    for line in sys.stdin:
        say(make(one, int(line), rank))


if __name__ == "__main__":
    main()
