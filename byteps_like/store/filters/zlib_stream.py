"""Any bytes in fewer, where they repeat: a stream of zlib (RFC 1950)."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.compression.codec import Draw
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.filter import Payload, PayloadFilter
from byteps_like.wire.crc32c import Buffer


@dataclass(frozen=True)
class Zlib(PayloadFilter):
    """At a level from 1, which is fast, to 9, which is small."""

    name: ClassVar[str] = "zlib"
    about: ClassVar[str] = "any bytes in fewer, where they repeat"
    sole: ClassVar[str] = "level"

    level: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.level <= 9:
            raise InvalidArgumentError(f"level={self.level!r} of filter zlib: it has levels from 1 to 9")

    @override
    def most(self, dtype: np.dtype[Any], nbytes: int) -> int:
        return nbytes + (nbytes >> 12) + (nbytes >> 14) + (nbytes >> 25) + 13  # zlib's compressBound

    @override
    def encode(self, dtype: np.dtype[Any], draw: Draw, payload: Buffer) -> Payload:
        return zlib.compress(payload, self.level)

    @override
    def decode(self, dtype: np.dtype[Any], payload: Payload, most: int) -> Payload:
        stream = zlib.decompressobj()
        try:
            found = stream.decompress(payload, most + 1)  # one byte more than there may be shows that there are more
        except zlib.error as error:
            raise CorruptError(f"a payload of filter zlib is damaged: {error}") from None
        if not stream.eof or stream.unused_data or len(found) > most:
            raise CorruptError("a payload of filter zlib is cut off, or stands for too many bytes")
        return found
