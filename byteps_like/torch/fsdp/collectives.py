"""What FSDP2 calls instead of its all-gather and reduce-scatter when weights and gradients travel encoded.

qwZ and qgZ of ZeRO++ (Wang et al., ICLR 2024). Both are FSDP2's own seams: FSDPModule.set_custom_all_gather and
set_custom_reduce_scatter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from byteps_like.collectives.api import Group
from byteps_like.dtypes import DType, Op
from byteps_like.torch.c10d.device_calls import premultiplied
from byteps_like.torch.c10d.process_group import ProcessGroup
from byteps_like.torch.c10d.tensors import reduction
from byteps_like.torch.c10d.work import Followed, Work
from byteps_like.torch.calls.opaque import opaque
from byteps_like.torch.compression.slot_codec import Bytes, SlotCodec
from byteps_like.torch.device.tensors import WIRE_DTYPES
from byteps_like.torch.fsdp.hosts import TYPES, Hops, crosses_hosts, gather_options, hops_of, ours, warn_raw
from byteps_like.torch.fsdp.secondary import Secondary


class _Seam:
    """What both have in common. Tensors travel as they are without a codec, and below `smallest` bytes as a whole."""

    def __init__(self, codec: SlotCodec | None, smallest: int, secondary: Secondary) -> None:
        self._codec, self._smallest, self._secondary = codec, smallest, secondary

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """torch's Comm.allocate: ordinary memory."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _codec_for(self, whole: Tensor, group: ProcessGroup) -> SlotCodec | None:
        if self._codec is None or whole.nbytes < max(self._smallest, 1) or not crosses_hosts(group):
            return None
        if not whole.is_cpu:
            warn_raw("compress_fsdp", whole.device.type)
        return self._codec if whole.is_cpu and whole.dtype in TYPES else None


class CodedAllGather(_Seam):
    """qwZ: every rank encodes its shard once; all, itself included, use what the payload says of it.

    Across hosts (H of them, n ranks): n(H - 1) payloads. Within a host, and where a tensor isn't encoded: as it is.
    """

    @opaque
    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Work | None:
        """torch's AllGather: `output_tensor` gets all ranks' inputs. Raises as `all_gather_single` does, and
        MismatchError where ranks use different codecs."""
        own = ours(group)
        self._secondary.gathers(own)
        codec = self._codec_for(output_tensor, own)
        if codec is None:
            work: Work = own.all_gather_single(output_tensor, input_tensor)
        else:
            work = _gather(codec, output_tensor, input_tensor, own)
        if async_op:
            return work
        work.wait()
        return None


def _gather(codec: SlotCodec, output: Tensor, shard: Tensor, group: ProcessGroup) -> Work:
    lane, count = group.group, shard.numel()
    size = codec.slot(count)
    memory = np.empty((lane.size, size), np.uint8)
    # The same draw each time, so that the same weights are the same in forward and backward.
    codec.encode(_floats(shard).numpy(), memory[lane.rank], (0, 0, lane.rank))
    own, everything = (int(array.ctypes.data) for array in (memory[lane.rank], memory))
    operation = lane.all_gather(own, everything, [size] * lane.size, DType.UINT8, gather_options(group))
    followed = Followed(operation, lambda: _decode(codec, memory, output.view(lane.size, count)))
    return Work(followed, [output], memory, group.callbacks)


def _decode(codec: SlotCodec, slots: Bytes, shards: Tensor) -> None:
    direct = shards.dtype == torch.float32
    scratch = torch.empty(0 if direct else shards.shape[1], device="cpu")
    for slot, shard in zip(slots, shards, strict=True):
        codec.decode(slot, (shard if direct else scratch).numpy())
        if not direct:
            shard.copy_(scratch)


