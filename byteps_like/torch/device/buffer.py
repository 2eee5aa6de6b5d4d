"""Where tensors are that don't lie in this host's memory, and the page-locked memory that they travel through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from byteps_like.torch.device.staged_copy import Copy, Stage
from byteps_like.worker.api import Declared


@dataclass(frozen=True)
class DeviceBuffer:
    """A flat tensor on a device, `data`, and its mirror: as many elements of this host's page-locked memory, `host`.

    `stage` is where it is copied by threads of ours."""

    stage: Stage
    data: torch.Tensor
    host: torch.Tensor
    shares: Any = None
    """How the ranks of a host share it among them (arenas.ArenaShares); None: each moves all of it."""

    @classmethod
    def of(cls, tensor: torch.Tensor, stage: Stage) -> DeviceBuffer:
        """That of a contiguous tensor, with a mirror of its own."""
        data = tensor.data.reshape(-1)  # whose version is its own: copies are made at any time
        return cls(stage, data, stage.device.empty(data))

    def copies(self, declared: Declared, parts: range | None) -> tuple[list[Copy], list[Copy]]:
        """Those down and those up for `parts` of a tensor that begins where this does; None: all of it."""
        chosen = declared.partitions if parts is None else declared.partitions[parts.start : parts.stop]
        if not chosen:
            return [], []
        each = declared.spec.dtype.itemsize
        begin, end = chosen[0].offset // each, (chosen[-1].offset + chosen[-1].nbytes) // each
        host, data = self.host[begin:end], self.data[begin:end]
        return [(host, data)], [(data, host)]

    def part(self, begin: int, end: int) -> DeviceBuffer:
        """That of some of its elements."""
        return DeviceBuffer(self.stage, self.data[begin:end], self.host[begin:end])
