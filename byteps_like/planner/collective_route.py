"""Without servers: an all-reduce per partition, by the algorithm that the runtime would choose."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.selector import Choice, Limits, Selector
from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.cluster import Cluster, Settings
from byteps_like.planner.collective import Outbox, SimulatedExchange, steps
from byteps_like.planner.link import Link
from byteps_like.planner.route import SimulatedHost, joined
from byteps_like.planner.server import Shard
from byteps_like.worker.api import TensorSpec
from byteps_like.worker.local import DeclaredNames

FOLDED = 64
"""Ranks of the ring that stands for a larger one."""


class CollectiveRoute:
    """See Route. Not `exact`: one rank, alone on its host, stands for all of a ring; a ring of many hosts is folded
    into one of FOLDED, each of whose hops takes as long as several, and which moves as many bytes."""

    def __init__(
        self, clock: SimulatedClock, cluster: Cluster, settings: Settings, specs: Sequence[TensorSpec], exact: bool
    ) -> None:
        self._cluster, self._settings = cluster, settings
        catalogue = DeclaredNames(settings.partition_bytes)
        self.partitions = joined([catalogue.declare(spec) for spec in specs])
        self.workers = cluster.workers if exact else 1
        self.shards: list[Shard] = []
        self._itemsize = specs[0].dtype.itemsize
        self._exact = exact
        size = cluster.workers if exact else min(cluster.hosts, FOLDED)
        self._layout = Layout(tuple(rank // (cluster.per_host if exact else 1) for rank in range(size)))
        hops, fewer = 1.0, 1.0
        if size < cluster.hosts:
            hops, fewer = (cluster.hosts - 1) / (size - 1), (1 - 1 / size) / (1 - 1 / cluster.hosts)
        self._latency = cluster.costs.latency * hops
        costs = cluster.costs.slower(hops)
        self._hosts = [
            SimulatedHost(clock, f"worker host {number}", cluster.rate_of(number) * fewer, costs)
            for number in range(cluster.hosts if exact else 1)
        ]
        self.cards = [card for host in self._hosts for card in (host.up, host.down)]
        self._exchanges = [
            SimulatedExchange(clock, rank, self._connect, cluster.costs.memory_rate, mirror=not exact)
            for rank in range(self.workers)
        ]

    def push_pull(self, worker: int, part: int, turn: int, priority: int, done: Callable[[], None]) -> None:
        """See Route."""
        nbytes = round(self.partitions[part].nbytes * self._settings.bytes_factor)
        count = -(-nbytes // self._itemsize)
        algorithm = self._choice(nbytes).algorithm
        plan = steps(Kind.ALL_REDUCE, algorithm, worker, self._layout, count, self._itemsize)
        self._exchanges[worker].launch((self.partitions[part].key, turn), plan, priority, done)

    def _choice(self, nbytes: int) -> Choice:
        forced = self._settings.algorithm or ("" if self._layout.size > 1 and self._exact else "ring")
        limits = Limits("nothing is exchanged but by cards")
        return Selector().choose(Kind.ALL_REDUCE, nbytes, self._layout, algorithm=forced, limits=limits)

    def _connect(self, rank: int, peer: int) -> Outbox:
        local = self._cluster.per_host
        here = self._hosts[rank // local]
        there = self._hosts[peer // local] if self._exact else here
        inside = self._exact and here is there
        outbox = Outbox(self._choice(1 << 20).segment_bytes)
        target = self._exchanges[peer if self._exact else rank]
        cards = here.inside if inside else (here.up, there.down)
        latency, unsent = 0.0 if inside else self._latency, self._settings.unsent_bytes
        outbox.link = Link(cards, outbox, target.receive, latency=latency, unsent=unsent)
        return outbox
