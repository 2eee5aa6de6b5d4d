"""One chunk of a sharded arena on this rank, and the buffers in which gradients wait for the network."""

from __future__ import annotations

import threading

import torch

from byteps_like.collectives.api import CollectiveOperation
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.torch.job.routes import Route
from byteps_like.torch.sharded.layout import ChunkLayout, ShardLayout

KEPT = 4
"""Staging buffers that an arena keeps when they are free. More are made when backward is ahead of the network."""


class Staging:
    """Buffers for gradients on their way to the network, of one chunk each. Thread-safe."""

    def __init__(self, route: Route, numel: int, dtype: torch.dtype) -> None:
        self._route, self._numel, self._dtype = route, numel, dtype
        self._free: list[torch.Tensor] = []
        self._made = 0
        self._lock = threading.Lock()

    def take(self) -> torch.Tensor:
        """A free buffer, or a new one."""
        with self._lock:
            if self._free:
                return self._free.pop()
            self._made += 1
        return tensor_over(self._route.worker.empty_shared(self._numel * self._dtype.itemsize), self._dtype)

    def give(self, buffer: torch.Tensor) -> None:
        """It is not needed any more; it is kept, or its memory goes with the last reference."""
        with self._lock:
            if len(self._free) < KEPT:
                self._free.append(buffer)
            else:
                self._made -= 1

    @property
    def nbytes(self) -> int:
        """Bytes of all that were made and are still there."""
        return self._made * self._numel * self._dtype.itemsize


class ShardChunk:
    """One chunk of an arena, on this rank: where its gradients are staged, its reduced share, its slices.

    `slices` are flat parameters over this rank's share of the chunk, one for each parameter in it, with gradients in
    `reduced`: what the plain optimizer's class updates. The sum comes in `landing`, as the wire has it: `reduced`
    itself where that is of the parameters' element type.
    """

    def __init__(
        self, layout: ShardLayout, chunk: ChunkLayout, data: torch.Tensor, rank: int, wire: torch.dtype
    ) -> None:  # fmt: skip
        self.place = chunk
        self.pieces = {piece.slot: piece for piece in layout.pieces(chunk.begin, chunk.end)}
        self.begin, self.end = chunk.share(rank)
        self.reduced = torch.zeros(self.end - self.begin, dtype=data.dtype, device="cpu")
        self.landing = self.reduced if wire is data.dtype else torch.zeros_like(self.reduced, dtype=wire)
        self.slices: dict[int, torch.nn.Parameter] = {}
        self.gradients: dict[int, torch.Tensor] = {}
        for piece in layout.pieces(self.begin, self.end):
            self.slices[piece.slot] = torch.nn.Parameter(data[piece.begin : piece.end])
            self.gradients[piece.slot] = self.reduced[piece.begin - self.begin : piece.end - self.begin]
        ends = [chunk.begin, *(piece.end for piece in self.pieces.values())]
        begins = [*(piece.begin for piece in self.pieces.values()), chunk.end]
        self._gaps = [slice(end - chunk.begin, begin - chunk.begin) for end, begin in zip(ends, begins, strict=True)]
        self.staging: torch.Tensor | None = None
        self.waiting: set[int] = set()
        self.flight: CollectiveOperation | None = None

    def staged(self, buffers: Staging) -> torch.Tensor:
        """Where its gradients wait for the network; zeros between them."""
        if self.staging is None:
            self.staging = buffers.take()
            for gap in self._gaps:
                self.staging[gap].zero_()
        return self.staging

    def land(self, factor: float) -> None:
        """The sum has come: `factor` times it is the reduced gradient."""
        if self.landing is not self.reduced:
            self.reduced.copy_(self.landing)
        if factor != 1.0:
            self.reduced.mul_(factor)
