"""One collective by itself: how long it takes, and what crosses each card."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.cluster import Cluster
from byteps_like.planner.collective import Outbox, SimulatedExchange, steps
from byteps_like.planner.link import Link, NicModel, Segment
from byteps_like.planner.route import SimulatedHost


@dataclass(frozen=True)
class Called:
    """`sent` are payload bytes by (rank, peer); of a mirrored call those of rank 0 only."""

    seconds: float
    sent: dict[tuple[int, int], int]


class Network:
    """Joins the ranks of a layout: by their hosts' cards, or (`direct`) with a card of its own for each pair."""

    def __init__(
        self, clock: SimulatedClock, cluster: Cluster, layout: Layout, segment_bytes: int, mirror: bool, direct: bool
    ):
        self.sent: dict[tuple[int, int], int] = {}
        self._clock, self._cluster, self._layout, self._direct = clock, cluster, layout, direct
        self._segment_bytes, self._mirror = segment_bytes, mirror
        self._hosts = [
            SimulatedHost(clock, f"host {n}", cluster.rate_of(n), cluster.costs) for n in range(len(layout.members))
        ]
        ranks = 1 if mirror else layout.size
        copies = cluster.costs.memory_rate
        self.exchanges = [SimulatedExchange(clock, rank, self._connect, copies, mirror) for rank in range(ranks)]

    def _connect(self, rank: int, peer: int) -> Outbox:
        here, there = (self._layout.place(one)[0] for one in (rank, peer))
        costs, outbox = self._cluster.costs, Outbox(self._segment_bytes)
        alike = float(len(self._layout.members[here])) if self._mirror and here != there else 1.0
        exchange = self.exchanges[0 if self._mirror else peer]

        def deliver(segment: Segment) -> None:
            self.sent[rank, peer] = self.sent.get((rank, peer), 0) + segment.nbytes
            exchange.receive(segment)

        cards = self._hosts[here].inside if here == there else self._between(here, there)
        latency = 0.0 if here == there else costs.latency
        outbox.link = Link(cards, outbox, deliver, latency=latency, weights=(alike, alike))
        return outbox

    def _between(self, here: int, there: int) -> tuple[NicModel, NicModel]:
        if self._direct:
            name, rate, frame = f"{here} to {there}", self._cluster.rate_of(here), self._cluster.costs.frame
            return NicModel(self._clock, name, rate, frame), NicModel(self._clock, name, rate)
        return self._hosts[here].up, self._hosts[0 if self._mirror else there].down


def call(
    kind: Kind,
    algorithm: str,
    layout: Layout,
    count: int,
    cluster: Cluster,
    *,
    itemsize: int = 4,
    segment_bytes: int = 256 << 10,
    mirror: bool = False,
    direct: bool = False,
) -> Called:
    """Simulates one call with sections of `count` elements, which all ranks make at once.

    `mirror`: rank 0 stands for all; only for algorithms in which all ranks do the same.
    """
    clock = SimulatedClock()
    network = Network(clock, cluster, layout, segment_bytes, mirror, direct)
    ends: list[float] = []
    for exchange in network.exchanges:
        plan = steps(kind, algorithm, exchange.rank, layout, count, itemsize)
        exchange.launch((0, 0), plan, 0, lambda: ends.append(clock.now))
    clock.run()
    return Called(max(ends), network.sent)
