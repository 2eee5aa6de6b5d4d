"""A device played by the host: its memory is the host's, its side streams are threads, its own stream is the program.

So what the program does on the device is done when the call returns, and what is queued on side streams comes later, as
late as the test wants: `hold` keeps them back. Where the program's stream has to wait, the thread does, unless it is
`lazy`: then waits are only noted, to see that nothing else waits; `settle` makes them.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import torch

from byteps_like.torch.device import devices

DEADLINE = 20.0


class SoftwareEvent:
    """See torch.device_api.Event."""

    def __init__(self) -> None:
        self._happened = threading.Event()

    def happen(self) -> None:
        self._happened.set()

    def done(self) -> bool:
        return self._happened.is_set()

    def wait(self) -> None:
        assert self._happened.wait(DEADLINE), "an event of the device has not happened"


class Program:
    """The program's stream: what has been called is done. See torch.device_api.Stream."""

    handle = 1

    def __init__(self, device: SoftwareDevice) -> None:
        self._device = device

    def record(self) -> SoftwareEvent:
        event = SoftwareEvent()
        event.happen()
        return event

    def after(self, event: SoftwareEvent) -> None:
        self._device.note(event)


class SoftwareGate:
    """See torch.device_api.Gate."""

    def __init__(self, device: SoftwareDevice) -> None:
        self._device, self._event = device, SoftwareEvent()

    def block(self, stream: int) -> bool:
        assert stream == Program.handle
        self._device.note(self._event)
        return True

    def open(self) -> None:
        self._event.happen()


class SideStream:
    """A thread that does what is queued. See torch.device_api.Stream."""

    def __init__(self, device: SoftwareDevice, number: int) -> None:
        self.handle = 100 + number
        self._device = device
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"device-stream-{number}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            self._device.running.wait(DEADLINE)
            job()
            del job

    def queue(self, job: Callable[[], None]) -> None:
        self._queue.put(job)

    def record(self) -> SoftwareEvent:
        event = SoftwareEvent()
        self.queue(event.happen)
        return event

    def after(self, event: SoftwareEvent) -> None:
        self.queue(event.wait)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join(DEADLINE)


class SoftwareDevice:
    """See torch.device_api.Device."""

    def __init__(self, name: str = "software:0") -> None:
        self.name, self.ordinal = name, 0
        self.lazy = False
        self.gates = True
        """Whether its streams can wait for the host."""
        self.captures = False
        self.running = threading.Event()
        self.running.set()
        self.copied = {"down": 0, "up": 0}
        """Bytes."""
        self.kept: list[int] = []
        self.locked = 0
        """Bytes that are page-locked."""
        self._waits: list[SoftwareEvent] = []
        self._streams: list[SideStream] = []
        self._host: set[int] = set()
        self._thread = threading.local()
        self._lock = threading.Lock()

    # What torch.devices asks

    def current(self) -> Any:
        return getattr(self._thread, "stream", None) or Program(self)

    def side(self, up: bool = False) -> Any:
        with self._lock:
            self._streams.append(SideStream(self, len(self._streams)))
            return self._streams[-1]

    @contextlib.contextmanager
    def using(self, stream: Any) -> Iterator[None]:
        """What is called in the block is done at once, so after what the stream has queued."""
        stream.record().wait()
        before, self._thread.stream = getattr(self._thread, "stream", None), stream
        try:
            yield
        finally:
            self._thread.stream = before

    def copy(self, target: torch.Tensor, source: torch.Tensor, stream: Any) -> None:
        with self._lock:
            down = target.untyped_storage().data_ptr() in self._host
            assert down != (source.untyped_storage().data_ptr() in self._host), "one side must be page-locked"
            self.copied["down" if down else "up"] += source.nbytes

        def job() -> None:
            with torch.inference_mode():
                target.copy_(source)

        job() if isinstance(stream, Program) else stream.queue(job)

    def keep(self, tensor: torch.Tensor, stream: Any) -> None:
        self.kept.append(tensor.data_ptr() and stream.handle)

    def empty(self, like: torch.Tensor) -> torch.Tensor:
        found = torch.empty(like.shape, dtype=like.dtype)
        address = found.untyped_storage().data_ptr()
        if not address:
            return found
        with self._lock:
            self._host.add(address)
        weakref.finalize(found.untyped_storage(), self._host.discard, address)
        return found

    def lock(self, address: int, nbytes: int) -> Callable[[], None]:
        with self._lock:
            self._host.add(address)
            self.locked += nbytes

        def unlock() -> None:
            with self._lock:
                self._host.discard(address)
                self.locked -= nbytes

        return unlock

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    def capturing(self) -> bool:
        return self.captures

    def native(self) -> Any:
        return None

    def streams_wait(self) -> bool:
        return self.gates

    def gate(self) -> Any:
        return SoftwareGate(self) if self.gates else None

    # What tests ask

    def note(self, event: SoftwareEvent) -> None:
        """The program's stream is to wait."""
        if self.lazy:
            self._waits.append(event)
        else:
            event.wait()

    @property
    def waits(self) -> int:
        """How many the program's stream has yet to wait for."""
        return len(self._waits)

    def settle(self) -> None:
        """Waits for all that was noted."""
        waits, self._waits = self._waits, []
        for event in waits:
            event.wait()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Within the block side streams stand still."""
        self.running.clear()
        try:
            yield
        finally:
            self.running.set()

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the device's: all are but page-locked ones."""
        if tensor.layout is not torch.strided:
            return True
        with self._lock:
            return tensor.untyped_storage().data_ptr() not in self._host

    def close(self) -> None:
        self.running.set()
        for stream in self._streams:
            stream.close()


@contextlib.contextmanager
def software_device() -> Iterator[SoftwareDevice]:
    """Within the block every tensor of the program is on the device."""
    device = SoftwareDevice()
    with devices.replace(lambda tensor: device if device.holds(tensor) else None):
        try:
            yield device
        finally:
            device.close()
