"""Adagrad, with a sum of squares for each element or for each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate, decayed, non_negative, sum_of_squares


@dataclass(frozen=True)
class Adagrad(ValueUpdate):
    """s += g²; w -= lr/(1 + (step - 1)·lr_decay) · g/(√s + eps). `initial`: s before the first update."""

    name: ClassVar[str] = "adagrad"
    source: ClassVar[str] = "torch.optim.Adagrad"
    slots: ClassVar[int] = 1

    lr: float = non_negative(1e-2)
    lr_decay: float = non_negative(0.0)
    weight_decay: float = non_negative(0.0)
    initial: float = non_negative(0.0)
    eps: float = non_negative(1e-10)

    @override
    def fresh_state(self, value: Values) -> Values:
        return np.full(self.state_shape(value.shape), self.initial, value.dtype)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        real = value.dtype.type
        rate = real(lr / (1 + (step - 1) * self.lr_decay))
        gradient = decayed(gradient, value, self.weight_decay)
        squares = state[0] + gradient * gradient
        return value - rate * gradient / (np.sqrt(squares) + real(self.eps)), squares[None]


@dataclass(frozen=True)
class RowAdagrad(ValueUpdate):
    """s += mean g²; w -= lr·g/(√s + eps), with one s for each row. A value of one dimension has rows of one element."""

    name: ClassVar[str] = "row_adagrad"
    source: ClassVar[str] = "FBGEMM, exact row-wise Adagrad"

    lr: float = non_negative(1e-2)
    eps: float = non_negative(1e-8)

    @override
    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (1, shape[0])

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        if not value.size:
            return value.copy(), state.copy()
        real = value.dtype.type
        rows = gradient.reshape(value.shape[0], -1)
        means = [sum_of_squares(row) / row.size for row in rows]
        squares = state[0] + np.array(means, np.float64).astype(value.dtype)
        moves = real(lr) * rows / (np.sqrt(squares) + real(self.eps))[:, None]
        return value - moves.reshape(value.shape), squares[None]
