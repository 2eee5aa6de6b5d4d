"""The dist.Work of an operation whose tensors are on a device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from byteps_like.torch.c10d.work import Work
from byteps_like.torch.device.staged_copy import StagedCopy
from byteps_like.torch.local.shares import Queued


class DeviceWork(Work):
    """As Work, with CUDA's meaning of waiting.

    `wait` blocks the host until the result is in its memory, and has the current stream wait for the copy up;
    `block_current_stream` has the stream wait for both, and the host for neither, where the driver can.
    """

    operation: StagedCopy | Queued

    def block_current_stream(self) -> None:
        """Work that is queued after this call comes after the operation. Returns at once where the driver can wait for
        the host (Device.gate); what it failed with is then raised by `wait`, or the next call of the group."""
        self.operation.block()

    def join(self) -> None:
        """This thread's current stream waits; for one that has ended."""
        self.operation.wait()

    def aside(self) -> AbstractContextManager[Any]:
        """On the stream of the copies up."""
        return self.operation.aside()
