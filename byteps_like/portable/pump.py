"""The one thread of a portable worker: drives the channels to all servers, asleep while nothing happens."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from byteps_like.errors import BytePSLikeError, ShutdownError, SystemCallError
from byteps_like.portable.channel import Channel, ChannelEvents, ChannelOptions
from byteps_like.portable.handle import PortableHandle
from byteps_like.portable.store_flow import StoreFlow
from byteps_like.portable.transfer import Transfer
from byteps_like.wire.wakeup import Wakeup

KeyCall = Callable[[StoreFlow], None]
"""What is to be done with store keys of one server."""
KeyCalls = Sequence[tuple[int, KeyCall]]
"""What is to be done with the store keys of some servers, by their ranks."""

COUNTERS = ("payload_sent", "payload_received", "bytes_sent", "bytes_received", "frames_sent", "frames_received")


class Pump:
    """Runs from construction to `close`. Thread-safe.

    On its thread it calls `lost` with an error it met itself, and `warned` with what a server warns of.
    """

    def __init__(
        self,
        servers: Sequence[ChannelOptions],
        lost: Callable[[BytePSLikeError], None],
        warned: Callable[[str], None],
    ) -> None:
        self._lost = lost
        self._warned = warned
        self._lock = threading.Lock()
        self._posted: list[Callable[[], None]] = []
        self._error: BytePSLikeError | None = None
        self._running = True
        self._settled = threading.Event()
        self._wakeup = Wakeup()
        self._poller = zmq.Poller()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._channels = [self._channel(number, options) for number, options in enumerate(servers)]
        self._unopened = set(range(len(servers)))
        self._following: dict[int, deque[Transfer]] = {}
        self._handles: set[PortableHandle] = set()
        self._thread = threading.Thread(target=self._run, name="byteps_like-portable", daemon=True)
        self._thread.start()

    def wait_open(self) -> None:
        """Blocks until every server has let us in; raises the error of one that doesn't."""
        self._settled.wait()
        if self._error is not None:
            raise self._error

    def submit(self, handle: PortableHandle, transfers: list[Transfer]) -> None:
        """Starts the transfers of an operation, each after the one before it with the same key."""
        self._post(lambda: self._submit(handle, transfers))

    def use_stores(self, handle: PortableHandle, calls: KeyCalls) -> None:
        """Starts an operation on store keys; when it has ended, they call `ended`."""
        self._post(lambda: self._use_stores(handle, calls))

    def is_cut_off(self, server: int, key: int) -> bool:
        """Whether that server has enough without this rank's next contribution to a store key."""
        return self._channels[server].stores.is_cut_off(key)

    def ended(self, handle: PortableHandle) -> None:
        """An operation on store keys has ended. Only on the thread."""
        self._handles.discard(handle)

    def fail(self, error: BytePSLikeError) -> None:
        """Ends everything with `error`; the first one stays. Once a handle has raised, its memory isn't touched."""
        self._post(lambda: self._abandon(error))

    def close(self) -> None:
        """Says goodbye to the servers and ends the thread; what is outstanding fails with ShutdownError. Idempotent."""
        self._post(self._halt)
        self._thread.join()

    def last_progress(self) -> float:
        """When (time.monotonic) any byte last moved."""
        return max((channel.last_progress for channel in self._channels), default=0.0)

    def counters(self) -> dict[str, int]:
        """Sums over all servers; bytes are those of messages, before ZeroMQ's own framing and encryption."""
        return {name: sum(channel.counters[name] for channel in self._channels) for name in COUNTERS}

    def _post(self, task: Callable[[], None]) -> None:
        with self._lock:
            self._posted.append(task)
        self._wakeup.set()

    # Everything below runs on the thread.

    def _channel(self, number: int, options: ChannelOptions) -> Channel:
        events = ChannelEvents(lambda: self._opened(number), self._warned, self._finished, self._failed)
        return Channel(self._context, self._poller, options, events)

    def _run(self) -> None:
        try:
            self._poller.register(self._wakeup.fileno(), zmq.POLLIN)
            if not self._channels:
                self._settled.set()
            while self._running:
                self._turn()
        except zmq.ZMQError as error:
            self._failed(SystemCallError(f"ZeroMQ refused: {error.strerror}"))
        finally:
            self._abandon(ShutdownError("this worker has been shut down; call init() again"))
            self._run_posted()
            self._context.destroy(linger=None)
            self._wakeup.close()

    def _turn(self) -> None:
        self._wakeup.clear()
        self._run_posted()
        for channel in self._channels:
            channel.step()
        if self._running:
            self._poller.poll(self._sleep_ms())

    def _run_posted(self) -> None:
        with self._lock:
            posted, self._posted = self._posted, []
        for task in posted:
            task()

    def _sleep_ms(self) -> int | None:
        deadlines = [when for channel in self._channels if (when := channel.deadline()) is not None]
        if not deadlines:
            return None
        return max(0, int((min(deadlines) - time.monotonic()) * 1000) + 1)

    def _opened(self, number: int) -> None:
        self._unopened.discard(number)
        if not self._unopened:
            self._settled.set()

    def _submit(self, handle: PortableHandle, transfers: list[Transfer]) -> None:
        if self._error is not None:
            handle.fail(self._error)
            return
        self._handles.add(handle)
        for transfer in transfers:
            if transfer.key in self._following:
                self._following[transfer.key].append(transfer)
            else:
                self._following[transfer.key] = deque()
                self._channels[transfer.server].submit(transfer)

    def _use_stores(self, handle: PortableHandle, calls: KeyCalls) -> None:
        if self._error is not None:
            handle.fail(self._error)
            return
        if calls:
            self._handles.add(handle)
        for server, call in calls:
            call(self._channels[server].stores)

    def _finished(self, transfer: Transfer) -> None:
        transfer.handle.land()
        if transfer.handle.done():
            self._handles.discard(transfer.handle)
        if self._following[transfer.key]:
            self._channels[transfer.server].submit(self._following[transfer.key].popleft())
        else:
            del self._following[transfer.key]

    def _failed(self, error: BytePSLikeError) -> None:
        if self._error is None:
            self._lost(error)
        self._abandon(error)

    def _abandon(self, error: BytePSLikeError) -> None:
        if self._error is None:
            self._error = error
        for channel in self._channels:
            channel.close(orderly=True)
        self._following.clear()
        for handle in self._handles:
            handle.fail(self._error)
        self._handles.clear()
        self._settled.set()

    def _halt(self) -> None:
        self._running = False
