"""CRC32C by instruction and by table: RFC 3720's vectors, every short length and misalignment, continuation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

kernels = pytest.importorskip("byteps_like._core").kernels

BEST = kernels.instruction_set()
SETS = [name for name in ("avx512", "avx2", "neon", "scalar") if kernels.select_instruction_set(name)]
kernels.select_instruction_set(BEST)
READ_10_COMMAND = bytes.fromhex(
    "01c00000 00000000 00000000 00000000 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000"
)
GOLDEN = [  # RFC 3720, B.4, and the usual check value
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
    (READ_10_COMMAND, 0xD9963A56),
    (b"123456789", 0xE3069283),
    (b"", 0),
]


@pytest.fixture(params=SETS, autouse=True)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[None]:
    assert kernels.select_instruction_set(request.param)
    yield
    kernels.select_instruction_set(BEST)


def bitwise(data: bytes, seed: int = 0) -> int:
    """The definition: division by the polynomial, bit by bit."""
    crc = ~seed & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


@pytest.mark.parametrize("data, expected", GOLDEN)
def test_golden_vectors(data: bytes, expected: int) -> None:
    assert kernels.crc32c(data) == expected


def test_every_length_and_misalignment() -> None:
    data = np.random.default_rng(5).integers(0, 256, 512, np.uint8)
    room = np.empty(512 + 128, np.uint8)
    aligned = -room.ctypes.data % 64
    expected = 0
    for length in range(258):
        for offset in range(64) if length % 16 in (0, 1, 15) else (length % 64,):
            place = room[aligned + offset : aligned + offset + length]
            place[:] = data[:length]
            assert kernels.crc32c(place) == expected, (length, offset)
        expected = bitwise(data[length : length + 1].tobytes(), expected)


@settings(max_examples=40)
@given(st.integers(0, 60_000), st.integers(0, 60_000), st.integers(0, 63), st.integers(0, 2**32 - 1))
def test_continuation_is_the_whole(length: int, cut: int, offset: int, seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, length + offset, np.uint8)[offset:]
    cut = min(cut, length)
    whole = kernels.crc32c(data, seed)
    assert kernels.crc32c(data[cut:], kernels.crc32c(data[:cut], seed)) == whole
    assert data.size == 0 or kernels.crc32c(data[1:], bitwise(data[:1].tobytes(), seed)) == whole


def test_large_buffers_agree_with_the_table() -> None:
    data = np.random.default_rng(6).integers(0, 256, 100_003, np.uint8)
    got = kernels.crc32c(data)
    kernels.select_instruction_set("scalar")
    assert got == kernels.crc32c(data)
