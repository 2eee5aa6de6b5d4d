"""What an update is: its parameters, and a slow, obvious reference in NumPy of what servers do natively.

The native twin (server/update/update.h has the same contract) gives the same bits. So the references compute in the
value's own type, operation by operation in the order that is written; scalars are computed in fp64 and rounded once;
sums are fp64, made in 16 lanes (byteps_like/compression/lanes.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.lanes import lane_sum
from byteps_like.compression.spec import canonical
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.policy import Contribution

Values = NDArray[Any]

_BELOW = "below"  # in the metadata of a parameter


def non_negative(default: float) -> Any:
    """A parameter of a `ValueUpdate` that is finite and at least 0."""
    return field(default=default, metadata={_BELOW: math.inf})


def fraction(default: float) -> Any:
    """A parameter of a `ValueUpdate` that is at least 0 and below 1."""
    return field(default=default, metadata={_BELOW: 1.0})


@dataclass(frozen=True)
class ValueUpdate(ABC):
    """Parameters of an update, fields of the subclass, and its reference: a pure function.

    A value has the type fp32 or fp64, or, where `takes_integers`, int64. Its first dimension counts rows. An update
    that scales what it subtracts has a parameter `lr`, the rate of pushes that bring none.
    Raises InvalidArgumentError for parameters out of bounds.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    """Where the formula is from."""
    slots: ClassVar[int] = 0
    """Numbers of state per element, of the value's type."""
    takes_integers: ClassVar[bool] = False
    whole: ClassVar[bool] = False
    """Whether it needs the tensor uncut, because it takes norms over all of it."""
    sole: ClassVar[str] = ""
    """The parameter that a text may give without its name, alone; "": none."""
    may_hold_zeros: ClassVar[bool] = False
    """Whether weights may stay zero because of a penalty, whatever gradients they have."""
    adds_up: ClassVar[bool] = False
    """Whether two updates in a row do what one by the sum of their gradients does, or nearly so: then what a codec has
    left out of a gradient may come with the next."""
    checks_result: ClassVar[bool] = False
    """Whether a version is left out where value or state come out with an infinity or a NaN."""

    def __post_init__(self) -> None:
        for parameter in fields(self):
            below, given = parameter.metadata.get(_BELOW, math.inf), getattr(self, parameter.name)
            if parameter.metadata and not 0 <= given < below:
                bound = "a finite number" if below == math.inf else f"below {below:g}"
                raise InvalidArgumentError(
                    f"{parameter.name} of {self.name} must be at least 0 and {bound}, not {given:g}"
                )

    def spec(self) -> str:
        """All parameters in canonical form: what the native core makes its twin from."""
        return canonical(self)

    def state_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the state for a value of `shape`: one array behind the other."""
        return (self.slots, *shape)

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether values may be of that type."""
        return dtype in [np.float32, np.float64] + [np.int64] * self.takes_integers

    def fresh_state(self, value: Values) -> Values:
        """The state before the first update, of the value's type."""
        return np.zeros(self.state_shape(value.shape), value.dtype)

    def apply(
        self, value: Values, state: Values, gradient: Values, lr: float | None = None, step: int = 1,
        pushes: Sequence[Contribution] = (),
    ) -> tuple[Values, Values]:  # fmt: skip
        """The value and the state after one update; the arguments stay as they are.

        `gradient`: all contributions combined, of the value's shape and type; see `is_finite`. `lr`: that of the push,
        None for the update's own. `step`: the version that this update makes, from 1. `pushes`: whose gradients were
        combined, for functions. Raises InvalidArgumentError for
        arrays that don't fit, an `lr` that is negative or not finite, and a `step` below 1.
        """
        self._check(value, state, gradient, step)
        with np.errstate(all="ignore"):
            return self.compute_from(pushes, value, state, gradient, self.rate(lr), step)

    @abstractmethod
    def compute(self, value: Values, state: Values, gradient: Values, lr: float, step: int) -> tuple[Values, Values]:
        """What `apply` returns, of arguments that have been checked."""

    def compute_from(
        self, pushes: Sequence[Contribution], value: Values, state: Values, gradient: Values, lr: float, step: int
    ) -> tuple[Values, Values]:
        """`compute`, for updates that see more of the contributions than their combined gradient."""
        return self.compute(value, state, gradient, lr, step)

    def rate(self, lr: float | None) -> float:
        """The learning rate of a push that brings `lr`, or None. 1 where the update has none and doesn't use it."""
        given = float(getattr(self, "lr", 1.0)) if lr is None else lr
        if not 0 <= given < math.inf:
            raise InvalidArgumentError(f"lr of a push must be at least 0 and finite, not {given}")
        return given

    def _check(self, value: Values, state: Values, gradient: Values, step: int) -> None:
        if not self.takes(value.dtype):
            names = "float32, float64" + ", int64" * self.takes_integers
            raise InvalidArgumentError(f"update {self.name} takes values of {names}, not {value.dtype}")
        if not value.ndim:
            raise InvalidArgumentError(f"update {self.name}: a value needs a dimension, this is a scalar")
        self._check_array("gradient", gradient, value.shape, value.dtype)
        self._check_array("state", state, self.state_shape(value.shape), value.dtype)
        if step < 1:
            raise InvalidArgumentError(f"update {self.name}: steps are counted from 1, this is {step}")

    def _check_array(self, what: str, array: Values, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        if (array.shape, array.dtype) != (shape, dtype):
            raise InvalidArgumentError(
                f"update {self.name}: {what} is {array.dtype} of shape {array.shape}, but this value needs"
                f" {dtype} of shape {shape}"
            )


def is_finite(gradient: Values) -> bool:
    """Whether there is neither an infinity nor a NaN. Servers don't apply what isn't, and say so."""
    return bool(np.isfinite(gradient).all())


def sum_of_squares(values: Values) -> float:
    """Of all elements, in 16 lanes of fp64."""
    wide: NDArray[np.float64] = values.astype(np.float64).ravel()
    return lane_sum(wide * wide)


def decayed(gradient: Values, value: Values, weight_decay: float) -> Values:
    """The gradient of the loss with an L2 penalty of `weight_decay`; without one, the gradient itself."""
    return gradient + value.dtype.type(weight_decay) * value if weight_decay else gradient
