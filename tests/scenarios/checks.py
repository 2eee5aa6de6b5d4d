"""Assertions that several scenarios share."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import nn

from tests.scenarios.models import distance, flat

EXACT = 1e-12
"""Relative norm for float64."""


def same_everywhere(bps: Any, tensor: torch.Tensor) -> None:
    """Bit-identical on all ranks."""
    sums = bps.allgather_object(zlib.crc32(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes()))
    assert len(set(sums)) == 1, f"ranks hold different results: {sums}"


def matches(bps: Any, model: nn.Module, reference: nn.Module, tolerance: float = EXACT) -> None:
    """The distributed model equals the reference, and is bit-identical on all ranks."""
    found = distance(flat(model), flat(reference))
    assert found < tolerance, f"relative distance {found} to a single process"
    same_everywhere(bps, flat(model))


def raises(kind: type[Exception], call: Any, *words: str) -> Exception:
    """`call` raises `kind`, and its message has all of `words`."""
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), f"{words} not all in: {error}"
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
