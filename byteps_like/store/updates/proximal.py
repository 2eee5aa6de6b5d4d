"""Gradient descent with an L1 penalty, which makes most weights zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate, non_negative


@dataclass(frozen=True)
class Proximal(ValueUpdate):
    """w -= lr·g; then w comes lr·l1 nearer to zero, and no further than to zero: a step of proximal gradient descent
    for a loss with the penalty l1·‖w‖₁."""

    name: ClassVar[str] = "proximal"
    source: ClassVar[str] = 'Daubechies, Defrise, De Mol, "An iterative thresholding algorithm" (2004)'
    may_hold_zeros: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

    lr: float = non_negative(1e-3)
    l1: float = non_negative(1e-3)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        real = value.dtype.type
        moved = value - real(lr) * gradient
        left = np.abs(moved) - real(lr * self.l1)
        return np.where(left > 0, np.copysign(left, moved), real(0)), state
