"""The weights of a model as a few vectors of equal length, which travel at different times."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps_like.errors import InvalidArgumentError


@dataclass(frozen=True)
class _Piece:
    """Elements `start` to `stop` of a parameter, in C order."""

    parameter: torch.Tensor
    start: int
    stop: int

    def read(self) -> torch.Tensor:
        return self.parameter.detach().reshape(-1)[self.start : self.stop]

    def mix(self, values: torch.Tensor, own: float) -> None:
        flat = self.parameter.detach().reshape(-1)  # a copy where the parameter isn't contiguous
        piece = flat[self.start : self.stop]
        common = values.to(piece.device)
        piece.copy_(common if own == 0 else common.lerp(piece.to(common.dtype), own))
        if not self.parameter.is_contiguous():
            self.parameter.detach().copy_(flat.view(self.parameter.shape))


@dataclass(frozen=True)
class Fragment:
    """Neighbouring elements of a model's parameters."""

    pieces: tuple[_Piece, ...]
    dtype: torch.dtype

    def read(self) -> torch.Tensor:
        """A copy of what they are now: one dimension, on the CPU, float32 or float64."""
        if not self.pieces:
            return torch.empty(0, dtype=self.dtype)
        return torch.cat([piece.read().to("cpu", self.dtype) for piece in self.pieces])

    def mix(self, values: torch.Tensor, own: float) -> None:
        """They become `own` of themselves and the rest of `values`, each in its parameter's type and place."""
        with torch.no_grad():
            begun = 0
            for piece in self.pieces:
                size = piece.stop - piece.start
                piece.mix(values[begun : begun + size], own)
                begun += size


def fragments_of(parameters: Sequence[torch.Tensor], count: int) -> list[Fragment]:
    """All elements in `count` fragments, whose sizes differ by one at most.

    Raises InvalidArgumentError for parameters that aren't real numbers or are spread over ranks, and for more fragments
    than elements.
    """
    for parameter in parameters:
        _check(parameter)
    total = sum(parameter.numel() for parameter in parameters)
    if not 1 <= count <= total:
        raise InvalidArgumentError(f"fragments={count} of {total} trainable elements: take 1 to {total}")
    dtype = torch.float64 if any(one.dtype is torch.float64 for one in parameters) else torch.float32
    bounds = [total * number // count for number in range(count + 1)]
    return [Fragment(_pieces(parameters, start, stop), dtype) for start, stop in itertools.pairwise(bounds)]


def _pieces(parameters: Sequence[torch.Tensor], start: int, stop: int) -> tuple[_Piece, ...]:
    found, begun = [], 0
    for parameter in parameters:
        first, last = max(start - begun, 0), min(stop - begun, parameter.numel())
        if first < last:
            found.append(_Piece(parameter, first, last))
        begun += parameter.numel()
    return tuple(found)


def _check(parameter: torch.Tensor) -> None:
    if hasattr(parameter, "to_local"):
        raise InvalidArgumentError(
            "LowComm needs whole parameters on every rank; this one is a DTensor, spread over some"
        )
    if not parameter.is_floating_point():
        raise InvalidArgumentError(f"LowComm can't average parameters of {parameter.dtype}")
