"""What a rank does in a step, in each way: contributions and weights travel, by the library's own calls."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod

import numpy as np
import torch
from typing_extensions import override

import byteps_like.torch as bps
from bench.consistency.ways import BLOCKS, FACTOR, Way
from byteps_like.store.future import Future

RATE = 1e-3
PORTIONS = 20


class Trainee(ABC):
    """A model with whatever trains it. All ranks make it, also those that sit out."""

    version = 0
    """Of the weights that landed last."""

    def compute(self, seconds: float) -> None:
        """What takes so long."""
        time.sleep(seconds)

    @abstractmethod
    def step(self) -> None:
        """Blocks until the weights have landed."""

    def ages(self) -> list[int]:
        """Of the contributions that were applied; blocks for none."""
        return []

    def close(self) -> None:  # noqa: B027 - most have nothing to end
        """This rank has ended. Blocks, where contributions of others are waited for."""


class Stored(Trainee):
    """A vector in a Store. A turn that ends with a version ends so partition by partition: whoever pushed to one that
    others have left would wait for ever."""

    def __init__(self, label: str, way: Way, nbytes: int, versions: int | None) -> None:
        self._values = np.zeros(nbytes // 4, np.float32)
        self._gradient = np.ones_like(self._values)
        self._store = bps.Store(label, {"w": self._values}, **way.terms)
        self._versions = versions
        self._pushes: list[Future] = []
        self._store.pull("w", self._values).wait()

    @override
    def step(self) -> None:
        pulls = []
        for part, version in enumerate(self._store.versions("w")):
            if self._versions is None or version < self._versions:
                self._pushes.append(self._store.push("w", self._gradient, part=part))
                pulls.append(self._store.pull("w", self._values, part=part))
        for pull in pulls:
            pull.wait()
        self.version = min(self._store.versions("w"))

    @override
    def ages(self) -> list[int]:
        return [push.age for push in self._pushes if push.done() and push.counted]


class Factored(Trainee):
    """A square matrix in a Store, whose gradient goes up as two factors."""

    def __init__(self, label: str, nbytes: int) -> None:
        extent = math.isqrt(nbytes // 4)
        self._values = np.zeros((extent, extent), np.float32)
        factor = np.ones((round(FACTOR * extent), extent), np.float32)
        self._factors = factor, factor
        self._store = bps.Store(label, {"w": self._values}, combine="factors", whole=True)
        self._store.pull("w", self._values).wait()

    @override
    def step(self) -> None:
        self._store.push_pull("w", self._factors, self._values).wait()


class Portioned(Trainee):
    """Vectors in a Store: a gradient of a pass over all samples, in portions that ranks take one by one. A portion
    takes a quarter of a step."""

    def __init__(self, label: str, nbytes: int) -> None:
        self._values = np.zeros(nbytes // 4, np.float32)
        self._gradient = np.ones_like(self._values)
        tensors = {"w": self._values, "g": self._values}
        self._store = bps.Store(label, tensors, consistency="asp", combine="sum")

    @override
    def compute(self, seconds: float) -> None:
        for portion in self._store.portions(PORTIONS):
            time.sleep(seconds / 4)
            portion.push("g", self._gradient)

    @override
    def step(self) -> None:
        if bps.rank() == 0:
            self._store.call("axpy", ["g", "w"], a=-RATE)
            self._store.call("scale", "g", a=0)
        self._store.pull("w", self._values).wait()


class Optimized(Trainee):
    """A parameter under a DistributedOptimizer."""

    def __init__(self, way: Way, nbytes: int) -> None:
        self._weights = torch.nn.Parameter(torch.zeros(nbytes // 4))
        plain = torch.optim.SGD([self._weights], lr=RATE)
        self._optimizer = bps.DistributedOptimizer(plain, [("w", self._weights)], **way.terms)

    @override
    def step(self) -> None:
        self._optimizer.zero_grad()
        torch.autograd.backward(self._weights.sum())
        self._optimizer.step()

    @override
    def close(self) -> None:
        self._optimizer.close()


class Blocked(Optimized):
    """The same, of mini-batches in blocks, with as many versions as there are steps."""

    def __init__(self, way: Way, nbytes: int) -> None:
        super().__init__(Way(way.kind, {**way.terms, "backward_passes_per_step": BLOCKS}), nbytes)
        self._optimizer.pull()

    @override
    def compute(self, seconds: float) -> None:
        self._optimizer.zero_grad()
        for _ in range(BLOCKS):
            time.sleep(seconds / BLOCKS)
            torch.autograd.backward(self._weights.sum() / BLOCKS)
            self._optimizer.block()

    @override
    def step(self) -> None:
        self._optimizer.step()
        self.version = self._optimizer.version

    @override
    def close(self) -> None:
        self._optimizer.finish()
        super().close()


class Alone(Trainee):
    """A parameter under a plain optimizer, with a LowComm around it or without any network."""

    def __init__(self, way: Way, nbytes: int) -> None:
        self._weights = torch.nn.Linear(nbytes // 4, 1, bias=False)
        self._optimizer = torch.optim.SGD(self._weights.parameters(), lr=RATE)
        self._low = bps.LowComm(self._weights, self._optimizer, **way.terms) if way.kind == "low_comm" else None
        if self._low is not None:
            self._low.__enter__()

    @override
    def step(self) -> None:
        self._weights.weight.grad = torch.ones_like(self._weights.weight)
        if self._low is not None:
            self._low.count(1)
        self._optimizer.step()
        self.version = self._low.version if self._low is not None else 0

    @override
    def close(self) -> None:
        if self._low is not None:
            self._low.__exit__(None, None, None)


def trainee(label: str, way: Way, nbytes: int, versions: int | None) -> Trainee:
    """Of that way. Blocks until all ranks make it."""
    if way.kind == "store":
        return Stored(label, way, nbytes, versions)
    if way.kind == "factors":
        return Factored(label, nbytes)
    if way.kind == "portions":
        return Portioned(label, nbytes)
    if way.kind == "blocks":
        return Blocked(way, nbytes)
    return Optimized(way, nbytes) if way.kind == "optimizer" else Alone(way, nbytes)
