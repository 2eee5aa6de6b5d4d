"""LARS and LAMB: the rate of each tensor follows from its norms, so the tensor must be whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from byteps_like.store.updates.adam import Moments
from byteps_like.store.updates.update import Values, ValueUpdate, decayed, fraction, non_negative, sum_of_squares


def _norm(values: Values) -> float:
    return math.sqrt(sum_of_squares(values))


def _ratio(norm: float, of: float) -> float:
    """1 where the papers' ratio says nothing: a norm of 0, or one beyond fp64."""
    ratio = norm / of if of else 0.0
    return ratio if 0 < ratio < math.inf else 1.0


@dataclass(frozen=True)
class Lars(ValueUpdate):
    """r = trust·‖w‖/(‖g‖ + weight_decay·‖w‖); b = momentum·b + lr·r·(g + weight_decay·w); w -= b."""

    name: ClassVar[str] = "lars"
    source: ClassVar[str] = 'You et al., "Large Batch Training of Convolutional Networks" (2017)'
    slots: ClassVar[int] = 1
    whole: ClassVar[bool] = True

    lr: float = non_negative(1e-2)
    momentum: float = fraction(0.9)
    weight_decay: float = non_negative(0.0)
    trust: float = non_negative(1e-3)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        real = value.dtype.type
        norm = _norm(value)
        ratio = _ratio(self.trust * norm, _norm(gradient) + self.weight_decay * norm)
        move = real(lr * ratio) * decayed(gradient, value, self.weight_decay)
        buffer = real(self.momentum) * state[0] + move
        return value - buffer, buffer[None]


@dataclass(frozen=True)
class Lamb(ValueUpdate):
    """u = Adam's direction + weight_decay·w; w -= lr·‖w‖/‖u‖·u."""

    name: ClassVar[str] = "lamb"
    source: ClassVar[str] = 'You et al., "Large Batch Optimization for Deep Learning" (ICLR 2020)'
    slots: ClassVar[int] = 2
    whole: ClassVar[bool] = True

    lr: float = non_negative(1e-3)
    beta1: float = fraction(0.9)
    beta2: float = fraction(0.999)
    eps: float = non_negative(1e-6)
    weight_decay: float = non_negative(1e-2)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        moments = Moments(self.beta1, self.beta2, self.eps)
        state = moments.after(state, gradient)
        direction = decayed(moments.direction(state, 1.0, step), value, self.weight_decay)
        rate = value.dtype.type(lr * _ratio(_norm(value), _norm(direction)))
        return value - rate * direction, state
