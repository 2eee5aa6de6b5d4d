"""Which weights of Linear layers travel as factors, because that is less, beside a reducer's buckets."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.factors.capture import Captured, hook, linears, module_with_factors
from byteps_like.torch.factors.choice import FactorExchange, by_factors
from byteps_like.torch.factors.layer import FactorLayer
from byteps_like.torch.factors.link import FactorLinks
from byteps_like.torch.factors.matrix import matrix_cost
from byteps_like.torch.factors.round import FactorRound
from byteps_like.torch.gradients.bucket import Departed
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job.routes import Route
from byteps_like.torch.reduction.beside import LOOK_EVERY
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.reducer import GradientReducer


class FactorRouter:
    """Decides between rounds, on all ranks alike, which weights of plain Linear layers of `model` travel as factors.

    See Beside. Owns what is known of each such weight, in a bucket or not. `wanted`: True, or "auto": where it is
    measured to be less. Weights leave their buckets after the first round, and then every so many rounds; they return
    as soon as the matrix is less.
    """

    def __init__(self, model: nn.Module, wanted: bool | str, reducer: GradientReducer) -> None:
        self._wanted, self._reducer = wanted, weakref.ref(reducer)
        self._rules, self._scaling = reducer.options.rules, reducer.options.scaling
        self._route, self._label, self._worker = reducer.route, reducer.label, reducer.route.worker
        self._modules = linears(model)
        self._layers: dict[torch.Tensor, FactorLayer] = {}
        self._hooks: dict[torch.Tensor, list[Any]] = {}
        self._lane = self._worker.group(f"{self._label}/factors")
        self._links = FactorLinks(wanted, self._lane, self._label)
        self._round: FactorRound | None = None
        self._departed: FactorRound | None = None
        self._landed = 0
        """Rounds, the same on all ranks."""

    def __contains__(self, parameter: torch.Tensor) -> bool:
        layer = self._layers.get(parameter)
        return layer is not None and layer.left

    @property
    def layers(self) -> list[FactorLayer]:
        """Those that may travel as factors, in the order in which they came."""
        return list(self._layers.values())

    @property
    def parameters(self) -> list[torch.Tensor]:
        """See Beside."""
        return [layer.parameter for layer in self._layers.values() if layer.left]

    # Who takes part

    def consider(self, name: str, parameter: torch.Tensor, way: Compress) -> None:
        """See Beside. A rule that asks for a codec by name has its way, and so has what a sum of rows can't do."""
        modules = self._modules.get(parameter)  # type: ignore[call-overload]
        whole = self._worker.size == 1 or way.momentum or way.clip or self._rules.asks_for(name, parameter)
        if not modules or whole:
            return
        if parameter not in self._layers:
            lane = self._worker.group(f"{self._label}.{name}/factors")
            layer = FactorLayer(name, parameter, self._worker, lane)  # type: ignore[arg-type]
            self._layers[parameter] = layer
            self._hooks[parameter] = hook(modules, layer.captured)
            self._watch(layer.captured)
        self._layers[parameter].way = way

    def _watch(self, captured: Captured) -> None:
        """Has it told of each backward that has ended for its layers."""
        reference, own = weakref.ref(self), weakref.ref(captured)

        def ended(token: torch.Tensor) -> None:
            router, captured = reference(), own()
            token.grad = None
            if captured is not None:
                with torch.no_grad():
                    if router is None or not router._takes(captured):
                        captured.into_grad()

        register: Any = captured.token.register_post_accumulate_grad_hook
        register(ended)

    def _takes(self, captured: Captured) -> bool:
        """Factors have come: whether they travel. Not after `close`, nor if the weight has returned to its bucket."""
        reducer, layer = self._reducer(), self._layers.get(captured.parameter)
        if reducer is None or reducer.runtime.closed or layer is None or not layer.left:
            if layer is not None:
                layer.unbind()
            return False
        reducer.arrived(layer.parameter, self, layer)
        return True

    def keep(self, source: Callable[[], Iterable[Named]]) -> None:
        """See Beside."""
        if not self._layers:
            return
        present = {id(parameter) for _, parameter in source()}
        for parameter in [parameter for parameter in self._layers if id(parameter) not in present]:
            self._forget(parameter)

    def _forget(self, parameter: torch.Tensor) -> None:
        self._layers.pop(parameter).leave(False)
        for handle in self._hooks.pop(parameter):
            handle.remove()

    def recut(self, route: Route, partition_bytes: int) -> None:
        """See Beside. That factors save something depends on the route, so all are chosen anew."""
        del partition_bytes
        self._route = route
        self._choose(self.layers)

    def close(self) -> None:
        """See Beside."""
        for parameter in list(self._layers):
            self._forget(parameter)
        self._round = None

    def __del__(self) -> None:
        self.close()

    # A round

    def ready(self, layer: FactorLayer) -> None:
        """The factors of `layer` are complete on this rank: sends them."""
        layer.send(self._scaling.terms(self._worker.size))

    @property
    def sent(self) -> list[FactorLayer]:
        """See Beside."""
        return [layer for layer in self._layers.values() if layer.ready]

    def accumulated(self, parameter: torch.Tensor) -> None:
        """What autograd computed itself is left for the end of the round."""
        self._layers[parameter].accumulated()

    def start(self, discard: bool) -> None:
        """See Beside. Raises InvalidArgumentError where a rank has joined."""
        reducer = self._reducer()
        if not self._layers or reducer is None:
            return
        if reducer.runtime.joiner is not None:
            reducer.runtime.joiner.check("a gradient by its sufficient factors")
        terms = self._scaling.terms(self._worker.size)
        for layer in self.layers:
            if layer.left:
                layer.unbind()
                layer.send(terms, discard)
                if layer.sum is not None and not discard:
                    layer.sum.close(reducer.codecs.owed(layer.name, layer.parameter))
        self._round = FactorRound(self.layers, self._lane, self._label, discard)

    def wait(self) -> None:
        """See Beside."""
        if self._round is not None:
            self._round.wait()

    def check_agreed(self) -> None:
        """See Beside."""
        if self._round is not None:
            self._round.check_agreed()

    def land(self) -> None:
        """See Beside."""
        if self._round is not None:
            self._round.land()
            self._plan(self._round)

    def reset(self) -> None:
        """See Beside."""
        self._round = None
        for layer in self._layers.values():
            layer.reset()

    def depart(self) -> list[Departed]:
        """See Beside."""
        self._departed = self._round
        return [] if self._round is None else [self._round.depart()]

    def landed(self) -> None:
        """See Beside."""
        departed, self._departed = self._departed, None
        if departed is not None:
            self._plan(departed)

    def _plan(self, ended: FactorRound) -> None:
        """It has landed: what was sent in it is owed no more, unless a rank threw it away."""
        reducer = self._reducer()
        if not ended.plan():
            return
        self._landed += 1
        if reducer is not None:
            for slot in ended.slots:
                reducer.codecs.paid(slot.name)

    # Between rounds

    def due(self, rounds: int) -> bool:
        """See Beside. What a matrix costs by a new codec is measured when nothing is in flight."""
        del rounds  # they differ where a rank threw one away
        return any(
            not self._links.knows(self._route, layer.codec) or self._prefers(layer) != layer.left
            for layer in self._looked_at(self._landed)
        )

    def reroute(self, rounds: int) -> None:
        """See Beside."""
        del rounds
        self._choose(self._looked_at(self._landed - 1))

    def _looked_at(self, rounds: int) -> list[FactorLayer]:
        """After so many rounds: those that have left their buckets, and at times the others."""
        return [layer for layer in self.layers if layer.left or rounds % LOOK_EVERY == 0]

    def _choose(self, layers: list[FactorLayer]) -> None:
        for layer in layers:
            self._note_codec(layer)
            self._links.measure(self._route, layer.codec)
            layer.leave(self._prefers(layer))

    def _prefers(self, layer: FactorLayer) -> bool:
        """Whether its gradient had better travel as factors."""
        reducer = self._reducer()
        if reducer is None or not (layer.left or reducer.in_bucket(layer.parameter)):
            return False
        outputs, inputs = layer.parameter.shape
        matrix = matrix_cost(layer.way, layer.codec, layer.parameter, self._worker.size)
        exchange = FactorExchange(outputs, inputs, layer.rows, self._route.name, matrix, layer.wire.itemsize)
        return by_factors(exchange, self._links.of(self._route, layer.codec), self._wanted)

    def _note_codec(self, layer: FactorLayer) -> None:
        """By which codec its gradient goes in its bucket, where it is in one."""
        reducer = self._reducer()
        if reducer is not None and not layer.left and reducer.in_bucket(layer.parameter):
            layer.codec = reducer.parameters[layer.parameter][0].codec


def factor_reducer(
    source: Callable[[], Iterable[Named]], options: ReducerOptions, model: object, wanted: bool | str
) -> GradientReducer:
    """A reducer with a FactorRouter of checked arguments. Raises InvalidArgumentError."""
    module = module_with_factors(model, wanted)
    why = "factors are exchanged from this host's memory; leave sufficient_factors out"
    return GradientReducer(source, replace(options, only_on_host=why), [partial(FactorRouter, module, wanted)])
