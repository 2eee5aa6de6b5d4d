"""Operations in flight and the integers by which their callers know them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from byteps_like.errors import BytePSLikeError, InvalidArgumentError
from byteps_like.torch.job.naming import Call, Claim, explained
from byteps_like.torch.job.runtime import Runtime
from byteps_like.worker.api import Handle


@dataclass(slots=True)
class Operation:
    """One operation in flight."""

    runtime: Runtime
    claim: Claim | None
    handle: Handle
    finish: Callable[[], Any]
    """Makes the caller's result once everything has landed."""
    keeps: tuple[object, ...] = field(default=(), repr=False)
    """What must live until then: the memory that the core reads and writes."""

    def wait(self) -> Any:
        """Blocks until the result has landed, or has the current stream wait; frees the name either way. Raises the
        operation's error, if it is known."""
        failure = None
        try:
            with self.runtime.names.waits(self.claim):
                self.handle.wait()
        except BytePSLikeError as error:
            failure = error
            if self.claim is not None:
                self.runtime.names.hear(self.claim, error)
            raise explained(self.claim, error) from None
        finally:
            if self.claim is not None:
                self.runtime.names.release(self.claim, failure)
        return self.finish()


def enter(call: Call, runtime: Runtime, prefix: str, begin: Callable[[], Operation], *, here: bool = False) -> int:
    """The handle of the operation among the ranks of `prefix` that `begin` begins.

    One without a name may have to wait for a lane: then it is begun by another thread, and what that raises is raised
    by `synchronize`; or, if only this thread can begin it (`here`), this call blocks.
    """
    later = None
    if call.name is None and here:
        runtime.backlog.finish(prefix)
    elif call.name is None:
        later = runtime.backlog.put(prefix, begin)
    return table.add(begin() if later is None else Operation(runtime, None, later, later.result))


class HandleTable:
    """Operations by number. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        self._operations: dict[int, Operation] = {}

    def add(self, operation: Operation) -> int:
        """The handle of `operation`."""
        with self._lock:
            self._last += 1
            self._operations[self._last] = operation
            return self._last

    def get(self, number: int) -> Operation:
        """The operation of a handle. Raises InvalidArgumentError for one that is unknown or over."""
        with self._lock:
            operation = self._operations.get(number)
        if operation is None:
            raise InvalidArgumentError(f"handle {number!r} is unknown or has already been synchronized")
        return operation

    def take(self, number: int) -> Operation | None:
        """The operation of a handle, which is over with this; None if it was before. Raises for one not given out."""
        with self._lock:
            operation = self._operations.pop(number, None)
            known = operation is not None or (isinstance(number, int) and 0 < number <= self._last)
        if not known:
            raise InvalidArgumentError(f"handle {number!r} is unknown")
        return operation


table = HandleTable()


def then(handle: int, after: Callable[[Any], Any]) -> int:
    """The same operation, whose result is what `after` makes of it."""
    operation = table.get(handle)
    finish = operation.finish
    operation.finish = lambda: after(finish())
    return handle


def poll(handle: int) -> bool:
    """Returns whether the operation has ended, so that `synchronize(handle)` would not block. Never blocks.

    Raises InvalidArgumentError for a handle that has already been synchronized.
    """
    return table.get(handle).handle.done()


def synchronize(handle: int) -> Any:
    """Blocks until the operation has ended and returns its result: a tensor, or a list of tensors if it is grouped.

    An in-place operation returns its tensor; `alltoall_async` with splits returns a pair. If the worker copies a GPU
    tensor by itself (docs/how-to/gpu.md), the current stream waits instead of the host from the second operation of
    that name on: the next operation then raises the error, as any call does once the job has failed.

    Returns None for a handle that has already been synchronized, as BytePS and Horovod do.

    Raises InvalidArgumentError for an invalid handle, or the error of the operation: MismatchError, StalledError,
    PeerLostError, ShutdownError.
    """
    operation = table.take(handle)
    return None if operation is None else operation.wait()