class TwoHopReduceScatter(_Seam):
    """qgZ: the ranks of a host sum first, each the chunks that it carries; the sums go to their ranks encoded.

    `within`: how tensors travel in the first hop: None, as they are; torch.bfloat16; or a codec. A value is encoded at
    most twice for any number of ranks, and what a rank has itself never. Across hosts: n(H - 1) payloads of one chunk.
    """

    def __init__(
        self, codec: SlotCodec | None, smallest: int, secondary: Secondary, within: SlotCodec | torch.dtype | None
    ) -> None:
        super().__init__(codec, smallest, secondary)
        self._within = within
        self._hops: WeakKeyDictionary[ProcessGroup, Hops] = WeakKeyDictionary()
        self._round = 0

    @opaque
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Work | None:
        """torch's ReduceScatter, for sums and averages; FSDP2 never asks for another. `async_op`: ends before it
        returns all the same. Raises as `reduce_scatter_single` does, and MismatchError for different codecs."""
        own = ours(group)
        self._secondary.reduces(own)
        kind = reduction(op, input_tensor, "reduce_scatter")
        codec = self._codec_for(input_tensor, own)
        if codec is None or kind not in (Op.SUM, Op.AVERAGE):
            work: Work = own.reduce_scatter_single(output_tensor, input_tensor, op)
            if not async_op:
                work.wait()
            return work
        hops = self._hops.get(own) or self._hops.setdefault(own, hops_of(own))
        total = self._first_hop(input_tensor.view(own.lanes.first.size, -1), hops, own)
        self._second_hop(codec, total, hops, own)
        result = premultiplied(op, total[0])
        output_tensor.view(-1).copy_(result / own.lanes.first.size if kind is Op.AVERAGE else result)
        self._round += 1
        return None

    def _first_hop(self, chunks: Tensor, hops: Hops, group: ProcessGroup) -> Tensor:
        """This host's sums of the chunks that this rank carries, its own first. fp32, (chunks, elements)."""
        if hops.within is None:
            return _floats(chunks[list(hops.parts[0])])
        staged = chunks[[chunk for part in hops.parts for chunk in part]]
        counts = [len(part) * chunks.shape[1] for part in hops.parts]
        if isinstance(self._within, SlotCodec):
            total = self._coded_within(_floats(staged).view(-1), counts, hops, hops.within, group)
        else:
            staged = staged if self._within is None else staged.to(self._within)
            total = torch.empty(counts[hops.place], dtype=staged.dtype, device="cpu")
            hops.within.reduce_scatter(
                staged.data_ptr(), total.data_ptr(), counts, WIRE_DTYPES[staged.dtype], Op.SUM, group.defaults.default
            ).wait()
        return _floats(total).view(-1, chunks.shape[1])

    def _coded_within(self, staged: Tensor, counts: list[int], hops: Hops, lane: Group, group: ProcessGroup) -> Tensor:
        assert isinstance(self._within, SlotCodec)
        codec, own = self._within, hops.place
        begins, x = np.cumsum([0, *counts]), staged.numpy()
        places = [place for place in range(lane.size) if place != own]
        slots = _Slots([codec.slot(counts[place]) if place != own else 0 for place in range(lane.size)])
        for place, slot in zip(places, slots, strict=True):
            codec.encode(x[begins[place] : begins[place + 1]], slot, (1 + place, self._round, own))
        came = _Slots([codec.slot(counts[own]) if place != own else 0 for place in range(lane.size)])
        total = staged[begins[own] : begins[own + 1]].clone()
        _exchange(codec, lane, slots, came, total, group)
        return total

    def _second_hop(self, codec: SlotCodec, total: Tensor, hops: Hops, group: ProcessGroup) -> None:
        """Adds the other hosts' sums of this rank's chunk to `total[0]`."""
        rank, size = group.lanes.first.rank, codec.slot(total.shape[1])
        slots, came = (
            _Slots([size if peer in some else 0 for peer in hops.peers]) for some in (hops.carried, hops.senders)
        )
        for part, chunk, slot in zip(total[1:], hops.carried, slots, strict=True):
            codec.encode(part.numpy(), slot, (1 + chunk, self._round, rank))
        _exchange(codec, hops.across, slots, came, total[0], group)


class _Slots:
    """Slots one behind the other, for an all-to-all: of `sizes` bytes, of which some are 0."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.memory = sizes, np.empty(sum(sizes), np.uint8)

    def __iter__(self) -> Iterator[Bytes]:
        """Those that aren't empty."""
        ends = np.cumsum(self.sizes)
        return (self.memory[end - size : end] for end, size in zip(ends, self.sizes, strict=True) if size)


def _exchange(codec: SlotCodec, lane: Group, sent: _Slots, came: _Slots, total: Tensor, group: ProcessGroup) -> None:
    """Adds what comes to `total`, in the order of ranks."""
    source, target = (int(slots.memory.ctypes.data) for slots in (sent, came))
    lane.all_to_all(source, target, sent.sizes, came.sizes, DType.UINT8, group.defaults.default).wait()
    for slot in came:
        codec.add(slot, total.numpy())


def _floats(tensor: Tensor) -> Tensor:
    return tensor.detach().float().contiguous()


def install(module: FSDPModule, gather: CodedAllGather, scatter: TwoHopReduceScatter) -> None:
    """Gives them to an FSDP2 module. Raises ValueError, torch's, where its parameters are on several meshes."""
    # torch names the classes that it calls so only in private modules.
    module.set_custom_all_gather(gather)  # type: ignore[arg-type]
    module.set_custom_reduce_scatter(scatter)  # type: ignore[arg-type]
