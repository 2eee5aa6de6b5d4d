"""CRC32C against the vectors of RFC 3720 (B.4) and against the definition, bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from byteps_like.wire.crc32c import crc32c
from byteps_like.wire.crc32c_numpy import crc32c_numpy

RFC_3720 = [
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (bytes.fromhex("01c00000000000000000000000000000140000000000040000000014000000182800000000000000"
                   "0200000000000000"), 0xD9963A56),
    (b"123456789", 0xE3069283),
    (b"", 0),
]  # fmt: skip


def bitwise(data: bytes) -> int:
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


@pytest.mark.parametrize("checksum", [crc32c, crc32c_numpy])
@pytest.mark.parametrize(("data", "expected"), RFC_3720)
def test_rfc_3720(checksum, data, expected):
    assert checksum(data) == expected


@pytest.mark.parametrize("length", [1, 255, 256, 257, 1023, 4096, 16384, 16385, 40000])
def test_folding_equals_the_definition(length):
    data = np.random.default_rng(length).bytes(length)
    assert crc32c_numpy(data) == bitwise(data)


@pytest.mark.parametrize("split", [0, 3, 256, 5000, 19999])
def test_continues_from_a_seed(split):
    data = np.random.default_rng(1).bytes(20000)
    assert crc32c_numpy(data[split:], crc32c_numpy(data[:split])) == crc32c_numpy(data)


def test_takes_any_contiguous_buffer():
    array = np.arange(1000, dtype=np.float32)
    assert crc32c_numpy(memoryview(array)) == bitwise(array.tobytes())
    assert crc32c(bytearray(b"123456789")) == 0xE3069283
