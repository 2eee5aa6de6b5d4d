"""Gradients whose blocks are sent before the rest: whichever partitions are cut off when, servers add up the same."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.stored.blocks import Progress, Sent

EDGES = (0, 4, 5, 9, 12)
SLICES = [slice(begin, end) for begin, end in pairwise(EDGES)]


@st.composite
def mini_batches(draw: Any) -> tuple[list[float], list[set[int]]]:
    """Weights of blocks, and the partitions that are cut off after each but the last."""
    weights = draw(st.lists(st.floats(0.25, 8), min_size=2, max_size=6))
    cuts = [draw(st.sets(st.integers(0, len(SLICES) - 1))) for _ in weights[1:]]
    return weights, cuts


@given(mini_batches(), st.randoms(use_true_random=False))
def test_each_block_counts_once_in_every_partition(mini_batch: tuple[list[float], list[set[int]]], random: Any) -> None:
    weights, cuts = mini_batch
    whole, sent, progress = sum(weights), Sent(), Progress()
    added, counted, pushes = torch.zeros(12, dtype=torch.float64), [0.0] * len(SLICES), [0] * len(SLICES)

    def push(value: torch.Tensor, run: range, weight: float) -> None:
        for part in run:
            added[SLICES[part]] += weight * value.view(-1)[SLICES[part]]
            counted[part] += weight
            pushes[part] += 1

    grad, wanted = torch.zeros(3, 4, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    for weight, cut in zip(weights, [*cuts, None], strict=True):
        block = torch.tensor([random.uniform(-1, 1) for _ in range(12)], dtype=torch.float64)
        grad += block.view(3, 4)
        wanted += whole * block
        progress.end_block(weight, whole, len(weights))
        if cut is not None and progress.leaves(whole, len(weights)):
            sent.send(grad, [part for part in cut if part not in sent.weights], SLICES, (progress.weight, whole), push)
    sent.send_rest(grad.clone(), SLICES, whole, push)
    torch.testing.assert_close(added, wanted)
    assert counted == pytest.approx([whole] * len(SLICES))
    assert pushes == [1 + (part in sent.weights) for part in range(len(SLICES))]


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf"), 1.1])
def test_weights_that_make_no_sense_are_refused(weight: float) -> None:
    with pytest.raises(InvalidArgumentError, match="weight"):
        Progress().end_block(weight, 1.0, 2)


def test_blocks_are_equal_parts_unless_they_say_otherwise() -> None:
    progress = Progress()
    for _ in range(3):
        progress.end_block(None, 1.0, 3)
    assert progress.weight == pytest.approx(1.0) and not progress.leaves(1.0, 3)
