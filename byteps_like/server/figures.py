"""What servers have counted of the tensors that they keep: whose contributions counted, and who has waited for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from operator import add
from typing import Any

from byteps_like.control.v1 import server_admin_pb2 as pb

Seconds = tuple[float, float, float, float]
"""By what is awaited, in the order of AWAITED."""


@dataclass(frozen=True)
class RankFigures:
    """Of one rank. A contribution is one to a partition, which has a version of its own."""

    clock: int = 0
    """Contributions of which it is settled what became of them; the least of all partitions."""
    counted: int = 0
    """That are part of a version."""
    late: int = 0
    """That were dropped."""
    not_finite: int = 0
    """That were left out."""
    held: int = 0
    """That had to wait for another version than the next; in the end each is also one of those above."""
    ages: int = 0
    """The sum of the ages of those that counted, in versions."""
    oldest: int = 0
    """The greatest of these ages."""
    waited: Seconds = (0.0, 0.0, 0.0, 0.0)
    """For how long this rank has waited, in waits that are over; the most of any partition, as it waits for all at
    once."""
    awaited: Seconds = (0.0, 0.0, 0.0, 0.0)
    """For how long others have waited until this rank did something; the most of any partition."""

    @property
    def staleness(self) -> float:
        """The mean age of what counted, in versions; 0 where nothing has."""
        return self.ages / self.counted if self.counted else 0.0

    def merged(self, other: RankFigures) -> RankFigures:
        """With those of other partitions."""
        ways: dict[str, Any] = {"clock": min, "oldest": max, "waited": _most, "awaited": _most}
        names = [one.name for one in fields(self)]
        return RankFigures(*(ways.get(name, add)(getattr(self, name), getattr(other, name)) for name in names))


_COUNTS = tuple(one.name for one in fields(RankFigures) if one.name not in ("waited", "awaited"))


@dataclass(frozen=True)
class KeptFigures:
    """Of some partitions: those of a tensor on a server, or of all tensors of a store on all servers."""

    partitions: int
    ranks: tuple[RankFigures, ...]

    def merged(self, other: KeptFigures) -> KeptFigures:
        """With those of other partitions. Where one server has heard of more ranks by now, they are there, too."""
        both = zip_longest(self.ranks, other.ranks, fillvalue=RankFigures())
        ranks = tuple(one.merged(more) for one, more in both)
        return KeptFigures(self.partitions + other.partitions, ranks)


def merged_by(found: Iterable[tuple[Any, KeptFigures]]) -> dict[Any, KeptFigures]:
    """One of all that have the same name, in the order in which names come."""
    merged: dict[Any, KeptFigures] = {}
    for name, figures in found:
        merged[name] = merged[name].merged(figures) if name in merged else figures
    return merged


def figures_of(shards: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[int, KeptFigures]:
    """By tensor id, of all shards of a native server."""
    return merged_by(
        (tensor, KeptFigures(of["keys"], tuple(RankFigures(*rank) for rank in of["ranks"])))
        for shard in shards
        for tensor, of in sorted(shard.items())
    )


def figures_to_wire(tensor: int, figures: KeptFigures) -> pb.KeptFigures:
    """As a server's admin service tells them."""
    message = pb.KeptFigures(tensor_id=tensor, partitions=figures.partitions)
    for one in figures.ranks:
        plain = {name: getattr(one, name) for name in _COUNTS}
        message.ranks.add(**plain, waited_s=one.waited, awaited_s=one.awaited)
    return message


def figures_from_wire(message: pb.KeptFigures) -> KeptFigures:
    """The same as plain data."""
    return KeptFigures(message.partitions, tuple(_rank_from_wire(one) for one in message.ranks))


def _rank_from_wire(message: pb.RankFigures) -> RankFigures:
    plain = {name: getattr(message, name) for name in _COUNTS}
    return RankFigures(**plain, waited=_seconds(message.waited_s), awaited=_seconds(message.awaited_s))


def _seconds(told: Sequence[float]) -> Seconds:
    """Of a server that knows fewer or more things to wait for, those that are known here."""
    first, reading, version, policy, *_ = (*told, 0.0, 0.0, 0.0, 0.0)
    return first, reading, version, policy


def _most(one: Seconds, other: Seconds) -> Seconds:
    return (max(one[0], other[0]), max(one[1], other[1]), max(one[2], other[2]), max(one[3], other[3]))
