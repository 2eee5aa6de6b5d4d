"""A stage of a pipeline whose sends are encoded: what torch asks it for are the same sends and receives, of slots.

torch waits for all receives of a micro-batch before it has the stage compute it: there the slots are decoded.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from byteps_like.compression.codec import Codec, Floats
from byteps_like.torch.coded_slots import SlotCodec
from byteps_like.torch.fsdp_hosts import TYPES
from byteps_like.torch.pipeline_edges import Edges, Way


@dataclass(frozen=True)
class _Landing:
    """A slot on its way to the buffer of a tensor."""

    codec: SlotCodec
    slot: Tensor
    buffer: Tensor

    def land(self) -> None:
        flat = self.buffer.detach()
        direct = flat.dtype == torch.float32 and flat.is_contiguous()
        values = flat.view(-1) if direct else torch.empty(flat.numel())
        self.codec.decode(self.slot.numpy(), values.numpy())
        if not direct:
            flat.copy_(values.view(flat.shape))


class Sends:
    """What one stage sends and receives. Not thread-safe: torch steps a stage on one thread."""

    def __init__(self, stage: Any, edges: Edges) -> None:
        self._edges, self._own = edges, stage.stage_index
        self._rank_of: dict[int, int] = stage.stage_index_to_group_rank
        self._codecs: dict[tuple[Way, int, Codec], SlotCodec] = {}
        self._landings: dict[tuple[Way, int], list[_Landing]] = {}
        self._left: dict[int, Floats] = {}
        self._drawn: defaultdict[Way, int] = defaultdict(int)

    def begin_step(self) -> None:
        """What encoding left out in the step before is forgotten: weights have changed."""
        self._left.clear()
        self._landings.clear()

    def sent(self, way: Way, chunk: int, ops: list[Any]) -> list[Any]:
        """`ops`, torch's sends of a micro-batch, with payloads in place of what is encoded."""
        codec = self._edges.codec(way, self._own, chunk) if ops else None
        for place, op in enumerate(ops):
            if codec is not None and self._is_coded(op, self._own + way.value):
                coder = self._coder(way, self._own, codec)
                op.tensor = self._encoded(coder, way, place, op.tensor.detach(), codec)
        return ops

    def received(self, way: Way, chunk: int, ops: list[Any]) -> list[Any]:
        """`ops`, torch's receives of a micro-batch, into slots where payloads come; `land` reads them."""
        sender = way.sender(self._own)
        codec = self._edges.codec(way, sender, chunk) if ops else None
        landings = []
        for op in ops:
            if codec is not None and self._is_coded(op, sender):
                coder = self._coder(way, sender, codec)
                slot = torch.empty(coder.slot(op.tensor.numel()), dtype=torch.uint8)
                landings.append(_Landing(coder, slot, op.tensor))
                op.tensor = slot
        self._landings[way, chunk] = landings
        return ops

    def land(self, way: Way, chunk: int) -> None:
        """Decodes what has come. Raises MismatchError for another codec's payloads, CorruptError."""
        for landing in self._landings.pop((way, chunk), ()):
            landing.land()

    def _is_coded(self, op: Any, other: int) -> bool:
        """By what both ends know: `other` is the stage at the edge's other end."""
        tensor: Tensor = op.tensor
        large = tensor.nbytes >= max(self._edges.smallest, 1)
        return large and tensor.is_cpu and tensor.dtype in TYPES and op.group_peer == self._rank_of.get(other)

    def _coder(self, way: Way, sender: int, codec: Codec) -> SlotCodec:
        known = self._codecs.get((way, sender, codec))
        if known is None:
            known = SlotCodec(codec, 2 * way.edge(sender) + (way is Way.GRADIENTS) << 32, "compress_pipeline")
            self._codecs[way, sender, codec] = known
        return known

    def _encoded(self, coder: SlotCodec, way: Way, place: int, tensor: Tensor, codec: Codec) -> Tensor:
        slot = torch.empty(coder.slot(tensor.numel()), dtype=torch.uint8)
        x, left = tensor.float().contiguous().view(-1).numpy(), None
        if way is Way.GRADIENTS and (codec.biased if self._edges.feedback is None else self._edges.feedback):
            before = self._left.get(place)
            left = self._left[place] = x.copy() if before is None else np.add(before, x, out=before)
            x = left
        coder.encode(x, slot.numpy(), (place, self._drawn[way] & 0xFFFFFFFF, self._own), left)
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
            return self.sends.sent(Way.ACTIVATIONS, fwd_chunk_id, super().get_fwd_send_ops(fwd_chunk_id))

        def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[Any]:
            return self.sends.received(Way.ACTIVATIONS, fwd_chunk_id, super().get_fwd_recv_ops(fwd_chunk_id))

        def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[Any]:
            return self.sends.sent(Way.GRADIENTS, bwd_chunk_id, super().get_bwd_send_ops(bwd_chunk_id))

        def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[Any]:
            return self.sends.received(Way.GRADIENTS, bwd_chunk_id, super().get_bwd_recv_ops(bwd_chunk_id))

        def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.sends.land(Way.ACTIVATIONS, fwd_chunk_id)
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

        def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.sends.land(Way.GRADIENTS, bwd_chunk_id)
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    return CodedStage


def encode_sends(stage: Any, edges: Edges) -> None:
    """Makes `stage` one whose sends are encoded as `edges` says, from here on."""
    if not hasattr(stage, "sends"):
        kind: Any = type(stage)
        stage.__class__ = _coded(kind)
    stage.sends = Sends(stage, edges)
