"""A function of a user as an update: servers find it by its name, in modules that they import."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from byteps_like.store.functions.registry import Pushed, check_name, function_of
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.updates.update import Values, ValueUpdate


@dataclass(frozen=True)
class FunctionUpdate(ValueUpdate):
    """What a function does in place. Its registration is only needed where it runs."""

    name: ClassVar[str] = "function"
    source: ClassVar[str] = "its module"
    sole: ClassVar[str] = "of"
    takes_integers: ClassVar[bool] = True
    checks_result: ClassVar[bool] = True
    may_hold_zeros: ClassVar[bool] = True

    of: str = ""

    def __post_init__(self) -> None:
        check_name(self.of)

    @override
    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return function_of(self.of).state(shape)

    @override
    def rate(self, lr: float | None) -> float:
        return math.nan if lr is None else super().rate(lr)

    @override
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        return self.compute_from((), value, state, gradient, lr, step)

    @override
    def compute_from(
        self, pushes: Sequence[Contribution], value: Values, state: Values, gradient: Values, lr: float, step: int
    ) -> tuple[Values, Values]:
        """Without any contribution: as if rank 0 alone had pushed what it computed on the version before."""
        made_of = tuple(pushes) or (Contribution(0, step - 1, step - 1),)
        value, state, gradient = value.copy(), state.copy(), gradient.copy()
        gradient.flags.writeable = False
        function_of(self.of).apply(value, state, Pushed(gradient, None if math.isnan(lr) else lr, step, made_of))
        return value, state
