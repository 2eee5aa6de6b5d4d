"""Stochastic gradient descent, without and with momentum: torch.optim.SGD with dampening 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate, decayed, fraction, non_negative


@dataclass(frozen=True)
class Sgd(ValueUpdate):
    """w -= lr·g, where g includes weight_decay·w."""

    name: ClassVar[str] = "sgd"
    source: ClassVar[str] = "torch.optim.SGD"
    adds_up: ClassVar[bool] = True

    lr: float = non_negative(1e-3)
    weight_decay: float = non_negative(0.0)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        return value - value.dtype.type(lr) * decayed(gradient, value, self.weight_decay), state


@dataclass(frozen=True)
class Momentum(ValueUpdate):
    """b = momentum·b + g; w -= lr·b."""

    name: ClassVar[str] = "momentum"
    source: ClassVar[str] = "torch.optim.SGD"
    slots: ClassVar[int] = 1
    adds_up: ClassVar[bool] = True

    lr: float = non_negative(1e-3)
    momentum: float = fraction(0.9)
    weight_decay: float = non_negative(0.0)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        real = value.dtype.type
        buffer = real(self.momentum) * state[0] + decayed(gradient, value, self.weight_decay)
        return value - real(lr) * buffer, buffer[None]


@dataclass(frozen=True)
class Nesterov(ValueUpdate):
    """b = momentum·b + g; w -= lr·(g + momentum·b)."""

    name: ClassVar[str] = "nesterov"
    source: ClassVar[str] = "torch.optim.SGD with nesterov=True"
    slots: ClassVar[int] = 1
    adds_up: ClassVar[bool] = True

    lr: float = non_negative(1e-3)
    momentum: float = fraction(0.9)
    weight_decay: float = non_negative(0.0)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        real = value.dtype.type
        direction = decayed(gradient, value, self.weight_decay)
        buffer = real(self.momentum) * state[0] + direction
        return value - real(lr) * (direction + real(self.momentum) * buffer), buffer[None]
