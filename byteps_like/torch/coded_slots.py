"""Parts of tensors as encoded payloads, each in a slot of a size that all ranks know beforehand."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

import byteps_like._core as _core
from byteps_like.compression.codec import Codec, Floats, Trait
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

    def __init__(self, codec: Codec, key: int) -> None:
        self.spec = codec.spec()
        self._native, self._key = _core.Codec(self.spec, 1), key
        self._mark = zlib.crc32(self.spec.encode())

    def slot(self, numel: int) -> int:
        """Bytes of a slot for `numel` elements: header, and the longest payload rounded up to 8."""
        return HEADER + -(-int(self._native.plan(numel)["payload"]) // 8) * 8

    def encode(self, x: Floats, slot: Bytes, draw: tuple[int, int, int]) -> None:
        """Fills `slot`. `draw`: a number of the part that is equal on all ranks, a round, a rank."""
        part, number, rank = draw
        length = self._native.encode(x, (self._key + part, number, rank), _NOTHING, slot[HEADER:])
        slot[:HEADER].view(np.uint32)[:] = self._mark, length
        slot[HEADER + length :] = 0

    def decode(self, slot: Bytes, out: Floats) -> None:
        """What a slot says. Raises MismatchError for another codec's, CorruptError for what can't be one."""
        self._native.decode(self._payload(slot), 1, (self._key, 0, 0), _NOTHING, 1.0, out)

    def add(self, slot: Bytes, total: Floats) -> None:
        """Adds what a slot says to `total`; raises as `decode` does."""
        self._native.accumulate(total.size, self._payload(slot), total)

    def _payload(self, slot: Bytes) -> Bytes:
        mark, length = (int(word) for word in slot[:HEADER].view(np.uint32))
        if mark != self._mark:
            raise MismatchError(f"a payload of another codec than {self.spec} has come: ranks call compress_fsdp alike")
        if length > slot.size - HEADER:
            raise CorruptError(f"a payload of {self.spec} says that it has {length} bytes, {slot.size - HEADER} came")
        return slot[HEADER : HEADER + length]


def weights_codec(text: str) -> Codec:
    """The codec for what is only gathered. Raises InvalidArgumentError for one whose payloads need others'."""
    codec = codec_of(text)
    if codec.trait not in (Trait.OPAQUE, Trait.REENCODE):
        raise InvalidArgumentError(
            f"weights={text!r}: {codec.spec()} is made to be summed; to be gathered take one of trait OPAQUE or"
            ' REENCODE, such as "int8"'
        )
    return codec


def gradients_codec(text: str, argument: str = "gradients") -> Codec:
    """The codec for what is decoded and added. Raises InvalidArgumentError for one that can't be."""
    codec = codec_of(text)
    if codec.trait is not Trait.REENCODE:
        raise InvalidArgumentError(
            f"{argument}={text!r}: the sums of {codec.spec()} are not fp32, which the second hop encodes; take one of"
            ' trait REENCODE, such as "int4" or "int8"'
        )
    return codec
