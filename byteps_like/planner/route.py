"""The two ways of a partition: through servers, or by a collective among the workers; built from a cluster."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from byteps_like.collectives.schedule import Kind, Layout
from byteps_like.collectives.selector import Limits, Selector
from byteps_like.control.optimum import Host as Machine
from byteps_like.control.optimum import shares
from byteps_like.control.placement import Placer
from byteps_like.planner.clock import Clock
from byteps_like.planner.cluster import Cluster, Settings
from byteps_like.planner.collective import Exchange, Outbox, steps
from byteps_like.planner.link import Card, Link
from byteps_like.planner.queue import Push, PushQueue
from byteps_like.planner.server import Shard
from byteps_like.worker.api import Declared, Partition, TensorSpec
from byteps_like.worker.local import Catalogue

FOLDED = 64
"""Ranks of the ring that stands for a larger one."""


class Route(Protocol):
    """How partitions of one tensor are reduced. `cards`, `shards`: what may be busy."""

    partitions: tuple[Partition, ...]
    workers: int
    """Simulated ones; if it is 1 it stands for all."""
    cards: list[Card]
    shards: list[Shard]

    def push_pull(self, worker: int, part: int, turn: int, priority: int, done: Callable[[], None]) -> None:
        """`worker` hands over partition `part` in round `turn`; calls `done` when its result has landed."""


def _joined(declared: Sequence[Declared]) -> tuple[Partition, ...]:
    """The partitions of tensors that lie one behind the other."""
    found, offset = [], 0
    for one in declared:
        found += [replace(part, offset=offset + part.offset) for part in one.partitions]
        offset += one.spec.nbytes
    return tuple(found)


class Host:
    """A machine's network card and memory."""

    def __init__(self, clock: Clock, name: str, rate: float, cluster: Cluster) -> None:
        frame = cluster.costs.frame
        self.up = Card(clock, f"{name} sends", rate, frame)
        self.down = Card(clock, f"{name} receives", rate)
        self.memory = Card(clock, f"{name} copies", cluster.costs.memory_rate)
        self.landing = Card(clock, f"{name} lands", math.inf)


