"""The seam to what the ranks of one host reduce by on their devices: NCCL or CUDA IPC (local_peers_choice)."""

from __future__ import annotations

import ctypes
import json
from typing import Any, Protocol

import torch

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import CapacityError

_RECORD_BYTES = 1024


class LocalPeers(Protocol):
    """Reduce-scatter and all-gather among the ranks of a host, of flat tensors on their devices. Thread-safe.

    Rank r's slice is that of worker.shares.slice_of. Calls are queued on the current stream of the calling thread, in
    the same order of reduce-scatters, and of all-gathers, on all ranks of the host. All raise what it failed with: a
    rank that died or didn't come, or the driver's error.
    """

    name: str

    def takes(self, dtype: torch.dtype) -> bool:
        """Whether it sums such."""

    def reduce_scatter(self, whole: torch.Tensor, own: torch.Tensor, average: bool) -> None:
        """This rank's slice of the sum, or average, over the ranks goes to `own`, which may be its place in `whole`."""

    def all_gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """The slices of all ranks go to `whole`."""

    def check(self) -> None:
        """Whether what was queued and is done is right: raises if not."""

    def close(self) -> None:
        """Ends it. Waits for what is queued, for a bounded time."""


def exchange(lane: Group, own: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of all ranks of a lane, by rank. Blocks until all have come."""
    text = json.dumps(own).encode()
    if len(text) > _RECORD_BYTES:
        raise CapacityError(f"{len(text)} bytes about a device, more than {_RECORD_BYTES}")
    sent = ctypes.create_string_buffer(text, _RECORD_BYTES)
    found = ctypes.create_string_buffer(_RECORD_BYTES * lane.size)
    lane.all_gather(
        ctypes.addressof(sent), ctypes.addressof(found), [_RECORD_BYTES] * lane.size, DType.UINT8,
        CallOptions(traffic=Traffic.CONTROL),
    ).wait()  # fmt: skip
    starts = range(0, len(found), _RECORD_BYTES)
    return [dict(json.loads(found.raw[start : start + _RECORD_BYTES].rstrip(b"\0"))) for start in starts]
