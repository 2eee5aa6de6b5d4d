"""Racks: servers that sum for the workers of one rack, and pass sums on to the servers that own the partitions. Pure.

A server without a rack owns what it sums. A server with one is an aggregator: native workers of that rack push arrays
to it, and it pushes their sum once, to the owner. What can't be summed on the way goes to owners directly: store keys,
payloads of codecs, everything of portable workers, of workers without a rack, and of racks without an aggregator.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import modf

from byteps_like.control.placing.weights import server_weights
from byteps_like.control.types import Member, View
from byteps_like.wire.frame import PARTITION_KEY, SHARE_SHIFT

_STEPS = (0.7548776662466927, 0.5698402909980532, 0.6180339887498949)
"""By which tensors, shares and partitions go round the slots: multiples of them are spread evenly modulo 1."""


@dataclass(frozen=True)
class Rack:
    """A rack that has aggregators: `ranks` are the workers they sum for, ascending."""

    name: str
    ranks: tuple[int, ...]
    aggregators: tuple[Member, ...]


def racks_of(view: View) -> dict[str, Rack]:
    """Those of `view` that have native workers and aggregators, by name."""
    names = dict.fromkeys(server.rack for server in view.servers if server.rack)
    found = (
        Rack(
            name,
            tuple(rank for rank, worker in enumerate(view.workers) if worker.native and worker.rack == name),
            tuple(server for server in view.servers if server.rack == name),
        )
        for name in names
    )
    return {rack.name: rack for rack in found if rack.ranks}


def owners_of(view: View) -> list[Member]:
    """The servers that own partitions."""
    return [server for server in view.servers if not server.rack]


def owner_weights(view: View, rates: Mapping[str, float] | None = None) -> list[float]:
    """The share of all bytes that each server owns, in the order of their ranks; an aggregator owns none."""
    racks = racks_of(view)
    behind = {rank for rack in racks.values() for rank in rack.ranks}
    direct = [worker for rank, worker in enumerate(view.workers) if rank not in behind]
    # To owners a rack is one more worker, wherever its aggregators are.
    pushing = (*direct, *(rack.aggregators[0] for rack in racks.values()))
    owners = owners_of(view)
    weights = server_weights(replace(view, workers=pushing, servers=tuple(owners)), rates)
    by_rank = {owner.rank: weight for owner, weight in zip(owners, weights, strict=True)}
    return [by_rank.get(server.rank, 0.0) for server in view.servers]


class Ways:
    """Through which shard of a rack's aggregators each partition goes: in proportion to their weights, by its key.

    All ranks of a rack find the same, whatever else they have declared.
    """

    def __init__(self, view: View, rack: Rack) -> None:
        self.rack = rack
        self._slots, weights = _slots(view, rack)
        self._ends = list(accumulate(weights))

    def of(self, key: int) -> tuple[int, int]:
        """(server, shard) for a key."""
        within = key & PARTITION_KEY
        numbers = (within >> 16, (key & ~(1 << 63)) >> SHARE_SHIFT, within & 0xFFFF)
        place = modf(sum(number * step for number, step in zip(numbers, _STEPS, strict=True)))[0]
        found = bisect_right(self._ends, place * self._ends[-1])
        return self._slots[min(found, len(self._slots) - 1)]


def _slots(view: View, rack: Rack) -> tuple[Sequence[tuple[int, int]], Sequence[float]]:
    """The shards of a rack's aggregators and their weights: as if the rack were a job, and they its servers."""
    workers = tuple(view.workers[rank] for rank in rack.ranks)
    shares = server_weights(replace(view, workers=workers, servers=rack.aggregators))
    slots, weights = [], []
    for server, share in zip(rack.aggregators, shares, strict=True):
        for shard in range(max(server.shards, 1)):
            slots.append((server.rank, shard))
            weights.append(share / max(server.shards, 1))
    return slots, weights
