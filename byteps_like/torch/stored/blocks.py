"""Blocks of a mini-batch: what of a step's gradient servers have been given before the rest of it.

A rank's gradient g of a mini-batch that counts w is the sum of its blocks' gradients. Blocks that count v of w, with
the sum h, travel as h·w/v with weight v, and the rest as (g - h)·w/(w - v) with weight w - v: servers, which multiply
by weights, add up the same as for g with weight w, and a mean over a version is one over all samples that are in it.

Xu et al., "Live gradient compensation for evading stragglers in distributed learning", INFOCOM 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import torch

from byteps_like.errors import InvalidArgumentError

_LEAST_REST = 1e-3
"""Of a rank's weight: less is not kept back, since its gradient would have to be multiplied by too much."""

PushPart = Callable[[torch.Tensor, range, float], None]
"""Contributes these partitions of a tensor, with that weight."""


@dataclass
class Progress:
    """How much of a mini-batch is done."""

    blocks: int = 0
    weight: float = 0.0
    """That its blocks so far count."""

    def end_block(self, own: float | None, whole: float, count: int) -> None:
        """Another block is done, which counts `own` of `whole`; None: one of `count` equal parts. Raises
        InvalidArgumentError for what is no weight of a part."""
        weight = whole / count if own is None else own
        if not (weight > 0 and math.isfinite(weight)):
            raise InvalidArgumentError(f"a block's weight is a number above 0, not {own!r}")
        if self.weight + weight > whole * (1 + _LEAST_REST):
            raise InvalidArgumentError(
                f"blocks of weight {self.weight + weight:g}, in a step whose weight is {whole:g}: set optimizer.weight"
                " to that of all blocks together, before backward"
            )
        self.blocks += 1
        self.weight += weight

    def leaves(self, whole: float, count: int) -> bool:
        """Whether a part of the mini-batch is left that counts."""
        return self.blocks < count and self.weight < whole * (1 - _LEAST_REST)

    def restart(self) -> None:
        """A mini-batch begins."""
        self.blocks, self.weight = 0, 0.0


@dataclass
class Sent:
    """What of one parameter's gradient has been sent in this step."""

    weights: dict[int, float] = field(default_factory=dict)
    """By partition, of the blocks; each is sent once before the rest, so that a step costs twice its bytes at most."""

    def __bool__(self) -> bool:
        return bool(self.weights)

    def send(
        self, grad: torch.Tensor, parts: Sequence[int], slices: Sequence[slice], shares: tuple[float, float],
        push: PushPart,
    ) -> None:  # fmt: skip
        """Contributes these partitions of `grad`, contiguous, as it is now, and makes them zero there. `shares`: the
        weight of the blocks, and of the mini-batch."""
        done, whole = shares
        value, flat = grad * (whole / done), grad.view(-1)
        for part in parts:
            flat[slices[part]] = 0
            self.weights[part] = done
        for run in _runs(parts):
            push(value, run, done)

    def send_rest(self, grad: torch.Tensor, slices: Sequence[slice], whole: float, push: PushPart) -> None:
        """Contributes what is left of `grad`, contiguous, whose elements change."""
        flat = grad.view(-1)
        for part, done in self.weights.items():
            flat[slices[part]] *= whole / (whole - done)
        left = [whole - self.weights.get(part, 0.0) for part in range(len(slices))]
        for weight, parts in groupby(range(len(slices)), key=left.__getitem__):
            for run in _runs(parts):
                push(grad, run, weight)


def _runs(parts: Iterable[int]) -> list[range]:
    """Of neighbours."""
    runs: list[range] = []
    for part in sorted(parts):
        if runs and runs[-1].stop == part:
            runs[-1] = range(runs[-1].start, part + 1)
        else:
            runs.append(range(part, part + 1))
    return runs
