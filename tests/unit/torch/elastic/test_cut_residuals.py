"""What ranks have left out, among other numbers of ranks: the sum stays what it was."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.torch.elastic.cuts.content import Owns
from byteps_like.torch.elastic.cuts.residuals import codec_state, summed

NAMES = ["a", "b"]


def memory(rank: int, name: str, rate: float) -> dict[str, Any]:
    """What a rank's codec remembers; whole numbers, so that sums are exact."""
    drawn = torch.arange(4, dtype=torch.float32) + 100 * rank + 10 * NAMES.index(name)
    kinds = {"residual": drawn, "momentum": 2 * drawn, "factor": torch.full((2,), 5.0)}
    return {"rank": rank, "size": 9, "rounds": 7, "parameters": {name: kinds}, "rates": {name: rate}}


def owns_of(saved: list[Any], rank: int, size: int) -> Owns:
    """As a rank of `size` reads them."""
    missing = saved[size:] if rank == 0 else []
    return Owns(saved[0], saved[rank] if rank < len(saved) else None, missing)


@given(before=st.integers(1, 6), after=st.integers(1, 6), name=st.sampled_from(NAMES))
def test_nothing_is_lost(before: int, after: int, name: str) -> None:
    saved = [memory(rank, name, rate=0.5) for rank in range(before)]
    loaded = [codec_state(owns_of(saved, rank, after)) for rank in range(after)]
    for kind in ("residual", "momentum"):
        found = [one["parameters"][name].get(kind, torch.zeros(4)) for one in loaded if one]
        assert torch.equal(sum(found), sum(one["parameters"][name][kind] for one in saved))
    for rank, one in enumerate(loaded):
        assert one is not None and one["rounds"] == 7 and "rank" not in one
        assert torch.equal(one["parameters"][name]["factor"], torch.full((2,), 5.0)), "the same on all, not summed"
        if 0 < rank < before:
            assert torch.equal(one["parameters"][name]["residual"], saved[rank]["parameters"][name]["residual"])


def test_a_residual_at_another_learning_rate_is_rescaled() -> None:
    """As when the rate of one rank changes: updates add up."""
    found = codec_state(Owns(memory(0, "a", 0.5), memory(0, "a", 0.5), [memory(1, "a", 0.25)]))
    expected = memory(0, "a", 1)["parameters"]["a"]["residual"] + memory(1, "a", 1)["parameters"]["a"]["residual"] / 2
    assert found is not None and torch.equal(found["parameters"]["a"]["residual"], expected)


def test_a_parameter_that_only_a_missing_rank_remembers_is_taken_over() -> None:
    found = codec_state(Owns(memory(0, "a", 0.5), memory(0, "a", 0.5), [memory(1, "b", 0.25)]))
    assert found is not None and found["rates"] == {"a": 0.5, "b": 0.25}
    assert torch.equal(found["parameters"]["b"]["residual"], memory(1, "b", 1)["parameters"]["b"]["residual"])


def test_what_was_read_is_not_changed() -> None:
    first, missing = memory(0, "a", 0.5), memory(1, "a", 0.5)
    codec_state(Owns(first, first, [missing]))
    assert torch.equal(first["parameters"]["a"]["residual"], memory(0, "a", 1)["parameters"]["a"]["residual"])


def test_without_codecs_there_is_nothing() -> None:
    assert codec_state(Owns(None)) is None
    assert summed([None, {}]) == {}
    total = summed([{"w": torch.ones(2)}, None, {"w": torch.ones(2), "v": torch.zeros(1)}])
    assert total["w"].tolist() == [2, 2] and total["v"].tolist() == [0]
