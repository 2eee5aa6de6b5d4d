"""What shards take of what was set aside in the world before: any cut of it, from any of those that have it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.dtypes import DType
from byteps_like.errors import PeerLostError
from byteps_like.store.saving.aside import left_aside, lost, take_aside
from byteps_like.store.saving.keys import Savable, SavedStore
from byteps_like.store.saving.manifest import Manifest, SavedTensor
from byteps_like.store.saving.saved import SavedContent
from byteps_like.store.versions import Versions
from byteps_like.wire.saving import StateRequest
from byteps_like.worker.api import Declared, Partition, TensorSpec
from byteps_like.worker.keeping import Lasting, SavingRequest

TENSOR = SavedTensor("float32", (64,), "combine sum, update adam")
STATES = 2
"""Arrays as long as the value."""


@dataclass
class World:
    """Servers of a shard each, by names, and what each has of one tensor and has set aside."""

    epoch: int
    names: tuple[str, ...]
    values: dict[int, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=dict)
    copies: dict[int, int] = field(default_factory=dict)
    """By key, the other shard that has it."""
    aside: dict[tuple[str, int, int], tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = field(default_factory=dict)
    """By server, epoch and key."""
    crossed: int = 0
    """Bytes that one shard has taken from another."""

    @property
    def lasting(self) -> Lasting:
        return Lasting(self.epoch, tuple(((name,), 0) for name in self.names))

    def ask(self, requests: Sequence[SavingRequest]) -> Any:
        answers = [self._answer(one) for one in requests]
        return SimpleNamespace(wait=lambda: None, answers=lambda: answers)

    def _answer(self, asked: SavingRequest) -> bytes:
        part = asked.declared.partitions[asked.part]
        what, payload = StateRequest(asked.payload[0]), asked.payload[1:]
        if what is StateRequest.HEADS:
            keys = struct.unpack(f"<{len(payload) // 8}Q", payload)
            return b"".join(self._head(key) for key in keys)
        if what is StateRequest.SET_ASIDE:
            keys = struct.unpack(f"<{len(payload) // 8}Q", payload)
            for key in keys:
                for shard in (part.server, self.copies.get(key)):
                    if shard is not None:
                        self.aside[self.names[shard], self.epoch, key] = self.values[key]
            others = [self.copies.get(key, 0xFFFFFFFF) for key in keys]
            return struct.pack(f"<I{len(keys)}I", part.server, *others) + b"".join(self._head(key) for key in keys)
        if what is StateRequest.TAKE:
            self._take(part.server, payload)
        else:
            assert what is StateRequest.CLEAR
        return b""

    def _head(self, key: int) -> bytes:
        return struct.pack("<QQIIq", 3, self.values[key][1].nbytes, 0, 1, 3)

    def _take(self, own: int, payload: bytes) -> None:
        key, part, target, shard, epoch, former, version, again, source, nbytes = struct.unpack("<QBQIIQqBQQ", payload)
        assert part == again and version == 3
        found = self.aside.get((self.names[shard], epoch, former))
        if found is None:
            raise PeerLostError("it is gone")
        self.crossed += nbytes * (shard != own)
        self.values[key][part].view(np.uint8)[target : target + nbytes] = found[part].view(np.uint8)[
            source : source + nbytes
        ]


def store_of(world: World, ends: Sequence[int], owners: Sequence[int], first_key: int) -> SavedStore:
    """A tensor of 64 elements that is cut there."""
    parts, begin = [], 0
    for number, (end, owner) in enumerate(zip(ends, owners, strict=True)):
        parts.append(Partition(first_key + number, 4 * begin, 4 * (end - begin), owner, 0))
        world.values[first_key + number] = (
            np.zeros(end - begin, np.float32), np.zeros(STATES * (end - begin), np.float32),
        )  # fmt: skip
        begin = end
    declared = Declared(TensorSpec("w", DType.FLOAT32, (64,)), 0, tuple(parts))
    worker: Any = SimpleNamespace(rank=0, size=1)
    return SavedStore("w", worker, world, {"w": Savable(declared, TENSOR, Versions("w", len(parts)))})  # type: ignore[arg-type]


def fill(world: World, store: SavedStore) -> None:
    for key in store.keys:
        value, state = world.values[key.key]
        at = np.arange(key.offset // 4, key.offset // 4 + len(value))
        value[:] = at
        state[:] = np.concatenate([at + 1000 * (array + 1) for array in range(STATES)])


def manifest_of(left: Sequence[SavedContent]) -> Manifest:
    return Manifest("w", 3, 1, {"w": TENSOR})


CUTS = st.sets(st.integers(1, 63), max_size=6).map(lambda cuts: [*sorted(cuts), 64])


@given(CUTS, CUTS, st.data())
def test_any_cut_is_made_of_any_other(before: list[int], after: list[int], data: st.DataObject) -> None:
    old = World(4, ("a", "b", "c"))
    former = store_of(old, before, data.draw(st.tuples(*[st.integers(0, 2)] * len(before))), 10)
    fill(old, former)
    gone = data.draw(st.sampled_from(["", "a", "b"]))
    for key in former.keys:
        if data.draw(st.booleans()):
            old.copies[key.key] = (key.place[0] + 1) % 3
    left = list(left_aside(former, old.lasting))
    new = World(5, tuple(name for name in ("c", "a", "b", "d") if name != gone), aside=old.aside)
    here = store_of(new, after, data.draw(st.tuples(*[st.integers(0, len(new.names) - 1)] * len(after))), 20)
    lacks = [one for one in left if one.aside is not None and one.aside.shard[0] == (gone,) and one.aside.copy is None]
    assert bool(lost(left, new.lasting)) == bool(lacks)
    if lacks:
        with pytest.raises(PeerLostError, match="is gone"):
            take_aside(here, here.keys, manifest_of(left), left)
        return
    take_aside(here, here.keys, manifest_of(left), left)
    taken = {key: tuple(one.copy() for one in some) for key, some in new.values.items()}
    fill(new, here)
    for key, some in new.values.items():
        assert all(np.array_equal(one, other) for one, other in zip(some, taken[key], strict=True))


def test_what_stays_crosses_nothing() -> None:
    old = World(4, ("a", "b"))
    former = store_of(old, [32, 64], [0, 1], 10)
    fill(old, former)
    left = list(left_aside(former, old.lasting))
    new = World(5, ("b", "a", "c"), aside=old.aside)
    here = store_of(new, [32, 48, 64], [1, 2, 0], 20)
    take_aside(here, here.keys, manifest_of(left), left)
    assert new.crossed == 16 * 4 * (1 + STATES), "the part of c"


def test_a_copy_is_taken_where_the_first_one_is_gone_though_its_server_is_there() -> None:
    old = World(4, ("a", "b"))
    former = store_of(old, [64], [0], 10)
    old.copies[10] = 1
    fill(old, former)
    left = list(left_aside(former, old.lasting))
    new = World(5, ("a", "b"), aside={name: one for name, one in old.aside.items() if name[0] == "b"})
    here = store_of(new, [64], [0], 20)
    take_aside(here, here.keys, manifest_of(left), left)
    assert new.values[20][0].tolist() == list(range(64))
