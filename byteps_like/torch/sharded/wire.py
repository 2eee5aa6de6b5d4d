"""What gradients are on their way to the shares: as they are, cast, or encoded chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from byteps_like.collectives.api import Group
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.device.tensors import wire_dtype
from byteps_like.torch.gradients.coding import ArenaCoding
from byteps_like.torch.gradients.rescaling import Rescaling
from byteps_like.torch.gradients.slot import Slot
from byteps_like.torch.sharded.chunk import ShardChunk
from byteps_like.worker.api import Scatter, Scatters, Worker


class ShardWire:
    """Of the gradients of one arena, `total` elements of `dtype` in all, which travel by `way`.

    `scatters`, one per chunk, make the reduce-scatters: the chunk's lane itself, or what encodes before it. What error
    feedback and momentum keep is of all elements, on each rank: of what it sends, not of its share.
    """

    def __init__(self, way: Compress, dtype: torch.dtype, total: int) -> None:
        self.dtype = way.wire_dtype(dtype)
        self.code = wire_dtype(self.dtype)
        self.coding = ArenaCoding(way, total) if way.is_coded else None
        self._name = way.name
        self.codec = way.text(0)
        """As TensorSpec has it; "": gradients aren't encoded now."""
        self.scatters: list[Group | Scatter] = []
        self._coded: list[Scatter] = []
        self._rounds = 0

    def connect(self, worker: Worker, lanes: Sequence[Group], chunks: Sequence[ShardChunk]) -> None:
        """Between rounds: chunks travel by these lanes, encoded by `codec`.

        Raises InvalidArgumentError where gradients are to be encoded, now or after a warm-up, and `worker` can't.
        """
        self._coded = []
        if self.coding is not None:
            if not isinstance(worker, Scatters):
                raise InvalidArgumentError(
                    f"{type(worker).__name__} can't encode what it reduces to shares (it has no coded_scatter): with"
                    f" shard='optimizer' the codec {self.codec or self._name!r} needs a worker that can; use a cast or"
                    " no compression"
                )
            if self.codec:
                self._coded = [worker.coded_scatter(lane, self.codec, self._rounds) for lane in lanes]
        self.scatters = list(self._coded or lanes)
        for scatter, chunk in zip(self._coded, chunks, strict=bool(self._coded)):
            if self.coding is not None and self.coding.keeps:
                feedback = self.coding.feedback(chunk.place.begin * self.dtype.itemsize)
                scatter.compensate(feedback, chunk.place.end - chunk.place.begin)

    def begin(self, slots: Sequence[Slot], rescaling: Rescaling) -> None:
        """Before the first chunk of a round."""
        if self.coding is None:
            return
        factor = self.coding.rescale(slots, rescaling)
        for scatter in self._coded if factor != 1.0 else ():
            scatter.rescale(factor)

    def before(self, staging: torch.Tensor, chunk: ShardChunk) -> None:
        """The gradients of a chunk are about to be sent from `staging`."""
        if self.coding is not None:
            self.coding.before(staging, chunk.place.begin)

    def keep(self, slot: Slot) -> None:
        """There is no gradient of `slot` on this rank."""
        if self.coding is not None:
            self.coding.keep(slot)

    def end(self, present: Callable[[], Sequence[bool]], discarded: bool) -> None:
        """After a round, for whose parameters ranks had gradients as `present` tells. What was kept of one that was
        thrown away goes."""
        self._rounds += 1
        if self.coding is not None:
            self.coding.landed(present)
            self.coding.forget_gaps()
            if discarded:
                self.coding.forget()
