"""What stands in `p.grad` for a gradient that has gone another way: no memory, and an error for whoever uses it."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from byteps_like.errors import InvalidArgumentError


class FreedGradient(torch.Tensor):
    """Shape and type of a gradient without its elements. Every operation on it raises InvalidArgumentError.

    So clipping by torch.nn.utils, GradScaler and a backward too many are errors, where None would make them silently
    do nothing, or do the wrong thing.
    """

    label: str
    advice: str

    @staticmethod
    def __new__(cls, parameter: torch.Tensor, label: str, advice: str) -> FreedGradient:
        """For the gradient of `parameter`, called `label` in the error, which ends with `advice`."""
        make: Any = torch.Tensor._make_wrapper_subclass
        found: FreedGradient = make(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        found.label, found.advice = label, advice
        return found

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"FreedGradient({self.label!r}, {tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> NoReturn:  # fmt: skip
        """Raises InvalidArgumentError, whatever is asked."""
        given = (*args, *(kwargs or {}).values())
        flat = [item for arg in given for item in (arg if isinstance(arg, (list, tuple)) else [arg])]
        freed = next(item for item in flat if isinstance(item, FreedGradient))
        raise InvalidArgumentError(f"the gradient of {freed.label!r} is not here ({function} wants it): {freed.advice}")
