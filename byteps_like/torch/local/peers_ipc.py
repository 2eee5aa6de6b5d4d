"""Local peers by CUDA IPC: each maps a stage of every other, and one kernel sums. See peers.LocalPeers.

The native core does it (csrc/gpu/peers/peers_group.h); here ranks exchange what it needs.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from byteps_like.collectives.api import Group
from byteps_like.errors import BytePSLikeError, ShutdownError
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.tensors import wire_dtype
from byteps_like.torch.local.peers import exchange

STAGE_BYTES = 32 << 20
"""Of each rank's memory that the others map; twice: for what is scattered, and what is gathered."""
_PAGE_BYTES = 4096
_MOST_RANKS = 8
_SUMMED = (torch.float32, torch.float16, torch.bfloat16)


def why_not(device: Device, size: int) -> str:
    """Why this rank can't take part; "": it can."""
    gpu = device.native()
    if gpu is None:
        return f"the native core can't use {device.name}"
    if not gpu.waits_by_value:
        return str(gpu.why_no_waits)
    if size > _MOST_RANKS:
        return f"{size} ranks on this host, more than {_MOST_RANKS}"
    return "" if device.kernels(("peers",)) else f"{device.name} has no kernels: see byteps-like doctor"


class IpcPeers:
    """Those of `native`, a _core.GpuPeers, whose memory all have mapped."""

    name = "ipc"

    def __init__(self, device: Device, native: Any, size: int) -> None:
        self._device, self._native, self._size = device, native, size

    @classmethod
    def make(cls, device: Device, lane: Group, timeout: float) -> tuple[IpcPeers | None, str]:
        """Those of the ranks of `lane`, or why they can't be, for all ranks alike. Blocks until all have come."""
        made = _Making(device, lane, timeout)
        for step in (made.begin, made.publish, made.join):
            records = exchange(lane, made.tried(step))
            failed = next(
                (f"local rank {rank}: {one['failed']}" for rank, one in enumerate(records) if one["failed"]), ""
            )
            if failed:
                return None, failed
            made.records = records
        return cls(device, made.native, lane.size), ""

    def takes(self, dtype: torch.dtype) -> bool:
        """What its kernels sum."""
        return dtype in _SUMMED

    def reduce_scatter(self, whole: torch.Tensor, own: torch.Tensor, average: bool) -> None:
        """See LocalPeers: summed in fp32, in the order of ranks, rounded once."""
        self._known().reduce_scatter(*self._arguments(whole, own), self._size if average else 1)

    def all_gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """See LocalPeers."""
        self._known().all_gather(*self._arguments(whole, own))

    def _known(self) -> Any:
        native = self._native
        if native is None:
            raise ShutdownError("the reductions among the GPUs of this host were shut down")
        return native

    def _arguments(self, whole: torch.Tensor, own: torch.Tensor) -> tuple[int, int, int, int, int]:
        device = self._device
        addresses = device.address(whole), device.address(own) if own.numel() else 0
        return device.current().handle, *addresses, whole.numel(), int(wire_dtype(whole.dtype))

    def check(self) -> None:
        """See LocalPeers."""
        self._known().check()

    def close(self) -> None:
        """See LocalPeers."""
        self._native = None


class _Making:
    """The steps of one rank, between which all exchange what each has returned."""

    def __init__(self, device: Device, lane: Group, timeout: float) -> None:
        import byteps_like._core as core  # not at the top: torch's other users need no native core

        self._core, self._device, self._lane, self._timeout = core, device, lane, timeout
        self.records: list[dict[str, Any]] = []
        self.native: Any = None
        self._page: Any = None

    def tried(self, step: Any) -> dict[str, Any]:
        """What the step has to tell; `failed`: why it couldn't be made."""
        try:
            return {"failed": "", **step()}
        except (BytePSLikeError, OSError) as error:
            return {"failed": str(error)[:500]}

    def begin(self) -> dict[str, Any]:
        """The first rank makes the page where all say how far they have come."""
        self._page = self._core.SharedBuffer(_PAGE_BYTES)
        return {"pid": os.getpid(), "page": self._page.fd}

    def publish(self) -> dict[str, Any]:
        """The others map it; each makes its stage."""
        if self._lane.rank:
            first = self.records[0]
            fd = os.open(f"/proc/{first['pid']}/fd/{first['page']}", os.O_RDWR | os.O_CLOEXEC)
            try:
                self._page = self._core.SharedBuffer.map(fd)
            finally:
                os.close(fd)
        self.native = self._core.GpuPeers(
            self._device.native(), dict(self._device.kernels(("peers",))), self._page, self._lane.rank,
            [record["pid"] for record in self.records], STAGE_BYTES, self._timeout,
        )  # fmt: skip
        return {"stage": self.native.export().hex()}

    def join(self) -> dict[str, Any]:
        """Each maps the others' stages."""
        self.native.join([bytes.fromhex(record["stage"]) for record in self.records])
        return {}
