"""Operations in flight and the integers by which their callers know them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.runtime import Runtime
from byteps_like.worker.api import Handle


@dataclass(frozen=True)
class Operation:
    """One operation in flight. `buffer` is what the core reads and writes; it is kept alive by being here."""

    runtime: Runtime
    name: str
    handle: Handle
    buffer: torch.Tensor
    finish: Callable[[torch.Tensor], torch.Tensor]
    """Makes the caller's result of the landed buffer."""

    def wait(self) -> torch.Tensor:
        """Blocks until the result has landed; frees the name either way. Raises the operation's error."""
        try:
            self.handle.wait()
        finally:
            self.runtime.names.release(self.name)
        return self.finish(self.buffer)


class HandleTable:
    """Operations by number. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._operations: dict[int, Operation] = {}

    def add(self, operation: Operation) -> int:
        """The handle of `operation`."""
        with self._lock:
            number = next(self._numbers)
            self._operations[number] = operation
            return number

    def get(self, number: int) -> Operation:
        """The operation of a handle. Raises InvalidArgumentError for one that is unknown or over."""
        with self._lock:
            operation = self._operations.get(number)
        if operation is None:
            raise InvalidArgumentError(f"handle {number!r} is unknown; each can be synchronized once")
        return operation

    def take(self, number: int) -> Operation:
        """As `get`; the handle is then unknown."""
        operation = self.get(number)
        with self._lock:
            self._operations.pop(number, None)
        return operation


table = HandleTable()


def poll(handle: int) -> bool:
    """Whether the operation is over, so that `synchronize(handle)` would not block. Never blocks.

    Raises InvalidArgumentError for a handle that was synchronized before.
    """
    return table.get(handle).handle.done()


def synchronize(handle: int) -> torch.Tensor:
    """Blocks until the operation is over and returns its result; for an in-place operation, its tensor.

    Raises InvalidArgumentError for a handle that was synchronized before, and what made the operation fail:
    MismatchError, StalledError, PeerLostError, ShutdownError.
    """
    return table.take(handle).wait()
