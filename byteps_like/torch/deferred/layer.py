"""A layer whose weight gradients are a node of their own in autograd's graph, to be run after all that is older."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.reduction.parameter_set import note_reached

KINDS: tuple[type[nn.Module], ...] = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Embedding,
)
"""Modules whose `forward` is known to need nothing but its input and the module's own parameters."""


def is_deferrable(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> bool:
    """Whether it is a layer of one of these kinds as it was written: forward, parameters, no modules within."""
    kind = next((kind for kind in kinds if isinstance(module, kind)), None)
    if kind is None or type(module).forward is not kind.forward or "forward" in module.__dict__:
        return False
    own = [parameter for parameter in module._parameters.values() if parameter is not None]
    return bool(own) and not module._modules and all(type(parameter) is nn.Parameter for parameter in own)


class DeferredLayer:
    """Takes the place of `module.forward`. While `defer`red, gradients of its weights wait for all older nodes.

    The engine runs ready nodes by age, the youngest first, and the weights' node is made before any forward. What the
    layer computes is recorded in a small graph of its own, which backward goes through twice: at once for the input,
    and from the weights' node for the weights. So the arithmetic, and every bit of it, is autograd's. Whatever it does
    not know (torch.compile, vmap, other parameters by functional_call) goes the plain way.
    """

    def __init__(self, name: str, module: nn.Module, turns: Iterator[int]) -> None:
        self.name = name
        self.module = module
        self.turn: int | None = None
        """When it was first used, counted over all layers of the model."""
        self._turns = turns
        self._weights: _Weights | None = None
        module.__dict__["forward"] = self

    def defer(self) -> None:
        """From the next forward on. Of several layers the one whose turn this was last goes first in backward."""
        self._weights = _Weights.of(self.module)

    def restore(self) -> None:
        """Plain backward from the next forward on."""
        self._weights = None

    @property
    def deferred(self) -> bool:
        """Whether `defer` is in force."""
        return self._weights is not None

    def detach(self) -> None:
        """Gives the module its own forward back."""
        self.restore()
        self.module.__dict__.pop("forward", None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward."""
        if self.turn is None:
            self.turn = next(self._turns)
        weights, forward = self._weights, type(self.module).forward
        if weights is None or not args or not _is_plain(args[0]) or not weights.belong_to(self.module):
            return forward(self.module, *args, **kwargs)
        x, leaves = args[0], weights.leaves()
        inner = x.detach().requires_grad_(x.requires_grad)
        output = forward(_stand_in(self.module, leaves), inner, *args[1:], **kwargs)
        use = _Use(weights.asked, weights.queue, get_gradient_edge(output), inner, _asked(leaves), [output.detach()])
        return _Split.apply(weights.anchor, x, use)  # type: ignore[no-untyped-call]

    # A copy of the module, in memory or in a file, is a plain one.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return _own_forward(memo.get(id(self.module), self.module))

    def __reduce__(self) -> Any:
        return _own_forward, (self.module,)


def _own_forward(module: nn.Module) -> Any:
    return types.MethodType(type(module).forward, module)


class _Queue(list["_Pending"]):
    """What a weights' node has to do. `nothing` is the gradient that tells it to."""

    nothing: torch.Tensor


@dataclass(eq=False)
class _Weights:
    """A layer's parameters, and `anchor`, behind which is the node that stands between them and all uses of them."""

    parameters: dict[str, nn.Parameter | None]
    asked: list[torch.Tensor]
    queue: _Queue
    anchor: torch.Tensor

    @classmethod
    def of(cls, module: nn.Module) -> _Weights | None:
        """None if the layer is frozen."""
        parameters, queue = dict(module._parameters), _Queue()
        asked = _asked(parameters)
        if not asked:
            return None
        with torch.enable_grad():
            anchor: torch.Tensor = _Node.apply(queue, *asked)  # type: ignore[no-untyped-call]
        queue.nothing = anchor.detach()
        return cls(parameters, asked, queue, anchor)

    def belong_to(self, module: nn.Module) -> bool:
        """Whether the module still has these parameters, and none was frozen or thawed since."""
        now = module._parameters
        same = all(now.get(name) is parameter for name, parameter in self.parameters.items())
        return same and list(map(id, self.asked)) == list(map(id, _asked(self.parameters)))

    def leaves(self) -> dict[str, torch.Tensor | None]:
        """The parameters as leaves of another graph."""
        return {
            name: None if parameter is None else parameter.detach().requires_grad_(parameter.requires_grad)
            for name, parameter in self.parameters.items()
        }


@dataclass(eq=False)
class _Use:
    """One call of a layer: the small graph from `edge` back to the input `x` and the weights' `leaves`."""

    asked: list[torch.Tensor]
    queue: _Queue
    edge: GradientEdge
    x: torch.Tensor
    leaves: list[torch.Tensor]
    output: list[torch.Tensor]


@dataclass(eq=False)
class _Pending:
    """A use whose weight gradients are due in the backward pass `task`."""

    task: int
    edge: GradientEdge
    leaves: list[torch.Tensor]
    gradient: torch.Tensor

    def weight_gradients(self, keep: bool) -> tuple[torch.Tensor, ...]:
        """Frees the small graph unless told to `keep` it."""
        return torch.autograd.grad([self.edge], self.leaves, [self.gradient], retain_graph=keep)


class _Split(torch.autograd.Function):
    """Backward gives the input's gradient at once, and the rest to the weights' queue."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, x: torch.Tensor, use: _Use) -> Any:  # noqa: ARG004
        ctx.set_materialize_grads(False)
        ctx.use = use
        return use.output.pop()  # else the graph would keep its own output alive

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None:
            return None, None, None
        use: _Use | None = ctx.use
        if use is None:
            raise RuntimeError(_TWICE)
        if torch.is_grad_enabled():
            raise InvalidArgumentError(_CREATE_GRAPH)
        for parameter in use.asked:
            note_reached(parameter)
        if not _keeps_graph():
            ctx.use = None
        to_x = None
        if ctx.needs_input_grad[1]:
            (to_x,) = torch.autograd.grad([use.edge], [use.x], [gradient], retain_graph=True)
        use.queue.append(_Pending(_backward_pass(), use.edge, use.leaves, gradient))
        return use.queue.nothing, to_x, None


class _Node(torch.autograd.Function):
    """Backward gives the weights' gradients, of all uses in this backward pass. It is run once they all have come."""

    @staticmethod
    def forward(ctx: Any, queue: _Queue, *parameters: torch.Tensor) -> torch.Tensor:
        ctx.queue = queue
        return parameters[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: torch.Tensor) -> Any:
        now, keep = _backward_pass(), _keeps_graph()
        # A backward pass that failed, or did not ask for weights, has left what it had queued.
        due = [pending for pending in ctx.queue if pending.task == now]
        ctx.queue.clear()
        if not due:
            return (None,) * len(ctx.needs_input_grad)
        total = due.pop(0).weight_gradients(keep)
        while due:  # in the order in which autograd itself would have added them
            more = due.pop(0).weight_gradients(keep)
            total = tuple(sum_ + part for sum_, part in zip(total, more, strict=True))
        return None, *total


def _is_plain(x: object) -> bool:
    """Whether it is a tensor like any other, in a forward like any other."""
    if type(x) is not torch.Tensor or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    return torch._C._functorch.peek_interpreter_stack() is None


def _asked(parameters: Mapping[str, torch.Tensor | None]) -> list[torch.Tensor]:
    return [parameter for parameter in parameters.values() if parameter is not None and parameter.requires_grad]


def _stand_in(module: nn.Module, parameters: dict[str, torch.Tensor | None]) -> nn.Module:
    """The module with other parameters, for one forward; the module itself stays as it is, for other threads too."""
    shadow: nn.Module = object.__new__(type(module))
    shadow.__dict__.update(module.__dict__)
    shadow.__dict__["_parameters"] = parameters
    return shadow


# What torch says of a backward pass under way only within itself; its own hooks for several gradients ask the same.


def _backward_pass() -> int:
    return int(torch._C._current_graph_task_id())


def _keeps_graph() -> bool:
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


_TWICE = (
    "Trying to backward through the graph a second time: the layer's deferred gradients have been freed; say"
    " backward(retain_graph=True) the first time"
)
_CREATE_GRAPH = (
    "backward(create_graph=True) through a layer whose weight gradients are deferred: they have no graph of their own;"
    " call DeferredBackward.detach() first, or defer nothing by first_k=len(deferred.layers)"
)
