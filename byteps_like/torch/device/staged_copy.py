"""Operations on tensors of a device that are run in this host's memory: copied down, launched, copied up again.

The thread that starts one doesn't wait for it: the copies go by side streams, which wait for the caller's and are
waited for by it, and a thread launches what has come down. So kernels, copies and the network overlap.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from queue import SimpleQueue
from typing import Any

import torch

from byteps_like.collectives.together import Waitable
from byteps_like.errors import BytePSLikeError, DeadlineError, ShutdownError, timed_out
from byteps_like.torch.device.api import Device, Event, Gate

logger = logging.getLogger(__name__)

Copy = tuple[torch.Tensor, torch.Tensor]
"""Target and source: one on the device, one page-locked, of one size."""

_LAST_SECONDS = 2.0


class StagedCopy:
    """One operation on its way down, over the network, and up. A Handle, and an Operation of a group. Thread-safe."""

    def __init__(
        self,
        stage: Stage,
        copies: tuple[Sequence[Copy], Sequence[Copy]],
        launch: Callable[[], Waitable],
        finish: Callable[[], None] | None = None,
    ) -> None:
        self._stage, self._finish = stage, finish
        self._down, self._up = copies
        self._launch: Callable[[], Waitable] | None = launch
        self._operation: Any = None
        self._copied: Event | None = None
        self._landed: Event | None = None
        self._gate: Gate | None = None
        self._error: Any = None
        self._ended = threading.Event()
        self._boarded = threading.Event()
        self._waits = self._arrived = False
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []

    def leave(self) -> None:
        """Queues the copies down, after what the calling thread has queued on the device."""
        device, stream = self._stage.device, self._stage.down
        begun = device.current().record()
        if self._down:
            stream.after(begun)
            for target, source in self._down:
                device.copy(target, source, stream)
                device.keep(source, stream)
            self._copied = stream.record()
        else:
            self._copied = begun
        for target, _ in self._up:
            device.keep(target, self._stage.up)  # now: the allocator may be waiting for the stream when it lands

    def board(self) -> None:
        """Launches the operation, once the device has come by its start, and the copies are there. Blocks until then.

        So nothing in the stream up waits for the program's, which may wait for what is behind that in the stream up.
        """
        try:
            assert self._copied is not None and self._launch is not None
            self._copied.wait()
            self._operation, self._launch = self._launch(), None
        except Exception as error:  # noqa: BLE001 - raised by wait()
            self._end(error)
            return
        if self._finish is None and hasattr(self._operation, "on_done") and hasattr(self._operation, "error"):
            self._boarded.set()
            self._operation.on_done(lambda: self._arrive(self._operation.error()))
        else:
            self._waits = True
            self._boarded.set()
            self._stage.expect(self)

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation. Blocks until it is launched."""
        self._boarded.wait()
        if self._operation is not None:
            self._operation.give_up(error)

    def see_in(self) -> None:
        """For operations that call nobody back: blocks until it has ended."""
        try:
            self._operation.wait()
        except Exception as error:  # noqa: BLE001 - raised by wait()
            self._arrive(error)
        else:
            self._arrive(None)

    def _arrive(self, error: Exception | None) -> None:
        with self._lock:
            if self._arrived:
                return
            self._arrived = True
        device, stream = self._stage.device, self._stage.up
        try:
            if error is None and (self._up or self._finish is not None):
                for target, source in self._up:
                    device.copy(target, source, stream)
                if self._finish is not None:
                    with device.using(stream):
                        self._finish()
                self._landed = stream.record()
        except Exception as failure:  # noqa: BLE001 - raised by wait()
            error = failure
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        with self._lock:
            self._error = error
            self._ended.set()
            self._boarded.set()
            callbacks, self._callbacks = self._callbacks, []
        if self._gate is not None:
            self._stage.open(self._gate, self._landed)
        for callback in callbacks:
            try:
                callback()
            except Exception:  # or the threads of all others would end
                logger.exception("%s: a callback of an operation failed", self._stage.device.name)

    def done(self) -> bool:
        """Whether the result is on the device, or it failed; never blocks."""
        return self._ended.is_set() and (self._landed is None or self._landed.done())

    def wait(self, timeout: float | None = None) -> None:
        """Blocks the host until the result is in its memory; from here on the current stream waits for the device's.

        Raises what it failed with; DeadlineError after `timeout`, and then it goes on.
        """
        if timeout is None and self._finish is None:
            self._boarded.wait()
            if self._waits and not self._ended.is_set():
                self.see_in()  # itself: those that its thread waits for first may be complete much later
        if not self._ended.wait(timeout):
            raise DeadlineError(f"an operation on {self._stage.device.name} {timed_out(timeout or 0.0)}")
        if self._error is not None:
            raise self._error
        if self._landed is not None:
            self._stage.device.current().after(self._landed)

    def block(self) -> None:
        """As `wait`, but the host doesn't wait where the driver can wait for it; then a failure only ends the wait."""
        device = self._stage.device
        with self._lock:
            if not self._ended.is_set():
                self._gate = self._gate or device.gate()
            gate = self._gate if not self._ended.is_set() else None
        if gate is None or not gate.block(device.current().handle):
            self.wait()

    def aside(self) -> AbstractContextManager[Any]:
        """Within the block this thread's current stream is that of the copies up."""
        return self._stage.device.using(self._stage.up)

    def error(self) -> Any:
        """Why it failed, or None; only once it has ended."""
        return self._error

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once it has ended, when `wait` doesn't block the host any more; at once if it has."""
        with self._lock:
            if not self._ended.is_set():
                self._callbacks.append(callback)
                return
        callback()

    @property
    def source(self) -> int:
        """Rank whose message a receive got; only once it is done."""
        return int(self._operation.source)


