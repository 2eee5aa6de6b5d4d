"""Stripes of tensors, against all of their bytes in one piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.torch.elastic.catching_up import stripes
from byteps_like.torch.elastic.catching_up.messages import chunks
from byteps_like.torch.elastic.catching_up.stripes import Stripe
from byteps_like.torch.job import trees

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8)


@st.composite
def tensors(draw: st.DrawFn) -> list[torch.Tensor]:
    """Of any types and shapes, empty ones and numbers among them; some are seen through another order of axes."""
    shapes = st.lists(st.integers(0, 5), max_size=3)
    made = []
    for shape, dtype in draw(st.lists(st.tuples(shapes, st.sampled_from(DTYPES)), max_size=6)):
        count = int(np.prod(shape)) * torch.empty((), dtype=dtype).element_size()
        data = draw(st.binary(min_size=count, max_size=count))
        flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        tensor = (flat % 2 if dtype is torch.bool else flat).view(dtype).reshape(shape)
        made.append(tensor.permute(list(reversed(range(tensor.dim())))) if draw(st.booleans()) else tensor)
    return made


def whole(parts: list[torch.Tensor]) -> bytes:
    return b"".join(part.contiguous().clone().numpy().tobytes() if part.dtype is not torch.bfloat16
                    else part.contiguous().view(torch.int16).numpy().tobytes() for part in parts)  # fmt: skip


@given(tensors(), st.integers(1, 5), st.integers(1, 9))
def test_stripes_are_all_bytes_in_their_order_and_as_long_as_each_other(
    parts: list[torch.Tensor], count: int, step: int
) -> None:
    every = [Stripe(parts, index, count) for index in range(count)]
    pieces = [
        stripe.read(offset, min(step, stripe.nbytes - offset)).tobytes()
        for stripe in every
        for offset in range(0, stripe.nbytes, step)
    ]
    assert b"".join(pieces) == whole(parts)
    lengths = [stripe.nbytes for stripe in every]
    assert max(lengths) - min(lengths) <= 1


@given(tensors(), st.integers(1, 5), st.integers(1, 9), st.randoms())
def test_what_is_written_in_pieces_in_any_order_is_what_was_read(
    parts: list[torch.Tensor], count: int, step: int, random: object
) -> None:
    copies = [torch.zeros(part.shape, dtype=part.dtype) for part in parts]
    places = [
        (index, offset) for index in range(count) for offset in range(0, Stripe(parts, index, count).nbytes, step)
    ]
    random.shuffle(places)  # type: ignore[attr-defined]
    for index, offset in places:
        source, target = Stripe(parts, index, count), Stripe(copies, index, count)
        target.write(offset, source.read(offset, min(step, source.nbytes - offset)))
    assert whole(copies) == whole(parts)


def test_a_tensor_of_one_element_may_have_any_strides() -> None:
    table = torch.arange(12.0).reshape(3, 4)
    one = table[:1, 3]
    assert one.stride() == (4,) and whole([one]) == Stripe([one], 0, 1).read(0, 4).tobytes()
    Stripe([one], 0, 1).write(0, np.frombuffer(np.float32(7).tobytes(), np.uint8).copy())
    assert table[0].tolist() == [0, 1, 2, 7]


def test_of_a_tensor_in_another_order_only_some_rows_are_copied_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole one may be larger than what a device has left."""
    copied: list[int] = []

    def bytes_of(part: torch.Tensor) -> torch.Tensor:
        copied.append(part.nbytes)
        return trees.bytes_of(part)

    monkeypatch.setattr(stripes, "bytes_of", bytes_of)
    monkeypatch.setattr(stripes, "_MOST_COPIED", 3000)
    pictures = torch.randn(64, 8, 6, 2).to(memory_format=torch.channels_last)
    parts = [pictures, torch.randn(2, 300).t(), pictures[:1].permute(0, 2, 1, 3)]
    read = b"".join(stripe.read(0, stripe.nbytes).tobytes() for stripe in (Stripe(parts, i, 3) for i in range(3)))
    assert read == whole(parts)
    assert max(copied) <= 3000
    copied.clear()
    assert len(Stripe(parts, 1, 3).read(5, 7)) == 7
    assert sum(copied) <= 2 * pictures[0].nbytes


@given(st.integers(0, 1 << 22))
def test_chunks_are_all_of_it(nbytes: int) -> None:
    found = list(chunks(nbytes))
    assert sum(length for _, length in found) == nbytes
    assert [offset for offset, _ in found] == [sum(length for _, length in found[:i]) for i in range(len(found))]
