"""DeferredBackward: weight gradients of the last layers wait until the first layers have theirs."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from typing import Any, Literal, Self

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.deferred.layer import KINDS, DeferredLayer, is_deferrable
from byteps_like.torch.deferred.search import FirstKSearch
from byteps_like.torch.deferred.steps import StepListener
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.single import push_pull_async_inplace

FirstK = int | Literal["auto"]


class DeferredBackward:
    """Reorders backward so that the gradients that the next forward needs first are sent earlier.

        with bps.DeferredBackward(model, first_k="auto"):
            train(model)

    This is reverse first-k scheduling (Oh et al., "Out-of-Order BackProp", EuroSys 2022). A layer's weight gradient can
    be computed later than its input gradient, because no other layer's backward depends on it. So the weight gradients
    of all but the first `first_k` layers wait until all input gradients are computed; then those nearest to the input
    are computed first. Layers count in the order in which the first forward uses them. Gradients are identical to the
    bit; hooks and gradient accumulation work as usual. It costs memory: inputs and output gradients of deferred layers
    are kept until then.

    model: the module. DistributedOptimizer, DistributedDataParallel (pass either the module or the wrapped one) and any
        other optimizer work with it.
    first_k: how many layers are not deferred, from 0 to all; "auto" searches while training. Each candidate runs for
        `steps` steps, and the times are averaged over all ranks, so that all ranks switch to the same k at the same
        step. Construct it at the same step on all ranks.
    layers: module classes to defer besides Linear, Conv, ConvTranspose and Embedding. Their forward must use only its
        first argument, a tensor, and their own parameters, set no attributes, and return one tensor.
    steps: steps per candidate of the search. The first optimizer that steps parameters of `model` counts them; if there
        is none, call `step()` after each.

    Layers that are frozen, share a weight with another module or have a replaced forward are not deferred; nor is
    anything that runs under torch.compile or torch.func. `backward(create_graph=True)` is refused.

    In effect from construction until `detach()` or the end of the `with` block. Raises InvalidArgumentError if there is
    no layer to defer, if another DeferredBackward holds one of them, or if `first_k` is out of range.
    """

    def __init__(
        self, model: nn.Module, first_k: FirstK = "auto", *, layers: tuple[type[nn.Module], ...] = (), steps: int = 5
    ) -> None:
        turns = itertools.count()
        self._layers = [DeferredLayer(name, module, turns) for name, module in _find(model, (*layers, *KINDS))]
        self._ordered = False
        self._thread = 0
        self._last: float | None = None
        self._label = ""
        self._handles: list[RemovableHandle | StepListener] = []
        count = len(self._layers)
        self._search = FirstKSearch(count, steps) if first_k == "auto" else None
        try:
            self._first_k = count if first_k == "auto" else self._checked(first_k)
        except InvalidArgumentError:
            self.detach()
            raise
        self._handles = [model.register_forward_pre_hook(_BeforeForward(self)), StepListener(model, self.step)]

    @property
    def first_k(self) -> int:
        """Of how many layers the weight gradients aren't deferred. Set it between two steps; that ends a search."""
        return self._first_k

    @first_k.setter
    def first_k(self, value: int) -> None:
        value = self._checked(value)
        self._search = None
        self._change(value)

    @property
    def layers(self) -> list[str]:
        """Names of the layers that can be deferred; after the first forward in the order of their first use."""
        return [layer.name for layer in self._layers]

    @property
    def searching(self) -> bool:
        """Whether candidates are still being tried."""
        return self._search is not None and not self._search.done

    @property
    def table(self) -> dict[int, float]:
        """What the search has found: seconds of a step by k, averaged over the ranks."""
        return {} if self._search is None else self._search.table

    def step(self) -> None:
        """A step of training has ended. Called by the optimizer; blocks for a round trip where a grid is complete.
        Steps that a process makes before it joins an elastic job don't count."""
        if _runtime.pending() is not None:
            return
        now = time.perf_counter()
        last, self._last = self._last, now
        search = self._search
        if search is None or search.done or last is None:
            return
        if search.record(now - last):
            search.decide(self._agreed(search.times()))
            self._last = time.perf_counter()
        if search.first_k != self._first_k:
            self._change(search.first_k)

    def detach(self) -> None:
        """Backward is plain again from the next forward on. Idempotent."""
        self._search = None
        for handle in self._handles:
            handle.remove()
        for layer in self._layers:
            layer.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def before_forward(self) -> None:
        """Called with each forward of the model. The order of the layers is known from the second on."""
        if not self._ordered and any(layer.turn is not None for layer in self._layers):
            self._ordered = True
            self._layers.sort(key=lambda layer: float("inf") if layer.turn is None else layer.turn)
            self._plan()
        elif self._ordered and self._thread != threading.get_ident():
            self._plan()  # each thread counts the ages of its nodes by itself

    def _change(self, first_k: int) -> None:
        self._first_k = first_k
        if self._ordered:
            self._plan()

    def _plan(self) -> None:
        """Makes the nodes of deferred layers anew, the last layer's first: the youngest node goes first."""
        self._thread = threading.get_ident()
        for layer in self._layers[: self._first_k]:
            layer.restore()
        for layer in reversed(self._layers[self._first_k :]):
            layer.defer()

    def _agreed(self, times: list[float]) -> list[float]:
        if not _runtime.initialized() or _runtime.size() == 1:
            return times
        self._label = self._label or f"deferred.{_runtime.current().count('deferred')}"
        name = f"{self._label}.{len(self.table)}"
        handle = push_pull_async_inplace(
            torch.tensor(times, dtype=torch.float64, device="cpu"), average=True, name=name
        )
        agreed: list[float] = synchronize(handle).tolist()
        return agreed

    def _checked(self, first_k: object) -> int:
        if isinstance(first_k, int) and 0 <= first_k <= len(self._layers):
            return first_k
        raise InvalidArgumentError(f"first_k={first_k!r} must be 'auto', or 0 to {len(self._layers)} layers")


class _BeforeForward:
    """The hook of a model; that of a copy of the model does nothing."""

    def __init__(self, owner: DeferredBackward | None = None) -> None:
        self._owner = owner

    def __call__(self, module: nn.Module, args: Any) -> None:
        del module, args
        if self._owner is not None and not torch.compiler.is_compiling():
            self._owner.before_forward()

    def __deepcopy__(self, memo: dict[int, Any]) -> _BeforeForward:
        return _BeforeForward()

    def __reduce__(self) -> Any:
        return _BeforeForward, ()


def _find(model: nn.Module, kinds: tuple[type[nn.Module], ...]) -> list[tuple[str, nn.Module]]:
    named = list(model.named_modules())
    taken = [name for name, module in named if isinstance(module.__dict__.get("forward"), DeferredLayer)]
    if taken:
        raise InvalidArgumentError(f"layer {taken[0]!r} has a DeferredBackward already; detach() that first")
    uses = Counter(id(parameter) for _, module in named for parameter in set(module._parameters.values()))
    found = [
        (name, module)
        for name, module in named
        if is_deferrable(module, kinds)
        and all(uses[id(own)] == 1 for own in module._parameters.values() if own is not None)
    ]
    if not found:
        raise InvalidArgumentError(
            f"{type(model).__name__} has no layer of {', '.join(kind.__name__ for kind in kinds)}"
        )
    return found
