"""LocalGroup: a group of one. Every result is the source; every call is over before it returns."""

# ruff: noqa: ARG002 - a protocol of calls, most of which have nothing to do here
from __future__ import annotations

import ctypes
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from byteps_like.collectives.api import DEFAULT, Addresses, CallOptions
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, MismatchError, StalledError


class LocalOperation:
    """A call that is over. See collectives.api.Operation."""

    source = 0

    def __init__(self, error: BytePSLikeError | None = None) -> None:
        self._error = error

    def done(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once, or raises what was wrong."""
        if self._error is not None:
            raise self._error

    def error(self) -> BytePSLikeError | None:
        """What was wrong, or None."""
        return self._error

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back at once."""
        callback()


class LocalGroup:
    """See collectives.api.Group."""

    rank = 0
    size = 1
    ranks: tuple[int, ...] = (0,)

    def __init__(self, name: str) -> None:
        self.name = name
        self._sent: dict[int, deque[bytes]] = defaultdict(deque)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """See collectives.api.Group, as for all that follow."""
        return self._copy(source, target, count, dtype)

    def reduce_scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, op: Op,
        options: CallOptions = DEFAULT,
    ) -> LocalOperation:  # fmt: skip
        """Its only part."""
        return self._copy(source, target, counts[0], dtype)

    def all_gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """Its own source."""
        return self._copy(source, target, counts[0], dtype)

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """Nothing to do."""
        self._check(root)
        return LocalOperation()

    def reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, root: int, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """Its own source."""
        self._check(root)
        return self._copy(source, target, count, dtype)

    def scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> LocalOperation:  # fmt: skip
        """Its only part."""
        self._check(root)
        return self._copy(source, target, counts[0], dtype)

    def gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> LocalOperation:  # fmt: skip
        """Its own source."""
        self._check(root)
        return self._copy(source, target, counts[0], dtype)

    def all_to_all(
        self, source: Addresses, target: Addresses, send_counts: int | Sequence[int],
        receive_counts: int | Sequence[int], dtype: DType, options: CallOptions = DEFAULT,
    ) -> LocalOperation:  # fmt: skip
        """Its only part."""
        return self._copy(source, target, send_counts if isinstance(send_counts, int) else send_counts[0], dtype)

    def barrier(self, options: CallOptions = DEFAULT) -> LocalOperation:
        """Nobody else to wait for."""
        return LocalOperation()

    def send(
        self, address: int, nbytes: int, peer: int, tag: int = 0, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """To itself: kept until it is received."""
        self._check(peer)
        self._sent[tag].append(ctypes.string_at(address, nbytes) if nbytes else b"")
        return LocalOperation()

    def receive(
        self, address: int, nbytes: int, peer: int | None, tag: int = 0, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """What it sent itself; an error if it has not yet, since nobody else will."""
        self._check(peer or 0)
        if not self._sent[tag]:
            return LocalOperation(StalledError(f"group {self.name!r} of one: nothing was sent with tag {tag}"))
        data = self._sent[tag].popleft()
        if len(data) != nbytes:
            return LocalOperation(MismatchError(f"{len(data)} bytes were sent, but {nbytes} are received"))
        ctypes.memmove(address, data, nbytes)
        return LocalOperation()

    def _check(self, rank: int) -> None:
        if rank != 0:
            raise InvalidArgumentError(f"rank {rank} is not in group {self.name!r}, which has rank 0 only")

    def _copy(self, source: Addresses, target: Addresses, count: int, dtype: DType) -> LocalOperation:
        start, end = (item if isinstance(item, int) else item[0] for item in (source, target))
        if start != end and count:
            ctypes.memmove(end, start, count * dtype.itemsize)
        return LocalOperation()
