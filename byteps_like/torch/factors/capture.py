"""Linear layers whose weight's gradient is not computed in backward: its factors, input and grad_output, are kept.

Capture is an identity behind the layer, which then runs with its weight detached, so autograd computes the gradients
of input and bias only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from byteps_like.errors import InvalidArgumentError

Rows = tuple[torch.Tensor, torch.Tensor]
"""Inputs and grad_outputs of some rows of a batch: K x N and K x M."""


def product(parameter: torch.Tensor, rows: Iterable[Rows]) -> torch.Tensor:
    """The sum of their outer products, in the type of `parameter`."""
    total = torch.zeros_like(parameter)
    for x, grad in rows:
        total.addmm_(grad.to(total.dtype).T, x.to(total.dtype))
    return total


def will_be_made(node: Any) -> bool:
    """Within a backward: whether it comes, or has come, to this node."""
    return bool(torch._C._will_engine_execute_node(node))


class Captured:
    """What one weight's layers have seen since it was last handed on.

    `token` is a leaf that every use hangs on, so its gradient comes once per backward, after that of the last use.
    """

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self.parameter = parameter
        self.captures = False
        """Whether forwards from now on keep factors."""
        self.token = torch.zeros((), requires_grad=True, device="cpu")
        self._token_node = torch.autograd.graph.get_gradient_edge(self.token).node
        self.rows: list[Rows] = []
        self.forward_rows = 0
        """Rows that went through forward while no factors were kept, and no round has counted. Gradients may be cleared
        between forward and backward, so that doesn't clear it."""
        self.dtype = parameter.dtype
        self._complete = 0

    def is_asked_for(self) -> bool:
        """Within a backward: whether that is one of gradients of all leaves, or of a few others only."""
        return will_be_made(self._token_node)

    def keep(self, inputs: torch.Tensor, grads: torch.Tensor) -> None:
        """Rows of one use, in the type in which autograd would have multiplied them."""
        self.dtype = grads.dtype
        wide, narrow = inputs.shape[-1], grads.shape[-1]
        self.rows.append((inputs.to(grads.dtype).reshape(-1, wide), grads.reshape(-1, narrow)))

    def complete(self) -> None:
        """A backward has come to the last use."""
        self._complete = len(self.rows)

    def take(self) -> list[Rows]:
        """Hands over what was kept."""
        rows, self.rows, self._complete = self.rows, [], 0
        return rows

    def into_grad(self) -> None:
        """Makes, or adds to, `p.grad` what autograd would have."""
        found, old = product(self.parameter, self.take()), self.parameter.grad
        self.parameter.grad = found if old is None else old + found

    def drop(self) -> None:
        """Forgets what backwards that have ended have kept: another one may be under way."""
        self.rows, self._complete = self.rows[self._complete :], 0

    def forget(self) -> None:
        """A new round begins, and no backward is under way."""
        self.rows, self._complete = [], 0

    def count_forward_rows(self) -> int:
        """Those of this round, which ends."""
        found, self.forward_rows = self.forward_rows, 0
        return found


class _Capture(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: torch.Tensor, inputs: torch.Tensor, token: torch.Tensor, to: Captured) -> Any:
        ctx.save_for_backward(inputs)
        ctx.to, ctx.like = to, token
        return output.view_as(output)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (inputs,) = ctx.saved_tensors
        if ctx.to.is_asked_for():
            ctx.to.keep(inputs, grad)
        return grad if ctx.needs_input_grad[0] else None, None, torch.zeros_like(ctx.like), None


def linears(model: nn.Module) -> dict[torch.nn.Parameter, list[nn.Linear]]:
    """Weights that nothing but plain Linear layers of `model` have, and those layers."""
    found: dict[torch.nn.Parameter, list[nn.Linear]] = {}
    others: set[torch.nn.Parameter] = set()
    for module in model.modules():
        plain = type(module) is nn.Linear and "weight" in module._parameters and "forward" not in vars(module)
        for name, parameter in module.named_parameters(recurse=False):
            if plain and name == "weight" and parameter.is_floating_point() and parameter.is_contiguous():
                found.setdefault(parameter, []).append(module)  # type: ignore[arg-type]
            else:
                others.add(parameter)
    return {weight: modules for weight, modules in found.items() if weight not in others}


def module_with_factors(model: object, wanted: bool | str) -> nn.Module:
    """What a user gives as `model`, and `wanted` as `sufficient_factors`. Raises InvalidArgumentError."""
    if wanted not in (True, "auto"):
        raise InvalidArgumentError(f"sufficient_factors={wanted!r} must be True, False or 'auto'")
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"sufficient_factors={wanted!r} needs model=, the nn.Module with the Linear layers, not {model!r}"
        )
    return model


def hook(modules: Iterable[nn.Linear], captured: Captured) -> list[RemovableHandle]:
    """Has the layers hand their factors to `captured` while that captures. Copies of the layers do not."""
    handles: list[Any] = []
    for module in modules:
        before, after = _hooks(weakref.ref(module), weakref.ref(captured))
        handles += [
            module.register_forward_pre_hook(before),
            module.register_forward_hook(after, prepend=True, always_call=True),
        ]
    return handles


def _hooks(
    own: weakref.ref[nn.Linear], to: weakref.ref[Captured]
) -> tuple[Callable[..., Any], Callable[..., Any]]:  # fmt: skip
    def before(module: nn.Module, args: tuple[Any, ...]) -> None:
        captured = to()
        if captured is None or module is not own() or not torch.is_grad_enabled() or not args:
            return
        weight = captured.parameter
        if module._parameters["weight"] is weight and weight.requires_grad:
            if captured.captures:
                module._parameters["weight"] = weight.detach()  # type: ignore[assignment]
            else:
                captured.forward_rows += args[0].numel() // max(args[0].shape[-1], 1)

    def after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        captured = to()
        if captured is None or module is not own():
            return output
        if module._parameters["weight"] is captured.parameter:
            if torch.is_grad_enabled() and isinstance(output, torch.Tensor):
                captured.dtype = output.dtype
            return output
        module._parameters["weight"] = captured.parameter
        if not isinstance(output, torch.Tensor):  # the forward has failed
            return output
        capture: Any = _Capture.apply
        return capture(output, args[0].detach(), captured.token, captured)

    return before, after
