"""Operations on tensors of a device that the worker itself copies down and up (worker.api.UsesGpu), and what becomes of
those that streams wait for in place of the host."""

from __future__ import annotations

import threading
from typing import Any

from byteps_like.errors import BytePSLikeError
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.inflight import call_all, park
from byteps_like.worker.api import Handle


class DeviceFlight:
    """One of them, and the memory that it uses: that is kept until it has ended, also if nobody holds this any more.

    `handle` has `wait_on`. A Handle; thread-safe.
    """

    def __init__(self, handle: Any, device: Device, memory: object) -> None:
        self._handle, self._device, self._memory = handle, device, memory

    def __del__(self) -> None:
        if not self._handle.done():
            park([self._handle], self._memory)

    def done(self) -> bool:
        """Whether the result is on the device, or it failed; never blocks."""
        return bool(self._handle.done())

    def wait(self, timeout: float | None = None) -> None:
        """Blocks the host until the result is on the device. Raises as the worker's own handle."""
        self._handle.wait(timeout)

    def give_up(self, error: BytePSLikeError) -> None:
        """See worker.api.Handle."""
        self._handle.give_up(error)

    @property
    def streams_wait(self) -> bool:
        """Whether `block` has streams wait in the host's place."""
        return self._device.streams_wait()

    @property
    def stream(self) -> int:
        """The one that `block` would have wait."""
        return self._device.current().handle

    def block(self) -> None:
        """What is queued on the current stream after this call comes after the operation. The host doesn't wait where
        streams may; then a failure ends the wait, and is raised by the worker's next call.
        """
        if self.streams_wait:
            self._handle.wait_on(self._device.current().handle)
        else:
            self._handle.wait()


def without_memory(handle: Handle) -> Handle:
    """The same operation, by a handle that doesn't keep its tensors: for whoever only wants to know when it is over."""
    return handle._handle if isinstance(handle, DeviceFlight) else handle


class Behind:
    """Operations of single tensors, by name, of which streams have been told to wait. Thread-safe.

    The host waits for each before the next of the same name begins, and learns then what went wrong.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: set[str] = set()
        self._flights: dict[str, DeviceFlight] = {}

    def catch_up(self, name: str) -> None:
        """Before an operation called `name`: the one before is over. Raises what that failed with, or any that is over
        by now."""
        if not self._flights:
            return
        with self._lock:
            over = [one for one, flight in self._flights.items() if one == name or flight.done()]
            flights = [self._flights.pop(one) for one in over]
        call_all([flight.wait for flight in flights])

    def follow(self, name: str, handle: Handle) -> Handle:
        """`handle`, the operation called `name`, so that its `wait` has the current stream wait, if it can be so."""
        return Following(self, name, handle) if isinstance(handle, DeviceFlight) else handle

    def wait(self, name: str, flight: DeviceFlight) -> None:
        """Has the current stream wait; the host for the first of its name, since drivers may wait for all streams while
        they load its kernels."""
        with self._lock:
            new = name not in self._known
        if new:
            flight.wait()
        else:
            flight.block()
        with self._lock:
            self._known.add(name)
            if not new and not flight.done():
                self._flights[name] = flight


class Following:
    """One operation of a Behind. A Handle."""

    def __init__(self, behind: Behind, name: str, flight: DeviceFlight) -> None:
        self._behind, self._name, self._flight = behind, name, flight

    def done(self) -> bool:
        """Whether the result is on the device, or it failed; never blocks."""
        return self._flight.done()

    def wait(self, timeout: float | None = None) -> None:
        """As Behind.wait; with a timeout, the host waits."""
        if timeout is None:
            self._behind.wait(self._name, self._flight)
        else:
            self._flight.wait(timeout)

    def give_up(self, error: BytePSLikeError) -> None:
        """See worker.api.Handle."""
        self._flight.give_up(error)
