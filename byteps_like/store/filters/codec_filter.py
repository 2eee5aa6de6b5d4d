"""Codecs of byteps_like.compression as payload filters: each contribution is decoded by itself, whatever the trait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats
from byteps_like.compression.lone import Bytes, lone
from byteps_like.compression.random import stream_of
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.filter import Payload, PayloadFilter
from byteps_like.wire.crc32c import Buffer

_PURPOSE = 0x636F6465
"""Of the number in a payload."""
_NUMBER = 8
"""Its bytes."""


@dataclass(frozen=True)
class CodecFilter(PayloadFilter):
    """Rows of float32, and of float64, which are rounded to float32 first, as `codec` encodes them.

    A payload: a number, from which all random numbers derive (8 bytes, little-endian); the codec's prelude, this
    sender's own, filled up with zeros to a multiple of 8 bytes; what the codec makes of the rows.
    """

    name: ClassVar[str] = "codec"
    about: ClassVar[str] = "any codec of byteps_like.compression, by its own name"
    takes_rows: ClassVar[bool] = True
    of_values: ClassVar[bool] = False
    """Codecs are made for gradients."""

    codec: Codec

    @override
    def spec(self) -> str:
        return self.codec.spec()

    @override
    def check(self, dtype: DType) -> None:
        if dtype not in (DType.FLOAT32, DType.FLOAT64):
            raise InvalidArgumentError(f"codec {self.codec.spec()} takes float32 and float64, not {dtype.name.lower()}")

    @override
    def most(self, dtype: np.dtype[Any], nbytes: int) -> int:
        plan = lone(self.codec).plan(nbytes // dtype.itemsize)
        return _body_at(plan.prelude) + plan.payload

    @override
    def encode(self, dtype: np.dtype[Any], draw: Draw, payload: Buffer) -> Payload:
        with np.errstate(over="ignore"):
            x: Floats = np.frombuffer(payload, dtype).astype(np.float32, copy=False)
        return self.encode_with_rest(x, draw, None)

    def encode_with_rest(self, x: Floats, draw: Draw, rest: Floats | None) -> Payload:
        """The payload of `x`; `rest`, which `x` may be, becomes what it doesn't say of it."""
        codec = lone(self.codec)
        plan = codec.plan(x.size)
        body = _body_at(plan.prelude)
        made = np.empty(body + plan.payload, np.uint8)
        made[_NUMBER:body] = 0
        low, high = stream_of(0, draw, _PURPOSE, shared=False)
        made[:_NUMBER].view("<u8")[0] = number = high << 32 | low
        length = codec.encode(x, Draw(number), made[_NUMBER : _NUMBER + plan.prelude], made[body:], rest)
        encoded: Payload = made[: body + length].tobytes()
        return encoded

    @override
    def decode(self, dtype: np.dtype[Any], payload: Payload, most: int) -> Payload:
        codec, found = lone(self.codec), np.empty(most // dtype.itemsize, np.float32)
        plan = codec.plan(found.size)
        body, given = _body_at(plan.prelude), _aligned(payload)
        if given.size < body:
            raise CorruptError(f"a payload of codec {self.codec.spec()} is cut off: it has {given.size} bytes")
        draw = Draw(int(given[:_NUMBER].view("<u8")[0]))
        codec.decode(given[body:], draw, given[_NUMBER : _NUMBER + plan.prelude], found)
        rows: Payload = found.astype(dtype, copy=False).tobytes()
        return rows


def _body_at(prelude: int) -> int:
    return _NUMBER + -(-prelude // _NUMBER) * _NUMBER


def _aligned(payload: Payload) -> Bytes:
    """In memory for elements of any type."""
    return np.frombuffer(payload, np.uint8).copy()
