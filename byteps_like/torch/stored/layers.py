"""Linear layers whose weights' gradients go to servers as two factors, which servers multiply.

After Chilimbi et al., "Project Adam: building an efficient and scalable deep learning training system", OSDI 2014,
section 3.2.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.factors.capture import Captured, Rows, hook, linears

FactorPair = tuple[torch.Tensor, torch.Tensor]
"""Gradients of what came out of a layer, K x M, and what went in, K x N: of a weight of M x N."""


class FactorLayers:
    """The plain Linear layers of `model`, which keep factors from `follow` on; None: there are none. Their weights get
    no `.grad`."""

    def __init__(self, model: nn.Module | None) -> None:
        self._modules = {} if model is None else linears(model)
        self._captured: dict[int, Captured] = {}
        """By the weight's id."""
        self._hooks: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._modules)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return parameter in self._modules

    def follow(self, parameter: torch.Tensor, ended: Callable[[torch.Tensor], None]) -> None:
        """Has the layers of this weight keep factors, and `ended` told of each backward that has come to the last."""
        weight: Any = parameter
        captured = self._captured[id(parameter)] = Captured(weight)
        captured.captures = True
        self._hooks += hook(self._modules[weight], captured)
        own = weakref.ref(captured)

        def complete(token: torch.Tensor) -> None:
            token.grad = None
            if (captured := own()) is not None:
                captured.complete()
                ended(captured.parameter)

        register: Any = captured.token.register_post_accumulate_grad_hook
        self._hooks.append(register(complete))

    def take(self, parameter: torch.Tensor) -> list[Rows]:
        """Hands over what was kept of a weight; nothing of others."""
        captured = self._captured.get(id(parameter))
        return [] if captured is None else captured.take()

    def drop(self) -> None:
        """Gradients are cleared: forgets what backwards that have ended have kept."""
        for captured in self._captured.values():
            captured.drop()

    def close(self) -> None:
        """Layers are what they were. Idempotent."""
        for captured in self._captured.values():
            captured.captures = False
        while self._hooks:
            self._hooks.pop().remove()


def pair_of(rows: Sequence[Rows], parameter: torch.Tensor) -> FactorPair:
    """All of them as one, in the type in which servers keep the weight."""
    inputs, grads = zip(*rows, strict=True)
    kept = torch.float64 if parameter.dtype is torch.float64 else torch.float32
    return torch.cat(grads).to(kept), torch.cat(inputs).to(kept)


def factors_combined(combine: str) -> str:
    """How servers combine what comes as factors, where everything else is combined so. Raises InvalidArgumentError."""
    found = {"mean": "factors", "sum": "factors:combine=sum"}.get(combine, combine)
    if found.partition(":")[0] != "factors":
        raise InvalidArgumentError(
            f"sufficient_factors: servers have means and sums of products, not combine={combine!r}; leave one out"
        )
    return found