class Stage:
    """Two side streams of a device, for copies down and up, and threads that launch what has come down, wait for what
    calls nobody back, and open gates behind what has landed; each begins when it is needed.

    Operations are launched in the order in which they were started, whichever threads start them. Thread-safe.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.down, self.up = device.side(), device.side(up=True)
        self._departures: SimpleQueue[StagedCopy | None] = SimpleQueue()
        self._arrivals: SimpleQueue[StagedCopy | None] = SimpleQueue()
        self._opening: SimpleQueue[tuple[Gate, Event | None] | None] = SimpleQueue()
        self._threads: dict[str, threading.Thread] = {}
        self._starting = threading.Lock()  # held while copies are queued, for which the driver may wait for a gate
        self._changed = threading.Condition()
        self._unlaunched = 0
        self._closed = False
        self._ended: set[str] = set()

    def start(
        self,
        down: Sequence[Copy],
        up: Sequence[Copy],
        launch: Callable[[], Waitable],
        finish: Callable[[], None] | None = None,
    ) -> StagedCopy:
        """Copies `down`, calls `launch`, waits for what that returns, and copies `up`. Does not block.

        Then `finish` is called, with its operations queued behind those copies; those that have one are finished in the
        order in which they were started.

        Memory belongs to the operation until it is done. Raises ShutdownError after `close`.
        """
        passage = StagedCopy(self, (down, up), launch, finish)
        with self._starting:
            with self._changed:
                if self._closed:
                    raise ShutdownError(f"copies between {self.device.name} and host memory were shut down")
                self._run("launch", self._launch_all)
            passage.leave()
            with self._changed:
                self._unlaunched += 1
                self._departures.put(passage)
        return passage

    def _run(self, name: str, body: Callable[[], None]) -> None:
        if name not in self._threads:
            self._threads[name] = threading.Thread(
                target=self._work, args=(body,), name=f"byteps_like-device-{name}", daemon=True
            )
            self._threads[name].start()

    def _work(self, body: Callable[[], None]) -> None:
        gpu = self.device.native()
        if gpu is not None:
            gpu.ignore_captures()  # a graph that the program captures would fail by this thread's asking for events
        body()

    def _launch_all(self) -> None:
        while (passage := self._departures.get()) is not None:
            passage.board()
            del passage  # or it would live, with its tensors, until the next one comes
            with self._changed:
                self._unlaunched -= 1
                self._changed.notify_all()

    def expect(self, passage: StagedCopy) -> None:
        """One that has been launched and won't call back: another thread waits for these, one after the other."""
        if not self._handed("land", self._see_in_all, self._arrivals, passage):
            passage.see_in()

    def _see_in_all(self) -> None:
        while (passage := self._arrivals.get()) is not None:
            passage.see_in()
            del passage

    def _handed(self, name: str, body: Callable[[], None], queue: SimpleQueue[Any], item: object) -> bool:
        """Whether the thread of that name takes `item`: not after `close`, when the caller must see to it itself."""
        with self._changed:
            if name in self._ended:
                return False
            self._run(name, body)
            queue.put(item)
            return True

    def open(self, gate: Gate, landed: Event | None) -> None:
        """Opens `gate` once the copies up are done: a third thread waits for them."""
        if not self._handed("open", self._open_all, self._opening, (gate, landed)):
            _open(gate, landed)

    def _open_all(self) -> None:
        while (item := self._opening.get()) is not None:
            _open(*item)
            del item

    def settle(self) -> None:
        """Blocks until all that were started are launched: what the caller launches then comes after them."""
        if threading.current_thread() is self._threads.get("launch"):
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._unlaunched)

    def close(self) -> None:
        """No more are started. Its threads end with what has been; waits for them, for a bounded time. Idempotent.

        What is still in flight lands all the same, and gates are opened, by the threads that see it in.
        """
        waited = self._starting.acquire(timeout=_LAST_SECONDS)  # whoever holds it may wait for a device that hangs
        with self._changed:
            self._closed = True
        if waited:
            self._starting.release()
        queues: dict[str, SimpleQueue[Any]] = {
            "launch": self._departures,
            "land": self._arrivals,
            "open": self._opening,
        }
        for name, queue in queues.items():
            with self._changed:
                self._ended.add(name)
                queue.put(None)
            thread = self._threads.get(name)
            if thread is not None and thread is not threading.current_thread():
                thread.join(_LAST_SECONDS)


def _open(gate: Gate, landed: Event | None) -> None:
    try:
        if landed is not None:
            landed.wait()
    except Exception as error:  # noqa: BLE001 - the device's, which the program sees with its next call
        logger.warning("copies to the device have failed: %s", error)
    finally:
        gate.open()
