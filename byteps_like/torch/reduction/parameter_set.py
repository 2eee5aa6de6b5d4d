"""Who takes part in a reducer's rounds: parameters, their hooks, and the buckets that their gradients lie in."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdKeyDictionary

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job import runtime as _runtime


class HasMembers(Protocol):
    """What a set needs to know of a bucket."""

    label: str
    longest: int

    @property
    def slots(self) -> Any:
        """Its gradients, each with a `parameter`."""

    @property
    def partitions(self) -> int:
        """How many there are."""

    def reached(self, slot: Any) -> None:
        """Backward has come to the layer of `slot`."""

    def abandon(self) -> None:
        """Forgets the bucket, once what is in flight has landed."""


B = TypeVar("B", bound=HasMembers)

Make = Callable[[str, list[Named], Compress], B]
"""A bucket with that label, for gradients of one element type and device that travel alike."""

_owners: Any = WeakIdKeyDictionary()

_LOOKS = tuple(map(attrgetter, ("requires_grad", "dtype", "device")))
"""What of a parameter decides, beside itself, whether it needs a place, and fits the one that it has."""


def note_reached(parameter: torch.Tensor) -> None:
    """Backward has come to the layer of `parameter`, whose gradient will be made later (see deferred.layer).

    Tells whoever reduces it, if anybody, so that the bucket's order is that of the layers all the same.
    """
    reference = _owners.get(parameter, None)
    owner: ParameterSet[HasMembers] | None = reference() if reference is not None else None
    if owner is not None and parameter in owner:
        bucket, slot = owner[parameter]
        bucket.reached(slot)


class ParameterSet(Generic[B]):
    """The parameters of `source` whose gradients are reduced, each by one set at a time.

    Owns the buckets, where each parameter lies in them, and the hooks by which autograd calls `accumulated` with the
    parameter of each new `p.grad`. That must hold no reference to what owns the set: `close`, or its deletion, removes
    the hooks.
    """

    def __init__(
        self,
        source: Callable[[], Iterable[Named]],
        accumulated: Callable[[torch.Tensor], None],
        only_on_host: str = "",
    ) -> None:
        self.source = source
        self.buckets: list[B] = []
        """In the order in which they were made: always the same list."""
        self._accumulated = accumulated
        self._only_on_host = only_on_host
        """Why it takes no parameters on a device; "": it does."""
        self.places: dict[int, tuple[B, Any]] = {}
        """By the ids of parameters: their bucket, and their slot there."""
        self._hooks: dict[int, RemovableHandle] = {}
        self._seen: list[Any] = []
        self._label, self._generation = "", 0
        self._runtime = _runtime.current()

    def enter(self, runtime: _runtime.Runtime, label: str) -> None:
        """From now on buckets are made in that world, by names that begin with `label`."""
        self._runtime, self._label, self._generation = runtime, label, 0

    def __contains__(self, parameter: torch.Tensor) -> bool:
        return id(parameter) in self.places

    def __getitem__(self, parameter: torch.Tensor) -> tuple[B, Any]:
        return self.places[id(parameter)]

    def __len__(self) -> int:
        return len(self.places)

    def slots(self) -> Iterator[Any]:
        """All that lie in buckets, in no order that counts."""
        return (slot for _, slot in self.places.values())

    @property
    def closed(self) -> bool:
        """Whether it takes part in nothing any more: closed, or left behind by a shutdown of its runtime."""
        return not (self.places or self._hooks) or self._runtime.closed

    def newcomers(self, named: Iterable[Named]) -> tuple[list[Named], bool]:
        """Those of `named` that need a place, and whether some that have one aren't among them any more, or don't fit.

        Hooks those that stay, which may have been frozen. Most steps change nothing: that is seen at a glance.
        """
        known = list(named)
        parameters = [parameter for _, parameter in known]
        seen: list[Any] = [*map(id, parameters)]
        for look in _LOOKS:
            seen += map(look, parameters)
        if seen == self._seen:
            return [], False
        self._seen = []
        fresh, some_left = self._compared(known)
        if not fresh and not some_left:
            self._seen = seen
        return fresh, some_left

    @property
    def settled(self) -> bool:
        """Whether all had their places when it last looked."""
        return bool(self._seen) or not self.places

    def _compared(self, named: Iterable[Named]) -> tuple[list[Named], bool]:
        fresh, kept = [], 0
        for name, parameter in named:
            place = self.places.get(id(parameter))
            if place is not None and place[1].fits(parameter):
                kept += 1
                self.hook(parameter)
            elif parameter.requires_grad:
                fresh.append((name, parameter))
        return fresh, kept < len(self.places)

    def add(self, named: list[Named], way_of: Callable[[str, torch.Tensor], Compress], make: Make[B]) -> None:
        """Makes buckets for `named`, the last parameters first, as backward comes to them. All ranks alike."""
        groups: dict[tuple[torch.dtype, Device | None, Compress], list[Named]] = {}
        for name, parameter in reversed(named):
            way = way_of(name, parameter)
            self.claim(name, parameter, "PowerSGD's factors are computed there" if way.low_rank else "")
            groups.setdefault((parameter.dtype, devices.of(parameter), way), []).append((name, parameter))
        used: set[str] = set()
        for number, ((dtype, _, way), group) in enumerate(groups.items()):
            label = f"{self._label}.{self._generation}.{str(dtype).removeprefix('torch.')}"
            label += f".{number}" if label in used and not way.name else ""  # on another device
            used.add(label)
            self._adopt(make(f"{label}.{number}.{way.name}" if way.name else label, group, way))
        self._generation += 1
        level(self.buckets)

    def _adopt(self, bucket: B) -> None:
        self.buckets.append(bucket)
        self._runtime.arenas[bucket.label] = bucket
        self.places.update((id(slot.parameter), (bucket, slot)) for slot in bucket.slots)
        for slot in bucket.slots:
            self.hook(slot.parameter)

    def claim(self, name: str, parameter: torch.Tensor, only_on_host: str = "") -> None:
        """Makes it this set's. Raises InvalidArgumentError if it is another's, or has no memory where it should be."""
        if not parameter.is_leaf or parameter.is_meta:
            raise InvalidArgumentError(f"parameter {name!r} on {parameter.device} must be a leaf tensor with memory")
        why = self._only_on_host or only_on_host
        if why and devices.of(parameter) is not None:
            raise InvalidArgumentError(f"parameter {name!r} on {parameter.device} must be on the CPU: {why}")
        reference = _owners.get(parameter, None)
        owner = reference() if reference is not None else None
        if owner is not None and owner is not self and not owner.closed:
            raise InvalidArgumentError(
                f"the gradient of {name!r} is reduced by another DistributedOptimizer or DistributedDataParallel"
                " already; use one of them, or close() the other first"
            )
        _owners[parameter] = weakref.ref(self)

    def hook(self, parameter: torch.Tensor) -> None:
        """Has autograd tell of each new `p.grad`, unless the parameter is frozen. Idempotent."""
        if id(parameter) in self._hooks or not parameter.requires_grad:
            return
        register: Any = parameter.register_post_accumulate_grad_hook
        self._hooks[id(parameter)] = register(self._accumulated)

    def unhook(self, parameter: torch.Tensor) -> None:
        """Autograd tells no more of it. Idempotent."""
        handle = self._hooks.pop(id(parameter), None)
        if handle is not None:
            handle.remove()

    def drop(self) -> None:
        """Removes the hooks, and abandons the buckets."""
        for handle in self._hooks.values():
            handle.remove()
        self._hooks.clear()
        for bucket in self.buckets:
            bucket.abandon()
        self.buckets.clear()
        self.places.clear()
        self._seen = []

    def close(self) -> None:
        """As `drop`, for good. Idempotent."""
        self.drop()
        self.source = tuple

    def __del__(self) -> None:
        self.drop()


def level(buckets: Iterable[HasMembers]) -> None:
    """Tells each how many partitions the longest has, after these have changed."""
    known = list(buckets)
    longest = max((bucket.partitions for bucket in known), default=0)
    for bucket in known:
        bucket.longest = longest
