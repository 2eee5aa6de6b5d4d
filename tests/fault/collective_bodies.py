"""What ranks do in the fault tests of collectives: `body(communicator, ...)`, without torch."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.dtypes import DType, Op
from tests.fault.traffic import Call, start
from tests.fault.worlds import seen

COUNT = 1 << 18  # elements of four bytes: long enough that a kill hits the middle of a call
_KEPT: list[np.ndarray] = []  # buffers of operations that are in flight when a test ends
Seen = tuple[str, str, float]


def _one_call(group: Any, kind: str, timeout: float) -> None:
    if kind == "send_receive":
        _pass_on(group, CallOptions(timeout=timeout))
        return
    operation, check = start(group, Call(Kind(kind), "", (COUNT,) * group.size, 0, in_place=False), timeout=timeout)
    operation.wait()
    check()


def _pass_on(group: Any, options: CallOptions) -> None:
    """To the next rank, from the one before. What rank 1 takes part in is waited for first: the rest may go on."""
    out, into = np.zeros(COUNT, np.int32), np.zeros(COUNT, np.int32)
    _KEPT.extend((out, into))
    after, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    sent = group.send(out.ctypes.data, out.nbytes, after, options=options)
    received = group.receive(into.ctypes.data, into.nbytes, before, options=options)
    for flight in (received, sent) if before == 1 else (sent, received):
        flight.wait()
    _KEPT.clear()


def until_lost(communicator: Any, kind: str, progress: Any, timeout: float) -> tuple[str, str, float, Seen]:
    """Calls until one fails: its error, its message, when that was, and what the next call gave."""
    group = communicator.group("all")
    while True:
        name, text, _ = seen(lambda: _one_call(group, kind, timeout))
        if name:
            failed = time.monotonic()
            return name, text, failed, seen(lambda: _one_call(group, kind, timeout))
        progress[communicator.rank] += 1


def late(communicator: Any, progress: Any, timeout: float) -> tuple[str, str, float, bool]:
    """Calls until one fails, then until one goes well: the failure, when it was, and whether the group works again."""
    group = communicator.group("all")
    for number in itertools.count():
        name, text, _ = seen(lambda: _one_call(group, "all_reduce", timeout))
        if name:
            break
        progress[communicator.rank] = number
    failed = time.monotonic()
    # Ranks may have failed at different calls: a lane of its own shows whether the links are well.
    again = communicator.group("again")
    return name, text, failed, not seen(lambda: _one_call(again, "all_reduce", 20.0))[0]


def _differing(group: Any, what: str) -> list[Callable[[], Any]]:
    """The calls of this rank; rank 1's differ from those of the others in one thing."""
    odd = group.rank == 1
    data, target = np.zeros(COUNT, np.int32), np.zeros(COUNT, np.int32)
    _KEPT.extend((data, target))
    keep, into, options = data.ctypes.data, target.ctypes.data, CallOptions(timeout=10.0)
    reduce = lambda *terms: lambda: group.all_reduce(keep, into, *terms, options)  # noqa: E731
    usual = reduce(100, DType.INT32, Op.SUM)
    calls = {
        "op": [reduce(100, DType.INT32, Op.MAX if odd else Op.SUM)],
        "dtype": [reduce(100, DType.FLOAT32 if odd else DType.INT32, Op.SUM)],
        "count": [reduce(101 if odd else 100, DType.INT32, Op.SUM)],
        # A root that has sent few bytes has ended before anybody can object: many wait for the others to begin.
        "root": [lambda: group.broadcast(keep, COUNT, DType.INT32, int(odd), options)],
        "counts": [
            lambda: group.all_gather(keep, into, [50, 51 if odd else 50, 50], DType.INT32, options),
        ],
        "order": [usual, lambda: group.barrier(options)],
    }
    return calls[what][::-1] if what == "order" and odd else calls[what]


def disagree(communicator: Any, what: str) -> tuple[list[Seen], float]:
    """Calls in which rank 1 differs, then one in which it does not: what came of the former, a sum of the latter."""
    group = communicator.group("all")
    found = [seen(lambda call=call: call().wait()) for call in _differing(group, what)]  # type: ignore[misc]
    data = np.full(10, group.rank + 1, np.float64)
    group.all_reduce(data.ctypes.data, data.ctypes.data, 10, DType.FLOAT64, Op.SUM).wait(20)
    return found, float(data.sum())
