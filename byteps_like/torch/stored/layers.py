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
from torch.utils.hooks import RemovableHandle

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.factors.capture import Captured, Rows, hook, linears, will_be_made

FactorPair = tuple[torch.Tensor, torch.Tensor]
"""Gradients of what came out of a layer, K x M, and what went in, K x N: of a weight of M x N."""


class _Layer:
    """One weight, and what its layers keep. Autograd may make a `.grad` of it as well, of a penalty on it, say, before
    or after the layers' gradients; `ended` is told once both are there."""

    def __init__(self, parameter: torch.nn.Parameter, ended: Callable[[torch.Tensor], None]) -> None:
        self.captured = Captured(parameter)
        self.captured.captures = True
        self._ended, self._node = ended, torch.autograd.graph.get_gradient_edge(parameter).node
        self._is_awaited = self._has_come = False
        """Autograd's own gradient, in this backward."""

    def complete(self) -> None:
        """A backward has come to the last of the layers."""
        self.captured.complete()
        if will_be_made(self._node) and not self._has_come:
            self._is_awaited = True
        else:
            self._end()

    def add_own(self) -> None:
        """Autograd has made a gradient, or added to it."""
        if self._is_awaited or not self.captured.is_asked_for():
            self._end()
        else:
            self._has_come = True

    def _end(self) -> None:
        self._is_awaited = self._has_come = False
        self._ended(self.captured.parameter)

    def forget(self) -> None:
        """No backward is under way."""
        self._is_awaited = self._has_come = False
        self.captured.forget()


class FactorLayers:
    """The plain Linear layers of `model`, which keep factors from `follow` on; None: there are none. Their weights get
    no `.grad`, unless autograd makes one besides."""

    def __init__(self, model: nn.Module | None) -> None:
        self._modules = {} if model is None else linears(model)
        self._layers: dict[int, _Layer] = {}
        """By the weight's id."""
        self._hooks: list[Any] = []

    def __bool__(self) -> bool:
        return bool(self._modules)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return parameter in self._modules

    def follow(self, parameter: torch.Tensor, ended: Callable[[torch.Tensor], None]) -> RemovableHandle:
        """Has the layers of this weight keep factors, and `ended` told of each backward that has come to its end."""
        weight: Any = parameter
        layer = self._layers[id(parameter)] = _Layer(weight, ended)
        self._hooks += hook(self._modules[weight], layer.captured)
        own = weakref.ref(layer)

        def complete(token: torch.Tensor) -> None:
            token.grad = None
            if (layer := own()) is not None:
                layer.complete()

        register: Any = layer.captured.token.register_post_accumulate_grad_hook
        self._hooks.append(register(complete))
        found: RemovableHandle = weight.register_post_accumulate_grad_hook(lambda _: layer.add_own())
        return found

    def has(self, parameter: torch.Tensor) -> bool:
        """Whether something is kept of this weight."""
        layer = self._layers.get(id(parameter))
        return layer is not None and bool(layer.captured.rows)

    def are_fewer(self, parameter: torch.Tensor) -> bool:
        """Whether what is kept of it has fewer elements than the whole gradient."""
        kept = self._layers[id(parameter)].captured.rows
        return sum(inputs.numel() + grads.numel() for inputs, grads in kept) < parameter.numel()

    def take(self, parameter: torch.Tensor) -> list[Rows]:
        """Hands over what was kept of a weight; nothing of others."""
        layer = self._layers.get(id(parameter))
        return [] if layer is None else layer.captured.take()

    def make_whole(self, parameter: torch.Tensor) -> None:
        """Makes, or adds to, `.grad` what is kept."""
        if self.has(parameter):
            with torch.no_grad():
                self._layers[id(parameter)].captured.into_grad()

    def forget(self) -> None:
        """Gradients are cleared, and no backward is under way: forgets everything, also of one that has failed."""
        for layer in self._layers.values():
            layer.forget()

    def close(self) -> None:
        """Layers are what they were. Idempotent."""
        for layer in self._layers.values():
            layer.captured.captures = False
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
