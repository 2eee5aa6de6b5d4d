"""Gradients reduced while backward runs, those of Linear weights as factors where that is less."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.factors.layer import FactorLayer
from byteps_like.torch.factors.layers import Factors
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.gradients.slot import too_many_passes
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.reducer import GradientReducer


class FactorReducer(GradientReducer):
    """See GradientReducer. Weights of plain Linear layers of `model` are in no arena: each travels by itself."""

    on_host_only = "factors are exchanged from this host's memory; leave sufficient_factors out"

    def __init__(
        self, source: Callable[[], Iterable[Named]], options: ReducerOptions, model: nn.Module, wanted: bool | str
    ) -> None:
        self._model, self._wanted = model, wanted
        self.factors: Factors | None = None
        super().__init__(source, options)

    def _start(self) -> None:
        super()._start()
        if self.factors is not None:
            self.factors.close()
        self.factors = None
        if self.route.worker.size > 1:
            scaling = self._options.scaling
            self.factors = Factors(self._model, self._wanted, self.route, self.label, scaling)

    def refresh(self) -> None:
        """See GradientReducer.refresh."""
        if self._runtime.closed:
            self.parameters.drop()
            self._start()
        factors = self.factors
        if factors is not None:
            for layer in factors.adopt(item for item in self.parameters.source() if item[1] not in self.parameters):
                self.parameters.claim(layer.name, layer.parameter)
                self._watch(layer)
        super().refresh()
        for layer in factors.layers if factors is not None else ():
            self.parameters.hook(layer.parameter)

    def _watch(self, layer: FactorLayer) -> None:
        """Has `layer` told of each backward that has ended for it."""
        reference, own = weakref.ref(self), weakref.ref(layer)

        def ended(token: torch.Tensor) -> None:
            reducer, layer = reference(), own()
            token.grad = None
            if reducer is not None and layer is not None:
                with torch.no_grad():
                    reducer._on_factors(layer)

        register: Any = layer.captured.token.register_post_accumulate_grad_hook
        register(ended)

    def _dense(self) -> Iterable[Named]:
        known = self.factors
        items = super()._dense()
        return items if known is None else [item for item in items if item[1] not in known]

    @property
    def active(self) -> bool:
        """See GradientReducer.active."""
        return super().active or (self.factors is not None and self.factors.active)

    @property
    def touched(self) -> bool:
        """See GradientReducer.touched."""
        return super().touched or (self.factors is not None and self.factors.touched)

    def close(self) -> None:
        """See GradientReducer.close."""
        super().close()
        if self.factors is not None:
            self.factors.close()

    def __del__(self) -> None:
        if self.factors is not None:
            self.factors.close()

    # Rounds

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if self.factors is None or parameter not in self.factors:
            super()._accumulated(parameter)
        elif not self.paused:
            self._on_matrix(self.factors[parameter])

    def _on_factors(self, layer: FactorLayer) -> None:
        if layer.by_factors and layer.ready:
            self._again(layer)
        layer.passes += 1
        if layer.by_factors and layer.passes >= self.passes_per_step:
            layer.send()

    def _on_matrix(self, layer: FactorLayer) -> None:
        """What autograd computed itself; beside factors, it is left for the end of the round."""
        if not layer.by_factors and layer.ready:
            self._again(layer)
        layer.matrix_passes += 1
        if not layer.by_factors and layer.matrix_passes >= self.passes_per_step:
            layer.send()

    def _again(self, layer: FactorLayer) -> None:
        """As Rounds.repeats, for what has no gradient that could have been cleared itself."""
        sent = [slot for slot in self.parameters.slots() if slot.ready]
        if not sent or not all(slot.cleared() for slot in sent):
            raise too_many_passes(layer, self.passes_per_step)
        fresh = layer.captured.fresh()
        self.discard()
        layer.captured.rows = fresh

    def _end(self, discard: bool) -> None:
        factors = self.factors
        if factors is None:
            super()._end(discard)
            return
        if self._runtime.joiner is not None:
            self._runtime.joiner.check("a gradient by its sufficient factors")
        try:
            factors.finish(discard)
            super()._end(discard)
            factors.complete(discard)
        finally:
            factors.reset()

    def restart(self) -> None:
        """See GradientReducer.restart."""
        super().restart()
        if self.factors is not None:
            self.factors.reset()


def factor_reducer(
    source: Callable[[], Iterable[Named]], options: ReducerOptions, model: object, wanted: bool | str
) -> FactorReducer:
    """A FactorReducer of checked arguments: `wanted` is True or "auto". Raises InvalidArgumentError."""
    if wanted not in (True, "auto"):
        raise InvalidArgumentError(f"sufficient_factors={wanted!r} must be True, False or 'auto'")
    if not isinstance(model, nn.Module):
        raise InvalidArgumentError(
            f"sufficient_factors={wanted!r} needs model=, the nn.Module with the Linear layers, not {model!r}"
        )
    return FactorReducer(source, options, model, wanted)
