"""What it costs to begin: store calls of a world, none by sub-groups, and the frames of a group's first use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from tests.multiprocess.c10d.world import GroupPool

SUB_GROUPS = 20
QUIET = 0.1  # seconds in which what is under way arrives
FRAMES = 2  # of a small message: which call it belongs to, and its bytes


class CountingStore(dist.Store):
    """Counts the calls that another store gets."""

    last: CountingStore

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner, self.calls = inner, Counter[str]()
        CountingStore.last = self


def _counted(name: str) -> Callable[..., Any]:
    def call(self: CountingStore, *args: Any) -> Any:
        self.calls[name] += 1
        return getattr(self.inner, name)(*args)

    return call


for _name in ("add", "get", "set", "wait", "check", "multi_get", "delete_key", "compare_set", "append"):
    setattr(CountingStore, _name, _counted(_name))


class Steps:
    """Frames that this rank sends in one step after the other; all ranks have ended one before any begins the next."""

    def __init__(self, world: Any, store: Any) -> None:
        self._world, self._store = world, store
        self._number = self._sent = 0

    def __call__(self, call: Callable[[], Any]) -> int:
        call()
        time.sleep(QUIET)
        before, self._sent = self._sent, self._world.counters()["frames_sent"]
        self._number += 1
        self._store.add("steps", 1)
        while self._store.add("steps", 0) < self._world.size * self._number:
            time.sleep(0.002)
        return self._sent - before


def _members(size: int) -> list[list[int]]:
    return [[0, size - 1] if number % 2 else list(range(size)) for number in range(SUB_GROUPS)]


def _begin(group: Any, rank: int, size: int) -> dict[str, Any]:
    store = CountingStore.last
    steps, begun = Steps(group.world, store.inner), Counter(store.calls)
    parts: list[Any] = []

    def split() -> None:
        parts.extend(dist.new_group(ranks) for ranks in _members(size))

    def use(number: int) -> None:
        if rank in _members(size)[number]:
            dist.barrier(parts[number])

    seen = {"store": dict(begun), "new_group": steps(split), "world": steps(dist.barrier)}
    seen["uses"] = [steps(lambda number=number: use(number)) for number in (0, 1, 0, 1)]  # type: ignore[misc]
    return {**seen, "store of sub-groups": dict(store.calls - begun)}


@pytest.fixture(scope="module")
def pool() -> Iterator[GroupPool]:
    processes = GroupPool(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_a_world_and_its_first_calls(pool: GroupPool, transport: str, size: int) -> None:
    """Barriers send ceil(log2 n) messages from each rank; in shared memory none, once the area is known to all."""
    environment = {"BYTEPS_LIKE_TRANSPORT": transport}
    answers = pool.run(size, _begin, store=CountingStore, environment=environment)
    rounds = (size - 1).bit_length()
    for rank, seen in enumerate(answers):
        root = {"add": 2, "multi_get": 1, "set": 2, "wait": 1}
        assert seen["store"] == (root if rank == 0 else {"add": 2, "multi_get": 1, "set": 1, "wait": 2, "get": 1})
        assert (seen["new_group"], seen["store of sub-groups"]) == (0, {}), f"{SUB_GROUPS} groups: {seen}"
        pair = FRAMES * (rank in (0, size - 1))
        assert seen["uses"] == ([FRAMES * rounds, pair] * 2 if transport == "tcp" else [0] * 4)
    in_world = [seen["world"] for seen in answers]
    if transport == "tcp":  # one frame more for each link that was dialed
        assert sum(in_world) <= size * FRAMES * rounds + size * (size - 1) // 2
    else:  # rank 0 passes the area to each rank that asks for it, in two frames
        assert in_world == [2 * (size - 1)] + [1] * (size - 1)
