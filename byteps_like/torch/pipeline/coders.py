"""What makes a payload of a tensor that goes from one stage of a pipeline to the next: a codec, or two factors."""

from __future__ import annotations

import zlib
from typing import Any, Protocol

import numpy as np
import torch
from torch import Size, Tensor

from byteps_like.compression.codec import Codec
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.torch.compression.casts import BF16Compressor, FP16Compressor
from byteps_like.torch.compression.policy import Compress, LowRank
from byteps_like.torch.compression.rules import way_of
from byteps_like.torch.compression.slot_codec import HEADER, SlotCodec, lone_codec

Kind = Codec | LowRank
_CALL = "compress_pipeline"


class Coder(Protocol):
    """For one direction of an edge. Tensors are contiguous, float32, on the CPU; slots are uint8."""

    def fits(self, shape: Size) -> bool:
        """Whether tensors of `shape` are encoded at all."""

    def slot(self, shape: Size) -> int:
        """Bytes of a slot."""

    def encode(self, x: Tensor, slot: Tensor, draw: tuple[int, int, int], leave: bool) -> None:
        """Fills `slot`. With `leave`, `x` becomes what that leaves out; 0 where it isn't finite.

        `draw`: the tensor's place among those of a micro-batch, a number of the send, the stage.
        """

    def decode(self, slot: Tensor, out: Tensor) -> None:
        """What a slot says. Raises MismatchError for another coder's, CorruptError for what can't be one."""


class BlockCoder:
    """By a codec of the registry. See Coder."""

    def __init__(self, codec: Codec, key: int) -> None:
        self._codec = SlotCodec(codec, key, _CALL)

    def fits(self, shape: Size) -> bool:
        """All of them."""
        return shape.numel() > 0

    def slot(self, shape: Size) -> int:
        """See Coder."""
        return self._codec.slot(shape.numel())

    def encode(self, x: Tensor, slot: Tensor, draw: tuple[int, int, int], leave: bool) -> None:
        """See Coder."""
        flat = x.view(-1).numpy()
        self._codec.encode(flat, slot.numpy(), draw, flat if leave else None)

    def decode(self, slot: Tensor, out: Tensor) -> None:
        """See Coder."""
        self._codec.decode(slot.numpy(), out.view(-1).numpy())


class LowRankCoder:
    """By PowerSGD's step on the matrix M of all dimensions but the last, and the last (Optimus-CC). See Coder.

    With Q of the send before: P = M Q, orthonormal; Q = M^T P; both travel, and M is P Q^T.
    """

    def __init__(self, kind: LowRank, key: int) -> None:
        self._rank, self._key = kind.rank, key
        self._mark = zlib.crc32(described(kind).encode())
        self._factors: dict[int, Tensor] = {}

    def fits(self, shape: Size) -> bool:
        """Where the two factors are at most half of it."""
        return len(shape) > 1 and 2 * self._rank * sum(_matrix(shape)) <= shape.numel()

    def slot(self, shape: Size) -> int:
        """See Coder."""
        return HEADER + 4 * self._rank * sum(_matrix(shape))

    def encode(self, x: Tensor, slot: Tensor, draw: tuple[int, int, int], leave: bool) -> None:
        """See Coder; without random numbers."""
        matrix, place = x.view(_matrix(x.shape)), draw[0]
        before = self._factors.get(place)
        fresh = self._fresh(matrix.shape[1])
        product = matrix @ (fresh if before is None or before.shape != fresh.shape else before)
        basis = torch.linalg.qr(product)[0] if bool(product.isfinite().all()) else product
        factor = matrix.T @ basis
        slot[:HEADER].numpy().view(np.uint32)[:] = self._mark, slot.numel() - HEADER
        slot[HEADER:].view(torch.float32).view(-1, self._rank).copy_(torch.cat([basis, factor]))
        if leave:
            matrix.addmm_(basis, factor.T, alpha=-1.0).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        # A direction in which there was nothing would stay empty for ever.
        norms = factor.norm(dim=0)
        self._factors[place] = torch.where(norms.isfinite() & (norms > 0.0), factor, fresh)

    def decode(self, slot: Tensor, out: Tensor) -> None:
        """See Coder."""
        if int(slot[:4].numpy().view(np.uint32)[0]) != self._mark:
            raise MismatchError(f"a payload of another codec than powersgd has come: ranks call {_CALL} alike")
        rows, columns = _matrix(out.shape)
        factors = slot[HEADER:].view(torch.float32).view(rows + columns, self._rank)
        torch.mm(factors[:rows], factors[rows:].T, out=out.view(rows, columns))

    def _fresh(self, columns: int) -> Tensor:
        return torch.randn(columns, self._rank, generator=torch.Generator().manual_seed(self._key), device="cpu")


def _matrix(shape: Size) -> tuple[int, int]:
    return shape[:-1].numel(), shape[-1]


_CASTS: dict[Any, str] = {FP16Compressor: "fp16", BF16Compressor: "bf16"}


def kind_of(choice: object, argument: str) -> Kind:
    """Reads one codec, as `compression=` takes it. Raises InvalidArgumentError, naming `argument`."""
    way = way_of(choice)
    if isinstance(way.codec, LowRank) and way == Compress(way.codec, feedback=True):
        return way.codec
    codec = codec_of(_CASTS[way.codec]) if way.codec in _CASTS else way.codec
    if not isinstance(codec, Codec) or way != Compress(way.codec):
        raise InvalidArgumentError(
            f"{argument}={choice!r}: to be sent to one stage it must be a codec alone, a cast or powersgd; None sends"
            " raw, and feedback is an argument of compress_pipeline"
        )
    return lone_codec(codec, argument)


def coder_of(kind: Kind, key: int) -> Coder:
    """A coder of that kind, with random numbers from `key`."""
    return LowRankCoder(kind, key) if isinstance(kind, LowRank) else BlockCoder(kind, key)


def described(kind: Kind | None) -> str:
    """In words that two ends compare."""
    if kind is None:
        return "none"
    return f"powersgd:rank={kind.rank}" if isinstance(kind, LowRank) else kind.spec()


def is_biased(kind: Kind) -> bool:
    """Whether feedback helps it."""
    return isinstance(kind, LowRank) or kind.biased
