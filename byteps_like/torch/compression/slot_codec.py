"""Parts of tensors as encoded payloads, each in a slot of a size that all ranks know beforehand."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

import byteps_like._core as _core
from byteps_like.compression.codec import Codec, Floats, Trait
from byteps_like.compression.quantised.casts import Cast
from byteps_like.compression.registry import codec_of
from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError

Bytes = NDArray[np.uint8]

HEADER = 8
"""Bytes before each payload: CRC-32 of the codec's canonical text, and the payload's length."""
_NOTHING = np.zeros(0, np.uint8)


class SlotCodec:
    """A codec that makes and reads slots. Arrays are C-contiguous, on the CPU; accumulators begin at 64 bytes.

    `key` and the draws of single calls make the random numbers of codecs that round stochastically. Thread-safe.
    """

    def __init__(self, codec: Codec, key: int, asked: str = "compress_fsdp") -> None:
        """`asked`: the user's call, for messages."""
        self.spec, self._asked = codec.spec(), asked
        self._native, self._key = _core.Codec(self.spec, 1), key
        self._mark = zlib.crc32(self.spec.encode())

    def slot(self, numel: int) -> int:
        """Bytes of a slot for `numel` elements: header, and the longest payload rounded up to 8."""
        return HEADER + -(-int(self._native.plan(numel)["payload"]) // 8) * 8

    def encode(self, x: Floats, slot: Bytes, draw: tuple[int, int, int], left: Floats | None = None) -> int:
        """Fills `slot`, and `left` with what it leaves out of `x`, which `left` may be; 0 where that isn't finite.

        `draw`: a number of the part that is equal on all ranks, a round, a rank. Returns the bytes that must travel:
        header and payload, rounded up to 8.
        """
        part, number, rank = draw
        drawn = (self._key + part, number, rank)
        length: int
        if left is None:
            length = self._native.encode(x, drawn, _NOTHING, slot[HEADER:])
        else:
            length = self._native.encode_with_residual(x, drawn, _NOTHING, slot[HEADER:], left)
            np.nan_to_num(left, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
        slot[:HEADER].view(np.uint32)[:] = self._mark, length
        slot[HEADER + length :] = 0
        return HEADER + -(-length // 8) * 8

    def decode(self, slot: Bytes, out: Floats) -> None:
        """What a slot says. Raises MismatchError for another codec's, CorruptError for what can't be one."""
        self._native.decode(self._payload(slot), 1, (self._key, 0, 0), _NOTHING, 1.0, out)

    def add(self, slot: Bytes, total: Floats) -> None:
        """Adds what a slot says to `total`; raises as `decode` does."""
        self._native.accumulate(total.size, self._payload(slot), total)

    def _payload(self, slot: Bytes) -> Bytes:
        mark, length = (int(word) for word in slot[:HEADER].view(np.uint32))
        if mark != self._mark:
            raise MismatchError(f"a payload of another codec than {self.spec} has come: ranks call {self._asked} alike")
        if length > slot.size - HEADER:
            raise CorruptError(f"a payload of {self.spec} says that it has {length} bytes, {slot.size - HEADER} came")
        return slot[HEADER : HEADER + length]


def lone_codec(codec: Codec | str, argument: str, merged: bool = False) -> Codec:
    """The codec for what is gathered, or sent from one to one: whose payload says by itself what was encoded.

    `merged`: payloads travel in as many bytes as they have; in slots those of trait MERGE would save none. Raises
    InvalidArgumentError, naming `argument`, for a codec that can't do it.
    """
    found, name = (codec_of(codec), codec) if isinstance(codec, str) else (codec, codec.name)
    if found.trait in (Trait.OPAQUE, Trait.REENCODE) or isinstance(found, Cast):
        return found
    if found.trait is not Trait.MERGE:
        raise InvalidArgumentError(
            f"{argument}={name!r}: {found.spec()} is made to be summed; to be gathered, or sent to one, take one of"
            ' trait OPAQUE or REENCODE, such as "int8", or a cast'
        )
    if not merged:
        raise InvalidArgumentError(
            f"{argument}={name!r}: payloads of {found.spec()} may be as long as the tensor, and who receives must know"
            ' their size beforehand; take one of trait REENCODE, such as "int8", or a cast'
        )
    return found


def gradients_codec(text: str, argument: str = "gradients") -> Codec:
    """The codec for what is decoded and added. Raises InvalidArgumentError for one that can't be."""
    codec = codec_of(text)
    if codec.trait is not Trait.REENCODE:
        raise InvalidArgumentError(
            f"{argument}={text!r}: the sums of {codec.spec()} are not fp32, which the second hop encodes; take one of"
            ' trait REENCODE, such as "int4" or "int8"'
        )
    return codec
