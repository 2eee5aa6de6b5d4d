"""Digests of tensors: equal where bits, shapes and types are, and nowhere else."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.torch.ops import differing
from byteps_like.torch.ops.differing import digest

CONTENTS = st.binary(min_size=1, max_size=200)


def tensor_of(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def bitwise(data: bytes) -> int:
    """CRC32C by its definition: division by the polynomial, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF


def reference(data: bytes, about: str) -> tuple[int, int]:
    """By the definition: the bits of the description and of the bytes, and the words with zeros behind them."""
    words = struct.unpack(f"<{-(-len(data) // 8)}Q", data + bytes(-len(data) % 8))
    return bitwise(about.encode() + data), sum(words) % 2**64


@given(CONTENTS)
def test_a_digest_is_what_it_says(data: bytes) -> None:
    assert digest(tensor_of(data)) == reference(data, f"torch.uint8 ({len(data)},)")


@given(st.integers(1, 20), st.binary(max_size=200))
def test_blocks_make_no_difference(words: int, data: bytes) -> None:
    before = digest(tensor_of(data)) if data else digest(torch.empty(0, dtype=torch.uint8))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(differing, "_BLOCK_BYTES", 8 * words)
        assert digest(torch.tensor(list(data), dtype=torch.uint8)) == before


@given(CONTENTS, st.data())
def test_another_byte_makes_another_digest(data: bytes, drawn: st.DataObject) -> None:
    place = drawn.draw(st.integers(0, len(data) - 1))
    changed = bytearray(data)
    changed[place] = drawn.draw(st.integers(0, 255))
    assert (digest(tensor_of(data)) == digest(tensor_of(bytes(changed)))) == (data == bytes(changed))


@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=12), st.data())
def test_two_words_that_change_places_make_another_digest(words: list[int], drawn: st.DataObject) -> None:
    """Their sum is the same."""
    one, other = (drawn.draw(st.integers(0, len(words) - 1)) for _ in range(2))
    changed = list(words)
    changed[one], changed[other] = words[other], words[one]
    found = [digest(torch.from_numpy(np.array(each, np.uint64).view(np.int64))) for each in (words, changed)]
    assert (found[0] == found[1]) == (words == changed) and found[0][1] == found[1][1]


@settings(max_examples=30)
@given(st.lists(st.sampled_from([0x7FC00000, 0x7FC00001, 0xFFC00000, 0x00000000, 0x80000000, 0x3F800000]), max_size=6))
def test_bits_count_and_not_numbers(patterns: list[int]) -> None:
    plain = torch.zeros(len(patterns))
    drawn = torch.from_numpy(np.array(patterns, np.uint32).view(np.float32))
    assert (digest(drawn) == digest(plain)) == (not any(patterns))
    assert digest(drawn) == digest(drawn.clone())


@pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64],
)
def test_any_type_shape_and_strides(dtype: torch.dtype) -> None:
    square = torch.arange(36).reshape(6, 6).to(dtype)
    for view in (square.t(), square[::2, 1::3], square[1], square[5, 5], square[::4, ::7][:1], square[:0]):
        raw = bytes(torch.empty(view.numel(), dtype=dtype).copy_(view.reshape(-1)).view(torch.uint8).tolist())
        assert digest(view) == digest(view.clone()) == reference(raw, f"{dtype} {tuple(view.shape)}")
    assert digest(square.requires_grad_(square.is_floating_point())) == digest(square.detach())


def test_shape_and_type_count() -> None:
    zeros = torch.zeros(4, dtype=torch.int32)
    alike = [zeros, zeros.reshape(2, 2), zeros.reshape(1, 4), zeros.float(), torch.zeros(2, dtype=torch.int64)]
    empty = [torch.empty(0), torch.empty(0, 3), torch.empty(3, 0), torch.empty(0, dtype=torch.bool), torch.tensor(0.0)]
    assert len({digest(each) for each in [*alike, *empty]}) == len(alike) + len(empty)
