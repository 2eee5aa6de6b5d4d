"""What torch waits for: a dist.Work over an operation of a group, and the future that C++ can wait for."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from byteps_like.collectives.api import CollectiveOperation, Keeper
from byteps_like.collectives.together import Together
from byteps_like.errors import BytePSLikeError
from byteps_like.torch.c10d.futures import Callbacks, CallFuture


class Work(dist.Work):
    """One collective, send or receive in flight. Thread-safe.

    `wait` raises the operation's own error; who waits drives its progress, so nothing else is needed for a call that
    is waited for. A future is made only for those who ask.
    `held` are the tensors whose memory the operation uses: they live until it is done, also if the work is dropped.
    """

    def __init__(
        self, operation: CollectiveOperation, results: list[torch.Tensor], held: object, callbacks: Callbacks
    ) -> None:
        super().__init__()
        self.operation = operation
        self.callbacks = callbacks
        self._results = results
        self._held = held
        self._future: CallFuture | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Blocks, without the GIL, until it has ended, or raises DeadlineError after `timeout` (0: none of its own).

        Raises what the operation failed with: MismatchError, PeerLostError, DeadlineError, ShutdownError, ...
        """
        seconds = timeout.total_seconds() if timeout else 0.0
        self.operation.wait(seconds if seconds > 0 else None)
        return True

    def synchronize(self) -> None:
        """As `wait`: results in this host's memory need no more than that."""
        self.operation.wait()

    def block_current_stream(self) -> None:
        """Work that is queued after this call comes after the operation; on the CPU that means to wait for it."""
        self.operation.wait()

    def join(self) -> None:
        """For one that has ended well: what this thread queues on a device comes after it. On the CPU it does."""

    def aside(self) -> AbstractContextManager[Any]:
        """Within the block what this thread queues on a device is behind nothing of the program's."""
        return nullcontext()

    def is_completed(self) -> bool:
        """Whether it has ended, well or not; never blocks."""
        return self.operation.done()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.operation.done() and self.operation.error() is None

    def exception(self) -> BytePSLikeError | None:
        """What it failed with, once it has ended."""
        return self.operation.error() if self.operation.done() else None

    def result(self) -> list[torch.Tensor]:
        """The tensors that hold the result; once it has ended well."""
        return self._results

    def source_rank(self) -> int:
        """Group rank whose message a receive from anybody got."""
        return self.operation.source

    _source_rank = source_rank

    def get_future(self) -> CallFuture:
        """A torch.futures.Future of `result()`, or of the error. The same one each time.

        Its callbacks run one after the other, in the order in which the program adds them to futures of the group, on
        a thread where they may start other operations and wait for them.
        """
        if self._future is None:
            self._future = CallFuture(
                self.callbacks, sorted({item.device for item in self._results if item.is_cuda}, key=str)
            )
            self.operation.on_done(_Completion(self, self._future))
        return self._future

    def __del__(self) -> None:
        # Nobody waits, but the operation still reads and writes the tensors. A future holds them itself.
        try:
            if self._future is None and not sys.is_finalizing() and not self.operation.done():
                self.operation.on_done(Keeper(self._held, self._results))
        except AttributeError:
            return  # its constructor failed


class CoalescedWork(Work):
    """All that is launched between `_start_coalescing` and `_end_coalescing`.

    `wait` does nothing while it is open, so that callers who wait for each call by itself don't undo the coalescing.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        super().__init__(Several(()), [], [], callbacks)
        self._parts: list[Work] = []
        self.open = True

    def add(self, work: Work) -> Work:
        """Another call that this stands for."""
        self._parts.append(work)
        return self

    def close(self) -> CoalescedWork:
        """No more come; from here on it is as any other work."""
        self.operation = Several([work.operation for work in self._parts])
        self._results = [tensor for work in self._parts for tensor in work.result()]
        self._held, self.open = self._parts, False
        return self

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As Work's, once it is closed."""
        return True if self.open else super().wait(timeout)

    def block_current_stream(self) -> None:
        """As that of each."""
        for part in self._parts:
            part.block_current_stream()

    def join(self) -> None:
        """All of them."""
        for part in self._parts:
            part.join()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Of each device that they are on."""
        with ExitStack() as stack:
            for part in self._parts:
                stack.enter_context(part.aside())
            yield


class _Completion:
    """A callback that ends a future as its operation has ended; until then it keeps alive what the operation uses."""

    def __init__(self, work: Work, future: CallFuture) -> None:
        self._work, self._future = work, future

    def __call__(self) -> None:
        error: Exception | None = self._work.operation.error()
        try:
            if error is None:
                self._land()
        except Exception as failure:
            if self._future.done():
                raise
            error = failure
        if error is not None:
            self._future.set_exception(error)

    def _land(self) -> None:
        with self._work.aside():  # the future is complete behind this thread's stream; the program's is not to wait
            self._work.join()
            self._future.set_result(self._work.result())


class Several(Together):
    """Operations waited for as one; its error is that of the first that failed. See api.CollectiveOperation."""

    def __init__(self, operations: Sequence[CollectiveOperation]) -> None:
        super().__init__(operations)
        self._operations = operations

    def error(self) -> BytePSLikeError | None:
        """The first error in the order of the operations."""
        return next((error for item in self._operations if (error := item.error()) is not None), None)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once, when the last has ended."""
        if not self._operations:
            callback()
            return
        countdown = _Countdown(len(self._operations), callback)
        for item in self._operations:
            item.on_done(countdown)

    @property
    def source(self) -> int:
        """Source of the only one; -1 for several."""
        return self._operations[0].source if len(self._operations) == 1 else -1


class _Countdown:
    def __init__(self, count: int, callback: Callable[[], None]) -> None:
        self._left = count
        self._callback = callback
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._callback()


class Followed:
    """An operation with something to be done after it, once, before anybody sees it ended. See api.CollectiveOperation.

    `after` is called only if the operation ended well, by the first who waits or by the callback's thread.
    """

    def __init__(self, operation: CollectiveOperation, after: Callable[[], None]) -> None:
        self._operation = operation
        self._after: Callable[[], None] | None = after
        self._lock = threading.Lock()

    def done(self) -> bool:
        """Whether the operation has ended; what follows it is done by `wait`."""
        return self._operation.done()

    def wait(self, timeout: float | None = None) -> None:
        """Waits, then does what follows."""
        self._operation.wait(timeout)
        self._follow()

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation."""
        self._operation.give_up(error)

    def error(self) -> BytePSLikeError | None:
        """The operation's."""
        return self._operation.error()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back when what follows is done too."""

        def ended() -> None:
            if self._operation.error() is None:
                self._follow()
            callback()

        self._operation.on_done(ended)

    @property
    def source(self) -> int:
        """The operation's."""
        return self._operation.source

    def _follow(self) -> None:
        with self._lock:
            after, self._after = self._after, None
            if after is not None:
                after()
