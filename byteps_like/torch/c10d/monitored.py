"""A barrier that names who is missing, at the cost of going through rank 0: for finding out which rank is stuck."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Iterable

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Keeper
from byteps_like.errors import BytePSLikeError, DeadlineError

_ROOT = 0
_GRACE = 5.0  # seconds that the others wait for rank 0's word after its own deadline
_TAGS = 1 << 20


class MonitoredBarrier:
    """Barriers of one group, over a lane of their own. Rank 0 hears from each rank and tells each the outcome.

    2(n-1) messages. The n-th barrier on one rank meets the n-th on the others.
    """

    def __init__(self, group: Group) -> None:
        self._group = group
        self._numbers = itertools.cycle(range(0, _TAGS, 2))

    def __call__(self, timeout: float, wait_all_ranks: bool = False) -> None:
        """Blocks until all ranks have called it. Raises DeadlineError, on all that have, naming those that have not.

        Without `wait_all_ranks` rank 0 names the first it misses, and does not look at those after it.
        """
        tag = next(self._numbers)
        if self._group.size == 1:
            return
        if self._group.rank == _ROOT:
            self._lead(tag, timeout, wait_all_ranks)
        else:
            self._follow(tag, timeout)

    def _lead(self, tag: int, timeout: float, wait_all_ranks: bool) -> None:
        end = time.monotonic() + timeout
        others = [rank for rank in range(self._group.size) if rank != _ROOT]
        options = CallOptions(timeout=timeout + _GRACE)
        token = ctypes.create_string_buffer(1)
        heard = [self._group.receive(_address(token), 1, rank, tag, options) for rank in others]
        _keep(heard, token)
        missing: list[int] = []
        for rank, operation in zip(others, heard, strict=True):
            if not _ended(operation, end) and (wait_all_ranks or not missing):
                missing.append(rank)
        verdict = ctypes.create_string_buffer(bytes(rank in missing for rank in range(self._group.size)))
        told = [
            self._group.send(_address(verdict), self._group.size, rank, tag + 1, options._replace(timeout=_GRACE))
            for rank, operation in zip(others, heard, strict=True)
            if operation.done() and operation.error() is None
        ]
        _keep(told, verdict)
        for operation in told:
            _ended(operation, time.monotonic() + _GRACE)
        self._judge(missing, timeout)

    def _follow(self, tag: int, timeout: float) -> None:
        options = CallOptions(timeout=timeout + _GRACE)
        verdict = ctypes.create_string_buffer(self._group.size)
        token = ctypes.create_string_buffer(1)
        came = self._group.send(_address(token), 1, _ROOT, tag, options)
        answer = self._group.receive(_address(verdict), self._group.size, _ROOT, tag + 1, options)
        _keep([came, answer], (token, verdict))
        came.wait()
        try:
            answer.wait(timeout + _GRACE)
        except DeadlineError:
            self._judge([_ROOT], timeout)
        self._judge([rank for rank in range(self._group.size) if verdict.raw[rank]], timeout)

    def _judge(self, missing: list[int], timeout: float) -> None:
        """Raises what torch's own monitored barrier says, which callers look for."""
        if not missing:
            return
        own, root = (self._group.ranks[rank] for rank in (self._group.rank, _ROOT))
        limit = f"{1000 * timeout:.0f} ms"
        head = f"Rank {own} timed out in monitoredBarrier after {limit}"
        if own != root:
            head = (
                f"Rank {own} successfully reached monitoredBarrier, but received errors while waiting for send/recv"
                f" from rank {root}"
            )
        names = ", ".join(str(self._group.ranks[rank]) for rank in missing)
        raise DeadlineError(
            f"{head}: Rank{'s' * (len(missing) > 1)} {names} failed to pass monitoredBarrier in {limit}. Look there for"
            " a crash, or for a call that the other ranks don't make",
            rank=own,
            operation="monitored_barrier",
            elapsed=timeout,
        )


def _address(buffer: ctypes.Array[ctypes.c_char]) -> int:
    return ctypes.addressof(buffer)


def _keep(operations: Iterable[CollectiveOperation], memory: object) -> None:
    """`memory` stays until they have ended, which may be long after the barrier has failed."""
    for operation in operations:
        operation.on_done(Keeper(memory))


def _ended(operation: CollectiveOperation, end: float) -> bool:
    """Whether it has ended well by `end`."""
    try:
        operation.wait(max(0.0, end - time.monotonic()))
    except BytePSLikeError:
        return False
    return True