class ServerRoute:
    """Every worker pushes to every shard. With `exact` false one worker stands for all, which must be alike."""

    def __init__(
        self, clock: Clock, cluster: Cluster, settings: Settings, specs: Sequence[TensorSpec], exact: bool
    ) -> None:
        self._clock, self._cluster, self._settings = clock, cluster, settings
        self.workers = cluster.workers if exact else 1
        self._exact = exact
        beside = cluster.hosts if cluster.colocated else 0
        shards = [cluster.shards] * (beside + cluster.servers)
        placer = Placer(shards, settings.partition_bytes, self._weights(beside))
        self.partitions = _joined([placer.place(number, spec) for number, spec in enumerate(specs)])
        hosts = [self._host(f"worker host {n}", n) for n in range(cluster.hosts if exact else 1)]
        spare = [self._host(f"server host {n}", cluster.hosts + n) for n in range(cluster.servers)]
        self.cards = [card for host in hosts + spare for card in (host.up, host.down)]
        self.shards: list[Shard] = []
        self._queues: dict[tuple[int, int, int], PushQueue] = {}
        for server in range(beside + cluster.servers):
            own = server - beside if server >= beside else None
            if own is None and not exact and server > 0:
                continue  # the first stands for all that are beside workers
            self._add_server(server, own is not None, hosts, spare[own] if own is not None else hosts[server])

    def push_pull(self, worker: int, part: int, turn: int, priority: int, done: Callable[[], None]) -> None:
        """See Route."""
        place = self.partitions[part]
        server = place.server
        if not self._exact and self._cluster.colocated and server < self._cluster.hosts:
            server = 0
        nbytes = max(1, round(place.nbytes * self._settings.bytes_factor))
        self._queues[worker, server, place.shard].add(Push(place.key, turn, nbytes, priority, done))

    def _weights(self, beside: int) -> list[float]:
        """What each server is to have, by the optimum: those beside workers first, then the others."""
        cluster = self._cluster
        hosts = [Machine(cluster.per_host, beside > 0, cluster.rate_of(number)) for number in range(cluster.hosts)]
        hosts += [Machine(0, True, cluster.rate_of(cluster.hosts + number)) for number in range(cluster.servers)]
        return shares(hosts)[cluster.hosts - beside :]

    def _host(self, name: str, number: int) -> Host:
        return Host(self._clock, name, self._cluster.rate_of(number), self._cluster)

    def _add_server(self, server: int, spare: bool, hosts: Sequence[Host], own: Host) -> None:
        for number in range(self._cluster.shards):
            name = f"server {server} shard {number}"
            shard = Shard(self._clock, name, self._cluster.costs.sum_rate, self._settings.segment_bytes)
            self.shards.append(shard)
            for worker in range(self.workers):
                self._join(worker, server, number, shard, hosts[worker // self._cluster.per_host], own, spare)

    def _join(self, worker: int, server: int, number: int, shard: Shard, host: Host, own: Host, spare: bool) -> None:
        """The two links between a worker and a shard."""
        n, local = self._cluster.workers, self._cluster.per_host
        near = 1.0 if self._exact else float(local)  # processes that share the worker's card
        far = 1.0 if self._exact else float(n)
        inside = self._exact and host is own
        if not self._exact and not spare:  # one of n/local hosts, whose traffic to itself crosses no card
            near = far = local * (1 - local / n)
        out = (host.memory, host.landing) if inside else (host.up, own.down)
        back = (host.memory, host.landing) if inside else (own.up, host.down)
        latency = 0.0 if inside else self._cluster.costs.latency
        unsent = self._settings.unsent_bytes
        credit = math.inf if inside else self._settings.credit_bytes
        queue = PushQueue(self._clock, self._settings.segment_bytes, credit, self._settings.whole)
        results = shard.worker(1.0 if self._exact else n if spare else float(local))
        queue.link = Link(
            out,
            queue,
            lambda segment: shard.receive(worker, segment),
            latency=latency,
            weights=(near, far),
            unsent=unsent,
        )
        results.link = Link(back, results, queue.landed, latency=latency, weights=(far, near), unsent=unsent)
        self._queues[worker, server, number] = queue


class CollectiveRoute:
    """An all-reduce per partition. With `exact` false one rank of a flat world stands for all."""

    def __init__(
        self, clock: Clock, cluster: Cluster, settings: Settings, specs: Sequence[TensorSpec], exact: bool
    ) -> None:
        self._clock, self._cluster, self._settings = clock, cluster, settings
        catalogue = Catalogue(settings.partition_bytes)
        self.partitions = _joined([catalogue.declare(spec) for spec in specs])
        self.workers = cluster.workers if exact else 1
        self.shards: list[Shard] = []
        self._itemsize = specs[0].dtype.itemsize
        size = cluster.workers if exact else min(cluster.hosts, FOLDED)
        self._layout = Layout(tuple(rank // (cluster.per_host if exact else 1) for rank in range(size)))
        self._latency, frame, rate = cluster.costs.latency, cluster.costs.frame, 1.0
        if not exact and cluster.hosts > FOLDED:  # each hop stands for several
            hops = (cluster.hosts - 1) / (FOLDED - 1)
            self._latency, frame = self._latency * hops, frame * hops
            rate = (1 - 1 / FOLDED) / (1 - 1 / cluster.hosts)
        self._hosts = [
            Host(clock, f"worker host {n}", cluster.rate_of(n) * rate, cluster)
            for n in range(cluster.hosts if exact else 1)
        ]
        for n, host in enumerate(self._hosts):
            host.up = Card(clock, host.up.name, cluster.rate_of(n) * rate, frame)
        self.cards = [card for host in self._hosts for card in (host.up, host.down)]
        self._exchanges = [
            Exchange(clock, rank, self._connect, cluster.costs.memory_rate, mirror=not exact)
            for rank in range(self.workers)
        ]

    def push_pull(self, worker: int, part: int, turn: int, priority: int, done: Callable[[], None]) -> None:
        """See Route."""
        nbytes = round(self.partitions[part].nbytes * self._settings.bytes_factor)
        count = -(-nbytes // self._itemsize)
        plan = steps(Kind.ALL_REDUCE, self._algorithm(nbytes), worker, self._layout, count, self._itemsize)
        self._exchanges[worker].launch((self.partitions[part].key, turn), plan, priority, done)

    def _algorithm(self, nbytes: int) -> str:
        if self._settings.algorithm:
            return self._settings.algorithm
        if self._layout.size == 1:
            return "ring"
        return Selector().choose(Kind.ALL_REDUCE, nbytes, self._layout, limits=Limits(shared=False)).algorithm

    def _connect(self, rank: int, peer: int) -> Outbox:
        mirrored = self._exchanges[rank].mirror
        target = self._exchanges[rank if mirrored else peer]
        per_host = self._cluster.per_host
        host, other = self._hosts[rank // per_host], self._hosts[0 if mirrored else peer // per_host]
        inside = host is other and not mirrored
        outbox = Outbox(self._segment_bytes)
        outbox.link = Link(
            (host.memory, host.landing) if inside else (host.up, other.down),
            outbox,
            target.receive,
            latency=0.0 if inside else self._latency,
            unsent=self._settings.unsent_bytes,
        )
        return outbox

    @property
    def _segment_bytes(self) -> int:
        return Selector().choose(Kind.ALL_REDUCE, 1 << 20, self._layout, limits=Limits(shared=False)).segment_bytes
