"""With failing_calls.c preloaded: two ranks reduce while the n-th call of a kind fails; prints how each case ended."""

from __future__ import annotations

import ctypes
import secrets
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError

KINDS = ("socket", "accept", "epoll_create", "epoll_ctl", "eventfd", "memfd", "mmap", "populate", "thread")
MOST = 12
"""Calls of a kind that are made to fail, one after the other."""
COUNT = 50_000
EXPECTED = (CallOptions(timeout=2.0), 3.0)

calls = ctypes.CDLL(sys.argv[1])
ready = ThreadPoolExecutor(2)


def reduce(made: list[Communicator], rank: int) -> str:
    """What one rank's all-reduce in memory of its own, then in shared memory, came to."""
    try:
        options, wanted = EXPECTED
        group = made[rank].group("world")
        for _ in range(2):
            array = np.full(COUNT, rank + 1, np.float32)
            group.all_reduce(array.ctypes.data, array.ctypes.data, COUNT, DType.FLOAT32, Op.SUM, options).wait()
            if not (array == wanted).all():
                return "WRONG"
        memory = made[rank].empty_shared(COUNT * 4)
        del memory
        return "sum"
    except BytePSLikeError as error:
        return f"{type(error).__name__}: {error}"


def case(transport: str) -> list[str]:
    """One world of two ranks from beginning to end."""
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
    ended = list(ready.map(lambda rank: reduce(made, rank), range(2)))
    for one in made:
        one.close()
    return ended


def main() -> None:
    """Every kind, over both transports, until a case makes fewer calls of it."""
    list(ready.map(lambda _: threading.Event().wait(0.05), range(2)))  # its threads are there
    for transport in ("tcp", "shm"):
        for kind, name in enumerate(KINDS, 1):
            for number in range(1, MOST + 1):
                calls.failing_calls_arm(kind, number)
                ended = case(transport)
                over = calls.failing_calls_over()
                calls.failing_calls_arm(0, 0)
                if not over:
                    break
                print(f"{transport} {name} {number}: {' | '.join(ended)}", flush=True)


main()
