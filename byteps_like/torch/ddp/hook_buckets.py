"""Buckets of torch's DistributedDataParallel, in which gradients that travel differently lie beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps_like.dtypes import Op
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.compression.rules import Rules
from byteps_like.torch.device import devices
from byteps_like.torch.device.inflight import InFlightGroup
from byteps_like.torch.device.tensors import wire_dtype
from byteps_like.torch.gradients.coding import ArenaCoding, Memory
from byteps_like.torch.gradients.slot import Slot
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.routes import Request, Route
from byteps_like.worker.api import Declared, Handle, TensorSpec


@dataclass(frozen=True)
class BucketPart:
    """Gradients of a bucket that travel as one tensor, which is declared by itself."""

    declared: Declared
    offset: int = 0


class BucketLoad:
    """What of a bucket travels one way: a buffer, in which its gradients lie one after the other."""

    def __init__(self, route: Route, name: str, way: Compress, parameters: Sequence[torch.Tensor]) -> None:
        self.way, self.route = way, route
        self.slots = [Slot(str(number), item, number, item.dtype) for number, item in enumerate(parameters)]
        wire = way.wire_dtype(parameters[0].dtype)
        sizes = [item.numel() for item in parameters]
        self._data = parameters[0].data.new_zeros(sum(sizes), dtype=wire)
        near = self._data if route.carries(devices.of(self._data)) else None
        self._address, self._place = _runtime.current().place(self._data)
        offsets = [sum(sizes[:number]) for number in range(len(sizes))]
        for slot, offset in zip(self.slots, offsets, strict=True):
            slot.place(self._data, offset)
        spec = TensorSpec(name, wire_dtype(wire), (sum(sizes),), codec=way.text(0))
        self._parts = [BucketPart(declared) for declared in route.declare([spec])]
        self._coding = ArenaCoding(way, sum(sizes)) if way.is_coded else None
        if self._coding is not None:
            self._coding.place(self.slots, offsets)
            self._coding.attach(route.worker, self._parts, near)

    def start(self, gradients: Sequence[torch.Tensor], priority: int) -> Handle:
        """Copies them in, and sends."""
        for slot, gradient in zip(self.slots, gradients, strict=True):
            slot.region.copy_(gradient)
        declared = self._parts[0].declared
        return self.route.push_pull(declared, self._address, Op.AVERAGE, Request(priority=priority, place=self._place))

    def land(self, gradients: Sequence[torch.Tensor]) -> None:
        """Copies them out."""
        for slot, gradient in zip(self.slots, gradients, strict=True):
            gradient.copy_(slot.region)

    def leave(self, memories: dict[int, Memory]) -> None:
        """Puts what is remembered into `memories`, by parameter: another load follows."""
        if self._coding is not None:
            found = self._coding.recall(self.slots)
            memories.update((id(slot.parameter), found[slot.name]) for slot in self.slots if slot.name in found)
            self._coding.detach(self.route.worker, self._parts)

    def follow(self, memories: dict[int, Memory]) -> None:
        """Takes what a load before has left."""
        if self._coding is not None:
            places = [(slot.name, id(slot.parameter)) for slot in self.slots]
            self._coding.remember(self.slots, {name: memories.pop(key) for name, key in places if key in memories})


class HookBucket:
    """One bucket as it is now; DDP puts parameters into other buckets after the first step."""

    def __init__(self, route: Route, label: str, rules: Rules, parameters: Sequence[torch.Tensor]) -> None:
        self.name, self.parameters = label, [id(item) for item in parameters]
        ways: dict[Compress, list[int]] = {}
        for number, item in enumerate(parameters):
            ways.setdefault(rules.of("", item), []).append(number)
        self.loads = [
            (BucketLoad(route, f"{label}.{number}.{way.name}", way, [parameters[item] for item in own]), own)
            for number, (way, own) in enumerate(ways.items())
        ]

    def start(self, gradients: Sequence[torch.Tensor], priority: int) -> Handle:
        """Sends all."""
        return InFlightGroup([load.start([gradients[number] for number in own], priority) for load, own in self.loads])

    def land(self, gradients: Sequence[torch.Tensor]) -> None:
        """Writes the averages to `gradients`."""
        for load, own in self.loads:
            load.land([gradients[number] for number in own])
