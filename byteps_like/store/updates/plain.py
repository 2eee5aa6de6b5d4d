"""Updates that scale nothing: they also take integers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from byteps_like.store.updates.update import Values, ValueUpdate


@dataclass(frozen=True)
class NoUpdate(ValueUpdate):
    """What is combined in a round is its result, and nothing is kept: a push_pull. For bsp and k_of_n only."""

    name: ClassVar[str] = "none"
    source: ClassVar[str] = "BytePS, push_pull"
    takes_integers: ClassVar[bool] = True

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        return gradient.copy(), state


@dataclass(frozen=True)
class Assign(ValueUpdate):
    """The value becomes what is pushed."""

    name: ClassVar[str] = "assign"
    source: ClassVar[str] = "ps-lite, KVServerDefaultHandle"
    takes_integers: ClassVar[bool] = True

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        return gradient.copy(), state


@dataclass(frozen=True)
class Add(ValueUpdate):
    """What is pushed is added to the value. Integers wrap."""

    name: ClassVar[str] = "add"
    source: ClassVar[str] = "ps-lite, KVServerDefaultHandle"
    takes_integers: ClassVar[bool] = True
    adds_up: ClassVar[bool] = True

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        return value + gradient, state
