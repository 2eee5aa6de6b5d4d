"""What a store key keeps, and what becomes of it: a dense value, or rows by id (`rows.py`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, TypeVar

import numpy as np

from byteps_like.errors import MismatchError
from byteps_like.store.gradient_estimate import GradientEstimate, estimate_gradient
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.updates.update import Values, ValueUpdate, is_finite

Brought = TypeVar("Brought")
"""What a contribution brings to a content."""


@dataclass(frozen=True)
class VersionCall(Generic[Brought]):
    """Of what a version is made, and how."""

    number: int
    brought: Sequence[Brought]
    """All finite, one at least."""
    factors: Sequence[float]
    """One each."""
    lr: float | None
    update: ValueUpdate
    made_of: Sequence[Contribution] = ()
    """Who has brought it."""


class Content(ABC, Generic[Brought]):
    """Of one type. The native twins are in server/store/content."""

    dtype: np.dtype[Any]

    @abstractmethod
    def check(self, source: int, brought: Brought) -> None:
        """Raises MismatchError for what doesn't fit."""

    @abstractmethod
    def is_finite(self, brought: Brought) -> bool:
        """Whether nothing of it is infinite or NaN."""

    def estimate(self, brought: Sequence[Brought]) -> GradientEstimate | None:  # noqa: ARG002 - for those that can
        """Of what several have brought; None: there is none, as of rows, which differ from one to the other."""
        return None

    @abstractmethod
    def apply(self, call: VersionCall[Brought]) -> bool:
        """Makes a version. False if what is brought adds up to what is not finite: then nothing has changed."""


class Dense(Content[Values]):
    """A value of fp32, fp64 or int64, and the state of its update."""

    def __init__(self, value: Values, update: ValueUpdate) -> None:
        self.dtype = value.dtype
        self.value, self.state = value, update.fresh_state(value)

    def check(self, source: int, brought: Values) -> None:
        """Of another shape or type than the value."""
        if (brought.shape, brought.dtype) != (self.value.shape, self.value.dtype):
            raise MismatchError(
                f"rank {source} has pushed {brought.dtype} of shape {brought.shape} to a key of"
                f" {self.value.dtype} of shape {self.value.shape}"
            )

    def is_finite(self, brought: Values) -> bool:
        """All of it."""
        return is_finite(brought)

    def estimate(self, brought: Sequence[Values]) -> GradientEstimate | None:
        """See Content."""
        return estimate_gradient(brought)

    def apply(self, call: VersionCall[Values]) -> bool:
        """Adds up the gradients, then updates value and state."""
        gradient = added_up(call.factors, call.brought)
        if not is_finite(gradient):
            return False
        value, state = call.update.apply(self.value, self.state, gradient, call.lr, call.number, call.made_of)
        if call.update.checks_result and not (is_finite(value) and is_finite(state)):
            return False
        self.value, self.state = value, state
        return True


def added_up(factors: Sequence[float], arrays: Sequence[Values]) -> Values:
    """Each array multiplied by its factor, rounded once to its type; the products added from the first to the last."""
    kind = arrays[0].dtype.type
    with np.errstate(over="ignore", invalid="ignore"):
        products: list[Values] = [kind(one) * array for one, array in zip(factors, arrays, strict=True)]
        return reduce(np.add, products)
