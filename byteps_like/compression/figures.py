"""What encoding does to gradients, in figures summed over a sample of all ranks, and when it is too much. Pure.

What is usual for a codec is measured, too: its error on normal and on lognormal numbers, its clamps on normal ones.
Error feedback has the bound of Karimireddy et al. ("Error Feedback Fixes SignSGD", ICML 2019, lemma 3), with the
contraction that is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

import byteps_like._core as _core
from byteps_like.compression.codec import Floats

FACTOR = 5.0
"""Times a codec's usual error: what is above is no usual gradient."""
CLAMPED = 2.0
"""Times the share of elements that a codec cuts off of normal numbers."""
RISES = 3
"""Looks, one after the other, at which the residual has grown: it may have no bound."""
SLACK = 2.0
"""Times the bound of error feedback, above which growth counts; ten times as much counts at once."""
HARMLESS = 1e-3
"""An NMSE that no training has minded: fp16 of small numbers comes near it."""


@dataclass(frozen=True)
class Figures:
    """Sums over what was sampled; those of several ranks add up."""

    energy: float = 0.0
    """Squares of what was encoded: gradient, momentum and residual."""
    error: float = 0.0
    """Squares of what of it was not sent."""
    elements: float = 0.0
    clamped: float = 0.0
    """Elements beyond the codec's range."""
    gradient: float = 0.0
    """Squares of the gradient,"""
    residual: float = 0.0
    """and of the residual, before they were added up."""
    broken: float = 0.0
    """Samples that weren't finite: they say nothing of the codec, and nothing else is counted of them."""
    lost: float = 0.0
    """Samples that were finite, but not as they were sent."""

    @property
    def nmse(self) -> float:
        """Error by energy."""
        return self.error / self.energy if self.energy else 0.0

    @property
    def clamp(self) -> float:
        """Share of the elements beyond the codec's range."""
        return self.clamped / self.elements if self.elements else 0.0

    @property
    def ratio(self) -> float:
        """Norm of the residual by that of the gradient."""
        return math.sqrt(self.residual / self.gradient) if self.gradient else 0.0

    def numbers(self) -> tuple[float, ...]:
        """For a sum over ranks."""
        return astuple(self)


COUNT = len(fields(Figures))


@dataclass(frozen=True)
class Encoding:
    """How a sample is encoded: `draw` as csrc/codec/codec.h has it, `agreed` the prelude, reduced over all ranks."""

    codec: _core.Codec
    draw: tuple[int, int, int]
    agreed: Any

    @classmethod
    def alone(cls, codec: _core.Codec, x: Floats, draw: tuple[int, int, int] = (1, 1, 0)) -> Encoding:
        """By the prelude of `x` itself, of which other ranks have not heard yet."""
        agreed = np.zeros(codec.plan(x.size)["prelude"], np.uint8)
        if agreed.size:
            codec.prepare(x, draw, agreed)
        return cls(codec, draw, agreed)

    def figures(self, x: Floats, gradient: Floats, residual: Floats | None = None) -> Figures:
        """Encodes `x`, which was made of `gradient` and `residual`."""
        if not np.isfinite(x).all():
            return Figures(broken=1.0)
        left, payload = np.empty_like(x), np.zeros(self.codec.plan(x.size)["payload"], np.uint8)
        self.codec.encode_with_residual(x, self.draw, self.agreed, payload, left)
        if not np.isfinite(left).all():
            return Figures(elements=x.size, lost=1.0)
        owed = 0.0 if residual is None else _energy(residual)
        clamped = self.codec.clamped(x, self.draw, self.agreed)
        return Figures(_energy(x), _energy(left), x.size, clamped, _energy(gradient), owed)


def _energy(x: Floats) -> float:
    wide = x.astype(np.float64)
    return float(wide @ wide)


@dataclass(frozen=True)
class Usual:
    """What a codec does to numbers as gradients are, at best and at worst."""

    nmse: float
    clamp: float


@lru_cache(maxsize=64)
def usual(spec: str, world: int, numel: int) -> Usual:
    """Of partitions of `numel` elements. Encodes two of them."""
    random = np.random.default_rng(0)
    normal = random.standard_normal(numel).astype(np.float32)
    wide = (np.exp(random.standard_normal(numel)) * np.sign(normal)).astype(np.float32)
    codec = _core.Codec(spec, world)
    plain, skewed = (Encoding.alone(codec, x).figures(x, x) for x in (normal, wide))
    return Usual(max(plain.nmse, skewed.nmse), plain.clamp)


def alarm(seen: Sequence[Figures], like: Usual, feedback: bool) -> str:
    """What is wrong with the last of `seen`, earlier looks being before it; "" if nothing is."""
    now = seen[-1]
    if now.lost:
        return "the encoded values are not finite, although the gradient is"
    expected = like.clamp * now.elements
    if like.clamp and now.clamped > CLAMPED * expected + 4.0 * math.sqrt(expected):
        return f"{now.clamp:.2%} of the elements are clamped; usual is {like.clamp:.2%}"
    if now.nmse > max(FACTOR * like.nmse, HARMLESS):
        return f"the error (NMSE) is {now.nmse:.3g}; usual is {like.nmse:.3g}"
    return _growth(seen) if feedback else ""


def _growth(seen: Sequence[Figures]) -> str:
    """Whether the residual grows beyond its bound: 2 sqrt(1 - d) / d of the largest gradient, with d = 1 - NMSE."""
    now, most = seen[-1], max(one.gradient for one in seen)
    if most == 0.0:
        return ""
    kept = 1.0 - now.nmse
    bound = 2.0 * math.sqrt(now.nmse) / kept if kept > 0.0 else 1.0
    last = [math.sqrt(one.residual / most) for one in seen[-1 - RISES :]]
    rises = len(last) > RISES and all(after > before for before, after in pairwise(last))
    if last[-1] <= SLACK * bound * (1.0 if rises else 10.0):
        return ""
    return f"the residual is {last[-1]:.3g} times the gradient, where error feedback has a bound of {bound:.3g}"
