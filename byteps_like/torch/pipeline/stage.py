"""A stage of a pipeline whose sends are encoded: what torch asks it for are the same sends and receives, of slots.

torch waits for all receives of a micro-batch before it has the stage compute it: there the slots are decoded.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byteps_like.torch.fsdp.hosts import TYPES, warn_raw
from byteps_like.torch.pipeline.coders import Coder, Kind, coder_of
from byteps_like.torch.pipeline.edges import Direction, Edges


@dataclass(frozen=True)
class _Landing:
    """A slot on its way to the buffer of a tensor."""

    coder: Coder
    slot: Tensor
    buffer: Tensor

    def land(self) -> None:
        target = self.buffer.detach()
        direct = target.dtype == torch.float32 and target.is_contiguous()
        values = target if direct else torch.empty(target.shape, dtype=torch.float32, device="cpu")
        self.coder.decode(self.slot, values)
        if not direct:
            target.copy_(values)


class Sends:
    """What one stage sends and receives. Not thread-safe: torch steps a stage on one thread."""

    def __init__(self, stage: Any, edges: Edges) -> None:
        self._edges, self._own = edges, stage.stage_index
        self._rank_of: dict[int, int] = stage.stage_index_to_group_rank
        self._coders: dict[tuple[Direction, int, Kind], Coder] = {}
        self._landings: dict[tuple[Direction, int], list[_Landing]] = {}
        self._left: dict[int, Tensor] = {}
        self._drawn: defaultdict[Direction, int] = defaultdict(int)

    def begin_step(self) -> None:
        """What encoding left out in the step before is forgotten: weights have changed."""
        self._left.clear()
        self._landings.clear()

    def sent(self, way: Direction, chunk: int, ops: list[Any]) -> list[Any]:
        """`ops`, torch's sends of a micro-batch, with payloads in place of what is encoded."""
        for place, op in enumerate(ops):
            coder = self._coder(way, self._own, chunk, op)
            if coder is not None:
                op.tensor = self._encoded(coder, way, place, op.tensor.detach())
        return ops

    def received(self, way: Direction, chunk: int, ops: list[Any]) -> list[Any]:
        """`ops`, torch's receives of a micro-batch, into slots where payloads come; `land` reads them."""
        landings = self._landings[way, chunk] = []
        for op in ops:
            coder = self._coder(way, way.sender(self._own), chunk, op)
            if coder is not None:
                slot = torch.empty(coder.slot(op.tensor.shape), dtype=torch.uint8, device="cpu")
                landings.append(_Landing(coder, slot, op.tensor))
                op.tensor = slot
        return ops

    def land(self, way: Direction, chunk: int) -> None:
        """Decodes what has come. Raises MismatchError for another codec's payloads, CorruptError."""
        for landing in self._landings.pop((way, chunk), ()):
            landing.land()

    def _coder(self, way: Direction, sender: int, chunk: int, op: Any) -> Coder | None:
        """For what `op` sends or receives, by what both ends know; None: as it is."""
        tensor, other = op.tensor, sender if sender != self._own else sender + way.value
        large = tensor.nbytes >= max(self._edges.smallest, 1)
        near = op.group_peer == self._rank_of.get(other)
        kind = self._edges.codec(way, sender, chunk) if near and large else None
        if kind is not None and not tensor.is_cpu:
            warn_raw("compress_pipeline", tensor.device.type)
        if kind is None or not tensor.is_cpu or tensor.dtype not in TYPES:
            return None
        coder = self._coders.get((way, sender, kind))
        if coder is None:
            key = 2 * way.edge(sender) + (way is Direction.GRADIENTS) << 32
            coder = self._coders[way, sender, kind] = coder_of(kind, key)
        return coder if coder.fits(tensor.shape) else None

    def _encoded(self, coder: Coder, way: Direction, place: int, tensor: Tensor) -> Tensor:
        slot = torch.empty(coder.slot(tensor.shape), dtype=torch.uint8, device="cpu")
        x, lazy = tensor.float().contiguous(), way is Direction.GRADIENTS and self._edges.lazy(self._own)
        if lazy:
            before = self._left.get(place)
            x = self._left[place] = x.clone() if before is None else before.add_(x)
        coder.encode(x, slot, (place, self._drawn[way] & 0xFFFFFFFF, self._own), lazy)
        self._drawn[way] += 1
        return slot


@functools.cache
def _coded(kind: Any) -> Any:
    """A class of stages as `kind`, whose public methods that torch's schedules call go by `self.sends`.

    Derived from `kind` alone, so that an object of that class can become one of this.
    """

    class CodedStage(kind):  # type: ignore[misc]
        sends: Sends

        def clear_runtime_states(self) -> None:
            super().clear_runtime_states()
            self.sends.begin_step()

        def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[Any]:
            return self.sends.sent(Direction.ACTIVATIONS, fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

        def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
            return self.sends.received(Direction.ACTIVATIONS, fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

        def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
            return self.sends.sent(Direction.GRADIENTS, bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

        def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
            return self.sends.received(Direction.GRADIENTS, bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

        def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.sends.land(Direction.ACTIVATIONS, fwd_chunk_id)
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

        def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.sends.land(Direction.GRADIENTS, bwd_chunk_id)
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    return CodedStage


def encode_sends(stage: Any, edges: Edges) -> None:
    """Makes `stage` one whose sends are encoded as `edges` says, from here on."""
    if not hasattr(stage, "sends"):
        kind: Any = type(stage)
        stage.__class__ = _coded(kind)
    stage.sends = Sends(stage, edges)
