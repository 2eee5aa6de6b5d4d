"""LocalGroup: a group of one. Every result is the source; every call but a receive is over before it returns."""

# ruff: noqa: ARG002 - a protocol of calls, most of which have nothing to do here
from __future__ import annotations

import ctypes
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from byteps_like.collectives.api import DEFAULT, Addresses, CallOptions
from byteps_like.collectives.ending import Ending
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, DeadlineError, InvalidArgumentError, MismatchError

_TIMEOUT = 120.0  # seconds


class LocalOperation:
    """A call that is over. See collectives.api.CollectiveOperation."""

    source = 0

    def done(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def error(self) -> BytePSLikeError | None:
        """None."""
        return None

    def give_up(self, error: BytePSLikeError) -> None:
        """It is over."""

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back at once."""
        callback()


class LocalReceive:
    """A receive, over when this process has sent itself the message. See collectives.api.CollectiveOperation."""

    source = 0

    def __init__(self, address: int, nbytes: int, timeout: float) -> None:
        self._address, self._nbytes, self._timeout = address, nbytes, timeout
        self._ending: Ending[BytePSLikeError] = Ending()

    def take(self, data: bytes) -> bool:
        """The message has come. False: too late for this receive."""
        error = MismatchError(f"{len(data)} bytes were sent, but {self._nbytes} are received")
        return self._end(data, None if len(data) == self._nbytes else error)

    def _end(self, data: bytes, error: BytePSLikeError | None) -> bool:
        def fill() -> None:
            if error is None:
                ctypes.memmove(self._address, data, self._nbytes)

        return self._ending.come(error, before=fill)

    def done(self) -> bool:
        """Whether it has come."""
        return self._ending.has_come()

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until another thread has sent it; raises MismatchError if its length is another, DeadlineError."""
        seconds = self._timeout if timeout is None else timeout
        if self._ending.wait(seconds):
            return
        late = DeadlineError(
            f"this worker, alone in its world, has not sent itself {self._nbytes} bytes within {seconds:g} s"
        )
        if timeout is not None:
            raise late
        self._end(b"", late)
        self._ending.wait(None)

    def error(self) -> BytePSLikeError | None:
        """What was wrong, or None."""
        return self._ending.error()

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation."""
        self._end(b"", error)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back when it has come, on the sender's thread."""
        self._ending.on_come(callback)


class LocalGroup:
    """See collectives.api.Group."""

    rank = 0
    size = 1
    ranks: tuple[int, ...] = (0,)
    hosts: tuple[int, ...] = (0,)

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._sent: dict[int, deque[bytes]] = defaultdict(deque)
        self._wanted: dict[int, deque[LocalReceive]] = defaultdict(deque)

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

    def release(self) -> None:
        """Nothing is held."""

    def end(self) -> None:
        """Nothing is left."""

    def barrier(self, options: CallOptions = DEFAULT) -> LocalOperation:
        """Nobody else to wait for."""
        return LocalOperation()

    def send(
        self, address: int, nbytes: int, peer: int, tag: int = 0, options: CallOptions = DEFAULT
    ) -> LocalOperation:
        """To itself: kept until it is received."""
        self._check(peer)
        data = ctypes.string_at(address, nbytes) if nbytes else b""
        while (wanted := self._next_wanted(tag, data)) is not None:
            if wanted.take(data):
                break
        return LocalOperation()

    def _next_wanted(self, tag: int, data: bytes) -> LocalReceive | None:
        with self._lock:
            if self._wanted[tag]:
                return self._wanted[tag].popleft()
            self._sent[tag].append(data)
            return None

    def receive(
        self, address: int, nbytes: int, peer: int | None, tag: int = 0, options: CallOptions = DEFAULT
    ) -> LocalReceive:
        """What it sends itself, in the order of the sends, before or after this call."""
        self._check(peer or 0)
        receive = LocalReceive(address, nbytes, _TIMEOUT if options.timeout is None else options.timeout)
        with self._lock:
            data = self._sent[tag].popleft() if self._sent[tag] else None
            if data is None:
                self._wanted[tag].append(receive)
        if data is not None:
            receive.take(data)
        return receive

    def _check(self, rank: int) -> None:
        if rank != 0:
            raise InvalidArgumentError(f"rank {rank} is not in group {self.name!r}, which has rank 0 only")

    def _copy(self, source: Addresses, target: Addresses, count: int, dtype: DType) -> LocalOperation:
        start, end = (item if isinstance(item, int) else item[0] for item in (source, target))
        if start != end and count:
            ctypes.memmove(end, start, count * dtype.itemsize)
        return LocalOperation()
