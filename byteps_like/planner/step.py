"""Training steps of one worker: forward and backward by layer, gradients handed over as they become ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from byteps_like.dtypes import DType
from byteps_like.planner.clock import Process, SimulatedClock, SimulatedGate
from byteps_like.planner.cluster import Settings
from byteps_like.planner.route import SimulatedRoute
from byteps_like.planner.workload import ITEMSIZE, Workload
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.layout import ArenaLayout, lay_out, partitions_of, pieces, runs

Operation = tuple[float, int | None]
"""Seconds of backward, and the layer whose gradients are then ready."""


def backward(workload: Workload, first_k: int | None) -> list[Operation]:
    """Backward in order. With `first_k` the weight gradients, half of a layer's backward, of all but the first k layers
    that have parameters come after everything else, those nearest to the input first (torch/deferred/backward.py).

    Oh et al.: Out-of-order backprop. EuroSys 2022, section 4 ("reverse first-k").
    """
    own = [number for number, layer in enumerate(workload.layers) if layer.parameters]
    late = [] if first_k is None else own[first_k:]
    order: list[Operation] = []
    for number in reversed(range(len(workload.layers))):
        seconds = workload.layers[number].backward
        order.append((seconds / 2, None) if number in late else (seconds, number))
    return order + [(workload.layers[number].backward / 2, number) for number in late]


@dataclass(frozen=True)
class Gradients:
    """Where each layer's gradients lie in the arena: in the order in which plain backward makes them ready."""

    layout: ArenaLayout
    spans: tuple[tuple[int, int], ...]
    """Of each layer: its bytes, from and to."""

    @classmethod
    def of(cls, workload: Workload) -> Gradients:
        """Lays them out as the optimizer does."""
        sizes: list[int] = []
        ready: list[int] = []
        first: list[int] = []
        for layer in workload.layers:
            first.append(len(sizes))
            sizes += [math.prod(shape) for _, shape in layer.parameters]
        first.append(len(sizes))
        for number in reversed(range(len(workload.layers))):
            ready += range(first[number], first[number + 1])
        layout = lay_out(sizes, ready, ITEMSIZE)
        spans = []
        for begin, end in pairwise(first):
            own = [(layout.offsets[n], layout.offsets[n] + sizes[n]) for n in range(begin, end)]
            span = (min(low for low, _ in own), max(high for _, high in own)) if own else (0, 0)
            spans.append((span[0] * ITEMSIZE, span[1] * ITEMSIZE))
        return cls(layout, tuple(spans))

    def specs(self, whole: bool, fine: bool) -> list[TensorSpec]:
        """What is declared, in the order of the arena: the arena, in several pieces if it is to be cut finer towards
        its end, or (`whole`) each tensor by itself."""
        if not whole:
            sizes = pieces(self.layout.total, ITEMSIZE) if fine else [self.layout.total]
            return [TensorSpec(f"gradients.{number}", DType.FLOAT32, (size,)) for number, size in enumerate(sizes)]
        bounds = [*sorted(set(self.layout.offsets)), self.layout.tail, self.layout.total]
        return [
            TensorSpec(f"gradient {low}", DType.FLOAT32, (high - low,)) for low, high in pairwise(bounds) if high > low
        ]


class Trainer:
    """One worker. `ends` are the times at which each step's backward was done; `on_end` is called then."""

    def __init__(
        self,
        clock: SimulatedClock,
        worker: int,
        workload: Workload,
        settings: Settings,
        route: SimulatedRoute,
        launch: float,
    ) -> None:
        self.ends: list[float] = []
        self.on_end: Callable[[], None] = lambda: None
        self._clock, self._worker, self._workload = clock, worker, workload
        self._settings, self._route, self._launch = settings, route, launch
        self._order = backward(workload, settings.first_k)
        gradients = Gradients.of(workload)
        starts = [part.offset for part in route.partitions]
        self._parts = [partitions_of(starts, *span) for span in gradients.spans]
        tail = partitions_of(starts, gradients.layout.tail * ITEMSIZE, gradients.layout.total * ITEMSIZE)
        self._waits_for = [0] * len(starts)
        for parts in [*self._parts, tail]:
            for part in parts:
                self._waits_for[part] += 1
        self._pending: list[int] = []
        self._gates: list[SimulatedGate] = []
        self._everything = SimulatedGate(clock, 0)
        self._turn = 0

    def train(self, count: int) -> Process:
        """`count` steps."""
        settings, layers = self._settings, self._workload.layers
        for self._turn in range(count):
            for number, layer in enumerate(layers):
                if self._gates and not settings.barrier:
                    yield self._gates[number]
                    yield settings.update * layer.nbytes / self._workload.nbytes
                yield layer.forward
            yield from self._backward()
            self.ends.append(self._clock.now)
            self.on_end()
            if settings.barrier:
                yield self._everything
                yield settings.update

    def _backward(self) -> Process:
        self._begin()
        for seconds, number in self._order:
            yield seconds
            if number is not None and self._settings.overlap:
                yield self._launch * self._ready(number)
        if not self._settings.overlap:
            for _, number in self._order:
                if number is not None:
                    yield self._launch * self._ready(number)
        self._send([part for part, pending in enumerate(self._pending) if pending >= 0])  # with the control elements

    def _begin(self) -> None:
        self._pending = list(self._waits_for)
        self._everything = SimulatedGate(self._clock, len(self._pending))
        self._gates = [SimulatedGate(self._clock, len(parts)) for parts in self._parts]

    def _ready(self, number: int) -> int:
        """A layer's gradients are; returns how many partitions could be sent."""
        complete = []
        for part in self._parts[number]:
            self._pending[part] -= 1
            if self._pending[part] == 0:
                complete.append(part)
        self._send(complete)
        return len(complete)

    def _send(self, parts: list[int]) -> None:
        for run in self._runs(parts):
            for part in run:
                self._pending[part] = -1
                priority = run.start if self._settings.by_priority else 0
                self._route.push_pull(self._worker, part, self._turn, priority, self._landing(part))

    def _runs(self, parts: list[int]) -> Iterator[range]:
        """Neighbours of one tensor."""
        tensor_of = [part.key >> 16 for part in self._route.partitions]
        for _, own in groupby(parts, key=tensor_of.__getitem__):
            yield from runs(list(own))

    def _landing(self, part: int) -> Callable[[], None]:
        everything = self._everything
        gates = [gate for gate, parts in zip(self._gates, self._parts, strict=True) if part in parts]

        def landed() -> None:
            everything.happened()
            for gate in gates:
                gate.happened()

        return landed
