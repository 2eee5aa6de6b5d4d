"""How a tensor travels in an allgather: as it is, or as a payload that its codec makes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from typing_extensions import override

from byteps_like.compression.codec import Codec

if TYPE_CHECKING:
    from byteps_like.torch.compression.slot_codec import SlotCodec

ENCODED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_numbers = itertools.count()


class Travelling:
    """One tensor as it is, and what comes of all ranks' in its place."""

    def __init__(self, own: torch.Tensor) -> None:
        self.own = self.payload = own
        self.counts: tuple[int, ...] = ()

    def expect(self, rows: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:  # noqa: ARG002 - as they are
        """Where the `lengths` bytes of each rank, `rows` of its tensor, are to land one behind the other."""
        self.counts = tuple(rows)
        self._all = self.own.new_empty((sum(rows), *self.own.shape[1:]))
        return self._all

    def read(self) -> torch.Tensor:
        """All rows, once they have landed."""
        return self._all


class Encoded(Travelling):
    """One whose rows are a payload per rank; this rank's own are read from its payload, too, so all get the same."""

    def __init__(self, own: torch.Tensor, codec: SlotCodec, rank: int) -> None:
        super().__init__(own)
        self._codec = codec
        self.payload = torch.empty(codec.slot(own.numel()) if own.numel() else 0, dtype=torch.uint8, device="cpu")
        if own.numel():
            draw = (0, next(_numbers) & 0xFFFFFFFF, rank)
            self.payload = self.payload[: codec.encode(own.float().view(-1).numpy(), self.payload.numpy(), draw)]

    @override
    def expect(self, rows: Sequence[int], lengths: Sequence[int]) -> torch.Tensor:
        self.counts, self._lengths = tuple(rows), list(lengths)
        self._payloads = torch.empty(sum(lengths), dtype=torch.uint8, device="cpu")
        return self._payloads

    def read(self) -> torch.Tensor:
        """Decodes them. Raises CorruptError for what can't be a payload."""
        found = torch.empty((sum(self.counts), *self.own.shape[1:]), device="cpu")
        for payload, rows in zip(
            self._payloads.split_with_sizes(self._lengths), found.split_with_sizes(self.counts), strict=True
        ):
            if rows.numel():
                self._codec.decode(payload.numpy(), rows.view(-1).numpy())
        return found.to(self.own.dtype)


def travellers(tensors: Sequence[torch.Tensor], codec: Codec | None, rank: int) -> Iterator[Travelling]:
    """Each of `tensors`, contiguous, as it travels from `rank`."""
    if codec is None:
        yield from map(Travelling, tensors)
        return
    from byteps_like.torch.compression.slot_codec import SlotCodec  # needs the native core

    coder = SlotCodec(codec, 0, "allgather")
    for tensor in tensors:
        yield Encoded(tensor, coder, rank) if tensor.dtype in ENCODED else Travelling(tensor)
