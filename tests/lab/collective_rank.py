"""A rank of test_collectives_lab: makes calls, checks their results, and counts what went to whom and over the wire."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.bench import world
from byteps_like.bench.world import BenchSeat
from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.communicator import Communicator
from byteps_like.collectives.group import NativeGroup
from byteps_like.dtypes import DType, Op

Moved = dict[str, Any]
WAIT = 60.0
TYPES = {DType.FLOAT32: np.float32, DType.INT64: np.int64, DType.UINT8: np.uint8, DType.FLOAT64: np.float64}


def numbers(rank: int, count: int, kind: DType) -> np.ndarray:
    """What rank `rank` gives: whole numbers whose sums are exact in every type used here."""
    return (np.random.default_rng(rank).integers(0, 15, count)).astype(TYPES[kind])


def wire() -> dict[str, int]:
    statistics = Path("/sys/class/net/eth0/statistics")
    return {f"wire_{way}": int((statistics / f"{way}_bytes").read_text()) for way in ("tx", "rx")}


@contextmanager
def counted(ranks: Communicator, everybody: NativeGroup) -> Iterator[Moved]:
    """Fills in what happened inside: frames and payload bytes to each peer, and this host's wire."""
    everybody.barrier().wait(WAIT)
    before, start = [ranks.counters(peer) for peer in range(ranks.size)], wire()
    moved: Moved = {}
    yield moved
    after = [ranks.counters(peer) for peer in range(ranks.size)]
    for name in ("frames_sent", "payload_sent", "bytes_sent", "payload_received"):
        moved[name] = [new[name] - old[name] for new, old in zip(after, before, strict=True)]
    everybody.barrier().wait(WAIT)
    moved |= {name: value - start[name] for name, value in wire().items()}


def all_reduce(group: NativeGroup, algorithm: str, count: int, kind: DType = DType.FLOAT32) -> None:
    """One call, its result checked."""
    source, target = numbers(group.rank, count, kind), np.zeros(count, TYPES[kind])
    options = CallOptions(algorithm=algorithm)
    group.all_reduce(source.ctypes.data, target.ctypes.data, count, kind, Op.SUM, options).wait(WAIT)
    expected = sum(numbers(rank, count, kind) for rank in range(group.size))
    np.testing.assert_array_equal(target, expected, err_msg=f"all_reduce by {algorithm}, rank {group.rank}")


def all_to_all(group: NativeGroup, algorithm: str, each: int, kind: DType = DType.FLOAT32) -> None:
    """One call with `each` elements to everybody, its result checked."""
    source, target = numbers(group.rank, each * group.size, kind), np.zeros(each * group.size, TYPES[kind])
    options = CallOptions(algorithm=algorithm)
    group.all_to_all(source.ctypes.data, target.ctypes.data, each, each, kind, options).wait(WAIT)
    own = slice(group.rank * each, (group.rank + 1) * each)
    expected = np.concatenate([numbers(rank, each * group.size, kind)[own] for rank in range(group.size)])
    np.testing.assert_array_equal(target, expected, err_msg=f"all_to_all by {algorithm}, rank {group.rank}")


def two_hosts(ranks: Communicator, everybody: NativeGroup) -> Moved:
    """Ring and hierarchical all-reduce of all, then one of a host's own ranks."""
    found, count = {}, 1 << 18
    for name in ("ring", "hierarchical"):
        with counted(ranks, everybody) as found[name]:
            all_reduce(everybody, name, count)
    host = everybody.rank // 4
    inner = ranks.group(f"host {host}", tuple(range(4 * host, 4 * host + 4)))
    with counted(ranks, everybody) as found["inner"]:
        all_reduce(inner, "ring", count)
        all_reduce(inner, "", count)
    return found


def four_by_four(ranks: Communicator, everybody: NativeGroup) -> Moved:
    """Both all-to-alls, counted at one size and checked at many."""
    found = {}
    for name in ("pairwise", "2dh"):
        with counted(ranks, everybody) as found[name]:
            all_to_all(everybody, name, 256)
    random = np.random.default_rng(5)
    for _ in range(6):
        kind = list(TYPES)[random.integers(len(TYPES))]
        each = int(random.integers(0, 3000))
        for name in ("pairwise", "2dh", "two_level", ""):
            all_to_all(everybody, name, each, kind)
    return found


def four_hosts(ranks: Communicator, everybody: NativeGroup) -> Moved:
    """A ring all-reduce of 8 MiB."""
    found = {}
    with counted(ranks, everybody) as found["ring"]:
        all_reduce(everybody, "ring", 1 << 21)
    return found


WORLDS: dict[str, Callable[[Communicator, NativeGroup], Moved]] = {
    "two_hosts": two_hosts,
    "four_by_four": four_by_four,
    "four_hosts": four_hosts,
}


def main() -> None:
    with world.join() as (here, ranks):
        everybody = ranks.group("everybody")
        warm_up(here, everybody)
        here.save(WORLDS[sys.argv[1]](ranks, everybody))


def warm_up(here: BenchSeat, everybody: NativeGroup) -> None:
    """Makes all links, so that their first frames are not counted."""
    all_to_all(everybody, "pairwise", 1)
    assert everybody.size == here.size


if __name__ == "__main__":
    main()
