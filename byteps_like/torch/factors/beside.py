"""Gradients of Linear weights that travel as factors, where that is less, beside a reducer's buckets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.factors.layer import FactorLayer
from byteps_like.torch.factors.layers import Factors
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.gradients.slot import too_many_passes
from byteps_like.torch.job.routes import Route
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.reducer import GradientReducer


class FactorsBeside:
    """Weights of plain Linear layers of `model`: they are in no bucket, each travels by itself. See Beside.

    `wanted`: True, or "auto": where it is measured to be less.
    """

    def __init__(self, model: nn.Module, wanted: bool | str) -> None:
        self._model, self._wanted = model, wanted
        self._reducer: Callable[[], GradientReducer | None] = lambda: None
        self.factors: Factors | None = None
        """None in a world of one."""

    # Who takes part

    def enter(self, reducer: GradientReducer) -> None:
        """See Beside."""
        self._reducer = weakref.ref(reducer)
        self.close()
        self.factors = None
        if reducer.route.worker.size > 1:
            scaling = reducer.options.scaling
            self.factors = Factors(self._model, self._wanted, reducer.route, reducer.label, scaling)

    def adopt(self, named: Iterable[Named]) -> list[Named]:
        """See Beside."""
        fresh = [] if self.factors is None else self.factors.adopt(named)
        for layer in fresh:
            self._watch(layer)
        return [(layer.name, layer.parameter) for layer in fresh]

    def _watch(self, layer: FactorLayer) -> None:
        """Has `layer` told of each backward that has ended for it."""
        reference, own = weakref.ref(self), weakref.ref(layer)

        def ended(token: torch.Tensor) -> None:
            beside, layer = reference(), own()
            token.grad = None
            if beside is not None and layer is not None:
                with torch.no_grad():
                    beside._on_factors(layer)

        register: Any = layer.captured.token.register_post_accumulate_grad_hook
        register(ended)

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return self.factors is not None and parameter in self.factors

    @property
    def parameters(self) -> Sequence[torch.Tensor]:
        """See Beside."""
        return [] if self.factors is None else [layer.parameter for layer in self.factors.layers]

    def recut(self, route: Route, partition_bytes: int) -> None:
        """See Beside."""
        if self.factors is not None:
            self.factors.recut(route, partition_bytes)

    def close(self) -> None:
        """See Beside."""
        if self.factors is not None:
            self.factors.close()

    def __del__(self) -> None:
        self.close()

    # Rounds

    @property
    def active(self) -> bool:
        """See Beside."""
        return self.factors is not None and self.factors.active

    @property
    def touched(self) -> bool:
        """See Beside."""
        return self.factors is not None and self.factors.touched

    def _on_factors(self, layer: FactorLayer) -> None:
        reducer = self._reducer()
        if reducer is None:
            return
        if layer.by_factors and layer.ready:
            self._again(reducer, layer)
        layer.passes += 1
        if layer.by_factors and layer.passes >= reducer.passes_per_step:
            layer.send()

    def accumulated(self, parameter: torch.Tensor) -> None:
        """What autograd computed itself; beside factors, it is left for the end of the round."""
        reducer = self._reducer()
        if reducer is None or self.factors is None:
            return
        layer = self.factors[parameter]
        if not layer.by_factors and layer.ready:
            self._again(reducer, layer)
        layer.matrix_passes += 1
        if not layer.by_factors and layer.matrix_passes >= reducer.passes_per_step:
            layer.send()

    def _again(self, reducer: GradientReducer, layer: FactorLayer) -> None:
        """As Rounds.accumulated, for what has no gradient that could have been cleared itself."""
        sent = [slot for slot in reducer.parameters.slots() if slot.ready]
        if not sent or not all(slot.cleared() for slot in sent):
            raise too_many_passes(layer, reducer.passes_per_step)
        fresh = layer.captured.fresh()
        reducer.discard()
        layer.captured.rows = fresh

    def finish(self, discard: bool) -> None:
        """See Beside. Raises InvalidArgumentError where a rank has joined."""
        reducer = self._reducer()
        if self.factors is None or reducer is None:
            return
        if reducer.runtime.joiner is not None:
            reducer.runtime.joiner.check("a gradient by its sufficient factors")
        self.factors.finish(discard)

    def complete(self, discard: bool) -> None:
        """See Beside."""
        if self.factors is not None:
            self.factors.complete(discard)

    def reset(self) -> None:
        """See Beside."""
        if self.factors is not None:
            self.factors.reset()


def factor_reducer(
    source: Callable[[], Iterable[Named]], options: ReducerOptions, model: object, wanted: bool | str
) -> GradientReducer:
    """A reducer with FactorsBeside of checked arguments. Raises InvalidArgumentError."""
    if wanted not in (True, "auto"):
        raise InvalidArgumentError(f"sufficient_factors={wanted!r} must be True, False or 'auto'")
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"sufficient_factors={wanted!r} needs model=, the nn.Module with the Linear layers, not {model!r}"
        )
    why = "factors are exchanged from this host's memory; leave sufficient_factors out"
    return GradientReducer(source, replace(options, only_on_host=why), FactorsBeside(model, wanted))
