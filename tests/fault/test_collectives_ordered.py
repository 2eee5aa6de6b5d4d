"""Reductions with `reduction="ordered"`: the same bits on all ranks and in every run, whoever and whatever is late."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.collectives.api import CallOptions
from byteps_like.dtypes import DType, Op
from tests.fault.worlds import Forked, Threads

WORLDS, CALLS = 4, 5  # twenty runs, in four sets of processes
COUNTS = (1003, 20_011, 100_003, 300_007)
"""Elements: up to 16 KiB, 128 KiB and 1 MiB, and more. The default table has another algorithm for each."""
LATEST = 0.004  # seconds by which a rank may be late
LATE_LINKS = "chaos://tcp?seed={seed}&delay_ms=1&stall=0.005&stall_ms=3"
PLACES = [
    ("shm", (0, 0, 0)),
    ("shm", (0, 0, 0, 0)),
    (LATE_LINKS, (0, 0, 0, 0)),
    (LATE_LINKS, (0, 1, 2)),
    (LATE_LINKS, (0, 0, 1, 1)),
]


def _values(rank: int, count: int) -> np.ndarray:
    """float32 of exponents so far apart that most sums of three or more depend on their order."""
    dice = np.random.default_rng(rank)
    return (dice.standard_normal(count) * np.exp2(dice.integers(-14, 14, count))).astype(np.float32)


def _sum(ranks: Sequence[int], count: int) -> np.ndarray:
    total = _values(ranks[0], count)
    for rank in ranks[1:]:
        total = total + _values(rank, count)
    return total


def _hash(values: np.ndarray) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()


class _Tensor:
    """This rank's values, in memory that the ranks share or in its own."""

    def __init__(self, communicator: Any, count: int, *, shared: bool) -> None:
        values = _values(communicator.rank, count)
        self.memory = communicator.empty_shared(values.nbytes) if shared else values
        place = self.memory.address if shared else values.ctypes.data
        self.values = np.ctypeslib.as_array((ctypes.c_float * count).from_address(place))
        self.values[:] = values
        self.address = self.values.ctypes.data


def _hashes(communicator: Any, seed: int, algorithm: str) -> list[tuple[str, str]]:
    """What was called, and the hash of its result; at random times, in memory of both kinds, in place and not."""
    group = communicator.group("all")
    dice = random.Random(f"{seed} {communicator.rank}")
    options = CallOptions(reduction="ordered", algorithm=algorithm, timeout=30.0)
    found = []
    for call, count in itertools.product(range(CALLS), COUNTS):
        source = _Tensor(communicator, count, shared=(seed + call) % 2 == 0)
        target = source.values if call % 3 else np.empty_like(source.values)
        time.sleep(dice.uniform(0, LATEST))
        where = target.ctypes.data
        group.all_reduce(source.address, where, count, DType.FLOAT32, Op.SUM, options).wait()
        found.append((f"all_reduce {count}", _hash(target)))
    return found


def _parts(communicator: Any, seed: int) -> list[tuple[str, str]]:
    """The same of the reductions that give each rank something of its own, in sections of different lengths."""
    group = communicator.group("all")
    dice = random.Random(f"{seed} {communicator.rank}")
    options = CallOptions(reduction="ordered", timeout=30.0)
    found = []
    for call, count in itertools.product(range(CALLS), COUNTS):
        counts = [count // group.size + 7 * rank for rank in range(group.size)]
        source = _Tensor(communicator, sum(counts), shared=(seed + call) % 2 == 0)
        part, whole = np.empty(counts[group.rank], np.float32), np.empty(sum(counts), np.float32)
        time.sleep(dice.uniform(0, LATEST))
        wanted = (DType.FLOAT32, Op.SUM)
        group.reduce_scatter(source.address, part.ctypes.data, counts, *wanted, options).wait()
        found.append((f"reduce_scatter {count}, part {group.rank}", _hash(part)))
        group.reduce(source.address, whole.ctypes.data, sum(counts), *wanted, group.size - 1, options).wait()
        if group.rank == group.size - 1:
            found.append((f"reduce {count}", _hash(whole)))
    return found


def _runs(transport: str, hosts: tuple[int, ...], body: Any, *args: Any, worlds: int = WORLDS) -> dict[str, set[str]]:
    """What was called -> all hashes seen of it, on any rank in any run."""
    seen: dict[str, set[str]] = defaultdict(set)
    for seed in range(worlds):
        with Forked(len(hosts), transport.format(seed=seed + 1), hosts) as world:
            for what, digest in itertools.chain.from_iterable(world.run(body, seed, *args)):
                seen[what].add(digest)
    return seen


@pytest.mark.parametrize(("transport", "hosts"), PLACES)
def test_twenty_runs_have_the_same_bits_on_all_ranks(transport: str, hosts: tuple[int, ...]) -> None:
    seen = _runs(transport, hosts, _hashes, "")
    assert {what: len(digests) for what, digests in seen.items()} == {f"all_reduce {count}": 1 for count in COUNTS}
    if transport == "shm":  # there the order is that of the ranks
        for count in COUNTS:
            assert seen[f"all_reduce {count}"] == {_hash(_sum(range(len(hosts)), count))}


@pytest.mark.parametrize(("transport", "hosts"), PLACES)
def test_parts_have_the_same_bits_in_twenty_runs(transport: str, hosts: tuple[int, ...]) -> None:
    seen = _runs(transport, hosts, _parts)
    assert len(seen) == (len(hosts) + 1) * len(COUNTS) and {len(digests) for digests in seen.values()} == {1}


def test_these_sums_depend_on_their_order() -> None:
    """Else the tests above could not fail: neither orders of ranks nor algorithms have bits in common."""
    for count in COUNTS:
        orders = ((0, 1, 2), (0, 2, 1), (1, 2, 0))  # all there are: a + b is b + a
        assert len({_hash(_sum(order, count)) for order in orders}) == 3
    by_ring, by_pairs = (_runs("tcp", (0, 1, 2), _hashes, name, worlds=1) for name in ("ring", "recursive_doubling"))
    assert by_ring.keys() == by_pairs.keys() and not any(by_ring[what] & by_pairs[what] for what in by_ring)


def _largest(communicator: Any) -> bytes:
    """Of NaNs that differ, and of zeros of either sign: which is left depends on which comes first."""
    bits = np.array([0x7FC00001, 0, 0x80000000, 0xFFC00002, 0x80000000], np.uint32)
    values = np.roll(np.tile(bits, 20), communicator.rank)
    options = CallOptions(reduction="ordered", timeout=20.0)
    place = values.ctypes.data
    communicator.group("all").all_reduce(place, place, values.size, DType.FLOAT32, Op.MAX, options).wait()
    return values.tobytes()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_zeros_and_nans_are_the_same_on_all_ranks(size: int, transport: str) -> None:
    with Threads(size, transport) as world:
        assert len(set(world.run(_largest))) == 1
