"""With failing_calls.c preloaded: two ranks work together while the n-th call of a kind fails; prints how each ended.

What they do: "collectives", point to point calls among them, or "push_pull" by a server.
"""

from __future__ import annotations

import ctypes
import gc
import secrets
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

import byteps_like._core as core
from byteps_like.collectives.api import CallOptions, Group
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError

KINDS = (
    "socket", "socketpair", "accept", "epoll_create", "epoll_ctl", "eventfd", "memfd", "mmap", "populate", "thread"
)  # fmt: skip
MOST = 12
"""Calls of a kind that are made to fail, one after the other."""
COUNT = 50_000
SERVER, MEMBERS, INCARNATION = 13, [11, 12], bytes(16)
EXPECTED = (CallOptions(timeout=2.0), 3.0)

calls = ctypes.CDLL(sys.argv[1])
ready = ThreadPoolExecutor(2)


def together(group: Group, rank: int) -> bool:
    """Whether the ranks' calls, one of each kind, came to what they should."""
    options, wanted = EXPECTED
    for _ in range(2):
        array = np.full(COUNT, rank + 1, np.float32)
        group.all_reduce(array.ctypes.data, array.ctypes.data, COUNT, DType.FLOAT32, Op.SUM, options).wait()
        if not (array == wanted).all():
            return False
    handed = np.full(COUNT, rank, np.float32)
    group.broadcast(handed.ctypes.data, COUNT, DType.FLOAT32, 1, options).wait()
    whole = np.zeros(2 * COUNT, np.float32)
    group.all_gather(array.ctypes.data, whole.ctypes.data, [COUNT, COUNT], DType.FLOAT32, options).wait()
    theirs = np.zeros(COUNT, np.float32)
    mine = np.full(COUNT, 10 + rank, np.float32)
    sent = group.send(mine.ctypes.data, mine.nbytes, 1 - rank, 7, options)
    group.receive(theirs.ctypes.data, theirs.nbytes, 1 - rank, 7, options).wait()
    sent.wait()
    return bool((handed == 1).all() and (whole == wanted).all() and (theirs == 11 - rank).all())


def collectives(made: list[Communicator], rank: int) -> str:
    """What one rank's calls in memory of its own, then in shared memory, came to."""
    try:
        if not together(made[rank].group("world"), rank):
            return "WRONG"
        memory = made[rank].empty_shared(COUNT * 4)
        del memory
        return "sum"
    except BytePSLikeError as error:
        return f"{type(error).__name__}: {error}"


def world(transport: str) -> list[str]:
    """One of two ranks, without servers, from beginning to end."""
    config = Config.from_env({}, transport=transport, host="127.0.0.1")
    job, secret = f"failing-{secrets.token_hex(4)}", secrets.token_bytes(32)
    made: list[Communicator] = []
    try:
        made.append(Communicator(config, job, secret))
        made.append(Communicator(config, job, secret))
    except BytePSLikeError as error:
        for one in made:
            one.close()
        return [f"{type(error).__name__}: {error}"]
    for rank, communicator in enumerate(made):
        communicator.join(1, rank, [one.own for one in made])
    ended = list(ready.map(lambda rank: collectives(made, rank), range(2)))
    for one in made:
        one.close()
    return ended


def push_pull(server: core.Server, rank: int, secret: bytes) -> str:
    """What one rank's rounds by the server came to."""
    shards = [(0, shard, list(server.urls), SERVER) for shard in range(2)]
    try:
        engine = core.Engine(
            "job", secret, INCARNATION, 1, rank, MEMBERS[rank], 2, shards, 1 << 17, 1 << 20, 1.0, 0.5, 1.0
        )
    except BytePSLikeError as error:
        return f"{type(error).__name__}: {error}"
    try:
        engine.declare(int(DType.FLOAT32), [(1, 0, 4 * COUNT, 0), (2, 4 * COUNT, 4 * COUNT, 1)])
        for _ in range(2):
            values = np.full(2 * COUNT, rank + 1, np.float32)
            if not engine.wait(engine.submit(0, values.ctypes.data, 0, 2, int(Op.SUM), 0, 0), 20.0):
                return "HANGS"
            if not (values == 3.0).all():
                return "WRONG"
        return "sum"
    except BytePSLikeError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        engine.close()


def job(transport: str) -> list[str]:
    """One of two workers and a server of two shards, from beginning to end."""
    place = "127.0.0.1:0" if transport == "tcp" else f"failing-{secrets.token_hex(8)}"
    secret = secrets.token_bytes(32)
    try:
        server = core.Server("job", secret, [f"{transport}://{place}"], 2)
    except BytePSLikeError as error:
        return [f"{type(error).__name__}: {error}"]
    server.set_world(INCARNATION, 1, MEMBERS, SERVER, 0.5, 1.0, 0)
    ended = list(ready.map(lambda rank: push_pull(server, rank, secret), range(2)))
    server.stop()
    return ended


def descriptors() -> int:
    """How many this process has."""
    gc.collect()
    return psutil.Process().num_fds()


def end_of(case: Callable[[str], list[str]], transport: str) -> list[str]:
    """How a case ended on each rank; LEAK with how many, if it has not given all its descriptors back."""
    before = descriptors()
    ended = case(transport)
    deadline = time.monotonic() + 5
    while descriptors() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    return ended if descriptors() <= before else [*ended, f"LEAK of {descriptors() - before}"]


WORK = {"collectives": (world, ("tcp", "shm")), "push_pull": (job, ("tcp", "shm", "inproc"))}


def main() -> None:
    """Every kind, over several transports, until a case makes fewer calls of it."""
    case, transports = WORK[sys.argv[2]]
    list(ready.map(lambda _: threading.Event().wait(0.05), range(2)))  # its threads are there
    case(transports[0])  # and what is made once
    for transport in transports:
        for kind, name in enumerate(KINDS, 1):
            for number in range(1, MOST + 1):
                calls.failing_calls_arm(kind, number)
                ended = end_of(case, transport)
                over = calls.failing_calls_over()
                calls.failing_calls_arm(0, 0)
                if not over:
                    break
                print(f"{transport} {name} {number}: {' | '.join(ended)}", flush=True)


main()
