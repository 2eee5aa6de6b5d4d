"""Adam and AdamW."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate, decayed, fraction, non_negative


@dataclass(frozen=True)
class Moments:
    """The running means m of g and v of g², whose `state` is both, and the direction that follows from them."""

    beta1: float
    beta2: float
    eps: float

    def after(self, state: Values, gradient: Values) -> Values:
        """m += (1 - beta1)·(g - m); v = beta2·v + (1 - beta2)·g²."""
        real = state.dtype.type
        first = state[0] + real(1 - self.beta1) * (gradient - state[0])
        second = real(self.beta2) * state[1] + real(1 - self.beta2) * gradient * gradient
        return np.stack([first, second])

    def direction(self, state: Values, lr: float, step: int) -> Values:
        """lr·m/(√v + eps), where m and v are divided by 1 - beta^step."""
        real = state.dtype.type
        rate, root = real(lr / (1 - self.beta1**step)), real(math.sqrt(1 - self.beta2**step))
        moved: Values = rate * state[0] / (np.sqrt(state[1]) / root + real(self.eps))
        return moved


@dataclass(frozen=True)
class Adam(ValueUpdate):
    """Kingma and Ba, "Adam" (ICLR 2015); weight_decay·w is added to the gradient."""

    name: ClassVar[str] = "adam"
    source: ClassVar[str] = "torch.optim.Adam"
    slots: ClassVar[int] = 2

    lr: float = non_negative(1e-3)
    beta1: float = fraction(0.9)
    beta2: float = fraction(0.999)
    eps: float = non_negative(1e-8)
    weight_decay: float = non_negative(0.0)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        moments = Moments(self.beta1, self.beta2, self.eps)
        state = moments.after(state, decayed(gradient, value, self.weight_decay))
        return value - moments.direction(state, lr, step), state


@dataclass(frozen=True)
class AdamW(ValueUpdate):
    """Loshchilov and Hutter, "Decoupled Weight Decay Regularization" (ICLR 2019): first, w -= lr·weight_decay·w."""

    name: ClassVar[str] = "adamw"
    source: ClassVar[str] = "torch.optim.AdamW"
    slots: ClassVar[int] = 2

    lr: float = non_negative(1e-3)
    beta1: float = fraction(0.9)
    beta2: float = fraction(0.999)
    eps: float = non_negative(1e-8)
    weight_decay: float = non_negative(1e-2)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        moments = Moments(self.beta1, self.beta2, self.eps)
        state = moments.after(state, gradient)
        kept = value * value.dtype.type(1 - lr * self.weight_decay)
        return kept - moments.direction(state, lr, step), state
