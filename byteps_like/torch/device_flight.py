"""Operations on tensors of a device that the worker itself copies down and up (worker.api.UsesGpu)."""

from __future__ import annotations

from typing import Any

from byteps_like.torch.devices import Device
from byteps_like.torch.flown import park


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

    def block(self) -> None:
        """What is queued on the current stream after this call comes after the operation. The host doesn't wait where
        the driver can have streams wait for it; then a failure ends the wait, and is raised by the worker's next call.
        """
        self._handle.wait_on(self._device.current().handle)
