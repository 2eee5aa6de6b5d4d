"""Futures whose callbacks run one at a time, in the order in which they were added, beside the program.

Callbacks start collectives (PowerSGD's do), and these must come in one order on all ranks. As torch runs callbacks, at
the end of their operation or, where it has ended, at once, each rank would have an order of its own.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any

import torch

from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device, Stream

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class _Thread(threading.local):
    depth = 0

    def __init__(self) -> None:
        self.sides: dict[Device, Stream] = {}


_thread = _Thread()


def callback_depth() -> int:
    """0 on threads of the program, 1 where their callbacks run, 2 where the callbacks of these run, and so on."""
    return _thread.depth


class Callbacks:
    """Where the callbacks of one process group run: a thread for those that the program adds, another for those that
    these add in turn, so that one which waits does not keep from running what it waits for. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[int, SimpleQueue[Job | None]] = {}
        self._threads: list[threading.Thread] = []
        self._closed = False
        _all.add(self)

    def add(self, job: Job) -> None:
        """Runs `job` after all that was added at this depth before; at once, here, after `close`."""
        depth = callback_depth() + 1
        with self._lock:
            closed = self._closed
            if not closed:
                if depth not in self._queues:
                    self._start(depth)
                self._queues[depth].put(job)
        if closed:
            job()

    def _start(self, depth: int) -> None:
        queue = self._queues[depth] = SimpleQueue()
        name = f"byteps_like-callbacks-{depth}"
        self._threads.append(threading.Thread(target=_run, args=(queue, depth), name=name, daemon=True))
        self._threads[-1].start()

    def join(self) -> None:
        """After `close`: waits for the threads, for a bounded time."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_LAST_SECONDS)

    def close(self) -> None:
        """The threads end when they have run what was added. Idempotent."""
        with self._lock:
            self._closed = True
            for queue in self._queues.values():
                queue.put(None)
            self._queues.clear()


_LAST_SECONDS = 2.0
_all: weakref.WeakSet[Callbacks] = weakref.WeakSet()


def end_all() -> None:
    """At the end of the process, when all operations have ended: a thread that is in C++ then would abort it."""
    for callbacks in list(_all):
        callbacks.close()
        callbacks.join()


def _run(queue: SimpleQueue[Job | None], depth: int) -> None:
    _thread.depth = depth
    while (job := queue.get()) is not None:
        try:
            job()
        except Exception:
            logger.exception("a callback of a future failed")
        del job  # or it would live, with its tensors, until the next one comes


class CallFuture(torch.futures.Future[Any]):
    """As torch's, but for when callbacks run, and for errors: all who wait get the error itself, in C++ too.

    `devices` are those that its value, and those of futures made from it, may be on: who waits waits on their streams.
    """

    def __init__(self, callbacks: Callbacks, devices: Sequence[torch.device] = ()) -> None:
        super().__init__(devices=list(devices))
        self._callbacks, self._devices = callbacks, tuple(devices)

    def then(self, callback: Callable[[Any], Any]) -> CallFuture:
        """A future of what `callback(self)` returns or raises."""
        result = CallFuture(self._callbacks, self._devices)

        def run() -> None:
            with self._aside():
                self._await()
                try:
                    result.set_result(callback(self))  # which torch refuses, say, on devices that the future isn't for
                except Exception as error:
                    if result.done():
                        raise
                    result.set_exception(error)

        self._callbacks.add(run)
        return result

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """As `then`, for what returns nothing; an error of its own is logged."""

        def run() -> None:
            with self._aside():
                self._await()
                callback(self)

        self._callbacks.add(run)

    def set_exception(self, result: BaseException) -> None:
        """Ends it with an error."""

        def unwrap(_: object) -> None:
            raise result

        self._set_unwrap_func(unwrap)
        self.set_result(_Failed(result))

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Within the block this thread has streams of its own: a callback isn't queued on those of the program."""
        with ExitStack() as stack:
            for device in filter(None, map(devices.at, self._devices)):
                stack.enter_context(device.using(_side(device)))
            yield

    def _await(self) -> None:
        with suppress(Exception):  # the callback's to see
            self.wait()


def _side(device: Device) -> Stream:
    """This thread's: a device has few."""
    if device not in _thread.sides:
        _thread.sides[device] = device.side()
    return _thread.sides[device]


class _Failed(torch.Tensor):
    """What C++ finds in a future in place of a result, where Python can't set an error: any use of it raises that."""

    error: BaseException

    @staticmethod
    def __new__(cls, error: BaseException) -> _Failed:
        tensor: _Failed = torch.Tensor._make_wrapper_subclass(cls, (0,))
        tensor.error = error
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        for item in torch.utils._pytree.tree_leaves((args, kwargs)):
            if isinstance(item, _Failed):
                raise item.error
        raise AssertionError(f"{function} without an argument of {types}")
