"""The memory of an arena: where its gradients are, and where the network reads and writes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device, Stream
from byteps_like.torch.device.buffer import DeviceBuffer
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Route
from byteps_like.torch.local.arenas import ArenaShares, find, may_share
from byteps_like.worker.api import Worker


class ArenaMemory:
    """`total` elements, of which those from `tail` on are control elements, for gradients of parameters like `like`.

    In this host's memory gradients and network use the same, `data` and `host`. On a device `data` is there, and `host`
    its page-locked mirror; control elements are in `host` only, so that no host waits for a device to read them.
    """

    def __init__(self, like: torch.Tensor, wire: torch.dtype, total: int, tail: int) -> None:
        self.device: Device | None = devices.of(like)
        self._like, self._wire, self._total, self._tail = like, wire, total, tail
        self._streamed: Stream | None = None
        self.near: torch.Tensor | None = None
        """A tensor on the device, if the worker copies what is there by itself."""
        self._shared: dict[str, ArenaShares | None] = {}
        self.shares: ArenaShares | None = None
        """How the ranks of a host share what is there among them; the same on all ranks whether they do."""

    def follow(self, route: Route, label: str) -> None:
        """What is declared next goes by `route`. Kernels may be loaded for it, for which drivers may wait for all
        streams: so nothing may be left that streams wait for."""
        runtime, name = _runtime.current(), route.worker.route
        self.near = self._like if route.carries(self.device) else None
        finds = name not in self._shared and may_share(runtime, route.worker, self.device)
        for arena in list(runtime.arenas.values()) if finds or self.near is not None else []:
            arena.calm_down()
        if finds:
            self._shared[name] = find(runtime, route.worker, self.device, label)
        self.shares = self._shared.get(name)

    def in_turn(self, parts: Sequence[int], sent: Sequence[bool]) -> Sequence[int]:
        """Those partitions that may go, now that `parts` are complete: see ArenaShares.in_turn."""
        return parts if self.shares is None else self.shares.in_turn(parts, sent)

    def allocate(self, worker: Worker) -> None:
        """Zeros, of which `worker` knows."""
        self.host = self.data = tensor_over(worker.allocate(self._total * self._wire.itemsize), self._wire, self.device)
        if self.device is not None:
            self.data = self._like.data.new_zeros(self._tail, dtype=self._wire)
            self._stage = _runtime.current().stage(self.device)

    def move(self, worker: Worker) -> None:
        """To memory that another worker knows of; gradients keep their values."""
        content = self.data
        self.allocate(worker)
        self.data.copy_(content)

    def place(self, begin: int) -> DeviceBuffer | None:
        """Where the elements from `begin` on are on the device; None for those that are on none."""
        if self.device is None or begin >= self._tail:
            return None
        return DeviceBuffer(self._stage, self.data[begin:], self.host[begin:], self.shares)

    def follow_stream(self, what: str) -> None:
        """A gradient was made on this thread's stream; others of the round maybe on others, which it then waits for.

        Raises InvalidArgumentError while a CUDA graph is being captured.
        """
        if self.device is None:
            return
        devices.check_not_capturing(self.device, f"{what!r} are reduced")
        stream = self.device.current()
        if self._streamed is not None and self._streamed.handle != stream.handle:
            stream.after(self._streamed.record())
        self._streamed = stream
