"""The weights of Linear layers that may travel as factors, all of one optimizer: agreement, choice, rounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Keeper, Traffic
from byteps_like.dtypes import DType
from byteps_like.errors import MismatchError
from byteps_like.torch.factors.capture import hook, linears
from byteps_like.torch.factors.choice import FactorLink, by_factors, next_rows
from byteps_like.torch.factors.layer import DISCARDS, LEFT, PRESENT, FactorLayer
from byteps_like.torch.factors.link import measured
from byteps_like.torch.gradients.parts import Named, Scaling
from byteps_like.torch.gradients.slot import changed_in_flight
from byteps_like.torch.job.routes import Route

_WORDS = 3


class Factors:
    """Layers by weight, in one order on all ranks.

    Agreement costs no round trip of its own: at the end of each round, beside the gradients, the ranks gather how many
    rows each had, and all work out from that how the next round goes. A rank that then has more rows than it said
    has its remainder reduced as a matrix, which all see from the same words.

    On the wire per round: 12 bytes per layer and rank of words, and per layer either sum(rows) (M+N) elements
    gathered, or the matrix reduced.
    """

    def __init__(self, model: nn.Module, wanted: bool | str, route: Route, label: str, scaling: Scaling) -> None:
        self._wanted, self._route, self._label, self._scaling = wanted, route, label, scaling
        self._modules = linears(model)
        self._lane = route.worker.group(f"{label}/factors")
        self._layers: dict[torch.Tensor, FactorLayer] = {}
        self._handles: list[Any] = []
        self._words: torch.Tensor = torch.empty(0, device="cpu")
        self._flight: CollectiveOperation | None = None
        self._partition_bytes = 0
        self._links: dict[str, FactorLink] = {}
        self._measure()

    def _measure(self) -> None:
        """The link of the route that is in force, once for each."""
        if self._route.name not in self._links:
            known = measured(self._route, self._lane, self._label) if self._wanted == "auto" else FactorLink()
            self._links[self._route.name] = known

    @property
    def link(self) -> FactorLink:
        """What the choice is made from, on the route in force; all zeros if `wanted` is True."""
        return self._links[self._route.name]

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._layers

    def __getitem__(self, parameter: torch.Tensor) -> FactorLayer:
        return self._layers[parameter]

    @property
    def layers(self) -> list[FactorLayer]:
        """In the order in which they came."""
        return list(self._layers.values())

    def adopt(self, named: Iterable[Named]) -> list[FactorLayer]:
        """Layers for those of `named` that are Linear weights and new here."""
        fresh = []
        for name, parameter in named:
            modules = self._modules.get(parameter)  # type: ignore[call-overload]
            if modules and parameter not in self._layers:
                layer = FactorLayer(name, parameter, self._route, self._label, self._scaling)  # type: ignore[arg-type]
                if self._partition_bytes:
                    layer.recut(self._route, self._partition_bytes)
                self._handles += hook(modules, layer.captured)
                self._layers[parameter] = layer
                fresh.append(layer)
        return fresh

    def recut(self, route: Route, partition_bytes: int) -> None:
        """Between rounds, on all ranks alike: see FactorLayer.recut. What goes as factors is chosen anew: that they
        save something depends on the route."""
        self._route, self._partition_bytes = route, partition_bytes
        self._measure()
        for layer in self.layers:
            layer.recut(route, partition_bytes)
            self._choose(layer)

    @property
    def touched(self) -> bool:
        """Whether a backward has reached any."""
        return any(layer.passes or layer.matrix_passes or layer.captured.rows for layer in self.layers)

    @property
    def active(self) -> bool:
        """Whether any has been sent."""
        return any(layer.ready for layer in self.layers)

    def finish(self, discard: bool) -> None:
        """Sends what was not sent, and this rank's words."""
        if not self._layers:
            return
        for layer in self.layers:
            layer.send(discard)
        words = [word for layer in self.layers for word in layer.word(discard)]
        self._words = torch.empty(self._lane.size, len(words), dtype=torch.int32, device="cpu")
        self._words[self._lane.rank] = torch.tensor(words, dtype=torch.int32, device="cpu")
        source, target = self._words[self._lane.rank].data_ptr(), self._words.data_ptr()
        counts, options = [len(words)] * self._lane.size, CallOptions(traffic=Traffic.CONTROL)
        self._flight = self._lane.all_gather(source, target, counts, DType.INT32, options)
        self._flight.on_done(Keeper(self._words))

    def complete(self, discard: bool) -> None:
        """Waits for all, makes the reduced gradients every `p.grad`, and plans the next round."""
        if self._flight is None:
            return
        self._flight.wait()
        words = self._words.view(self._lane.size, len(self._layers), _WORDS).permute(1, 2, 0).tolist()
        for layer in self.layers:
            layer.wait()
        discarding = [bool(flags & DISCARDS) for flags in words[0][2]]
        if any(discarding) and not all(discarding):
            raise MismatchError(
                f"{self._label}: ranks {[rank for rank, it in enumerate(discarding) if it]} cleared their gradients"
                " after backward() while others went on to step() or synchronize(); all ranks must make the same calls"
                " in the same order"
            )
        for layer, (rows, codes, flags) in zip(self.layers, words, strict=True):
            if not discard:
                if layer.changed():
                    raise changed_in_flight(layer)
                self._land(layer, flags)
            self._plan(layer, rows, [code for code, flag in zip(codes, flags, strict=True) if flag & PRESENT])

    def _land(self, layer: FactorLayer, flags: list[int]) -> None:
        left = layer.reduce_left() if any(flag & LEFT for flag in flags) else None
        if any(flag & PRESENT for flag in flags):
            layer.land(left)

    def _plan(self, layer: FactorLayer, rows: list[int], codes: list[int]) -> None:
        layer.plan(next_rows(layer.rows, rows), codes)
        self._choose(layer)

    def _choose(self, layer: FactorLayer) -> None:
        layer.choose(by_factors(layer.exchange(layer.rows), self.link, self._wanted))

    def reset(self) -> None:
        """A new round begins."""
        self._flight = None
        for layer in self.layers:
            layer.reset()

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.reset()
        self._layers.clear()
