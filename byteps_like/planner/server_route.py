"""Through servers: every worker has a link to every shard, and one back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from byteps_like.control.placing.optimum import Machine, shares
from byteps_like.control.placing.placement import Placer
from byteps_like.planner.clock import SimulatedClock
from byteps_like.planner.cluster import Cluster, Settings
from byteps_like.planner.link import Link
from byteps_like.planner.queue import Push, PushQueue
from byteps_like.planner.route import SimulatedHost, joined
from byteps_like.planner.server import Shard
from byteps_like.worker.api import TensorSpec

Slot = tuple[int, int]
"""Server and shard. Servers beside workers come first."""


_UNEQUAL = 1.2


class ServerRoute:
    """See Route. Not `exact`: one worker stands for all, and one server for all that are beside workers.

    Then each segment counts on a card as often as alike ones pass it. What is lost: servers beside workers are busy
    with different partitions at different times.
    """

    def __init__(
        self, clock: SimulatedClock, cluster: Cluster, settings: Settings, specs: Sequence[TensorSpec], exact: bool
    ) -> None:
        self._clock, self._cluster, self._settings, self._exact = clock, cluster, settings, exact
        self.workers = cluster.workers if exact else 1
        self._beside = cluster.hosts if cluster.colocated else 0
        self._hosts = [self._host("worker", number) for number in range(cluster.hosts if exact else 1)]
        self._spare = [self._host("server", cluster.hosts + number) for number in range(cluster.servers)]
        servers = self._beside + cluster.servers
        shards, slowest = [cluster.shards] * servers, cluster.slowest_card() * 8 / 1e9
        placer = Placer(shards, settings.partition_bytes, self._weights(), slowest_gbps=slowest)
        self.partitions = joined([placer.place(number, spec) for number, spec in enumerate(specs)])
        self._slots = [self._simulated(part.server, part.shard) for part in self.partitions]
        self._loads: Counter[Slot] = Counter()
        for slot, part in zip(self._slots, self.partitions, strict=True):
            self._loads[slot] += part.nbytes
        differ = max(self._loads.values()) > _UNEQUAL * min(self._loads.values())
        self._proportional = differ if settings.proportional is None else settings.proportional
        self.cards = [card for host in self._hosts + self._spare for card in (host.up, host.down)]
        self.shards: list[Shard] = []
        self._queues: dict[tuple[int, Slot], PushQueue] = {}
        for slot in sorted(self._loads):
            self._add_shard(slot)

    def push_pull(self, worker: int, part: int, turn: int, priority: int, done: Callable[[], None]) -> None:
        """See Route."""
        place = self.partitions[part]
        nbytes = max(1, round(place.nbytes * self._settings.bytes_factor))
        self._queues[worker, self._slots[part]].add(Push(place.key, turn, nbytes, priority, done))

    def _weights(self) -> list[float]:
        """What each server is to have, by the optimum."""
        cluster = self._cluster
        machines = [Machine(cluster.per_host, self._beside > 0, cluster.rate_of(n)) for n in range(cluster.hosts)]
        machines += [Machine(0, True, cluster.rate_of(cluster.hosts + n)) for n in range(cluster.servers)]
        return shares(machines)[cluster.hosts - self._beside :]

    def _host(self, name: str, number: int) -> SimulatedHost:
        return SimulatedHost(self._clock, f"{name} host {number}", self._cluster.rate_of(number), self._cluster.costs)

    def _simulated(self, server: int, shard: int) -> Slot:
        return (server if self._exact or server >= self._beside else 0, shard)

    def _add_shard(self, slot: Slot) -> None:
        server, number = slot
        name = f"server {server} shard {number}"
        shard = Shard(self._clock, name, self._cluster.costs.sum_rate, self._settings.segment_bytes)
        self.shards.append(shard)
        for worker in range(self.workers):
            self._join(worker, slot, shard)

    def _join(self, worker: int, slot: Slot, shard: Shard) -> None:
        """The two links between a worker and a shard."""
        settings, local = self._settings, self._cluster.per_host
        beside = slot[0] < self._beside
        here = self._hosts[worker // local]
        there = self._hosts[slot[0]] if beside else self._spare[slot[0] - self._beside]
        inside = self._exact and here is there
        credit = math.inf if inside else settings.credit_bytes
        queue = PushQueue(self._clock, settings.segment_bytes, credit, settings.whole)
        near, far, links = self._alike(beside)
        results = shard.worker(far if not beside else near)
        latency = 0.0 if inside else self._cluster.costs.latency
        unsent, share = settings.unsent_bytes, float(self._loads[slot]) if self._proportional else links
        cards = (here.up, there.down) if not inside else here.inside
        luck = 1.0 + (settings.unfairness - 1.0) * ((worker + slot[0]) % self.workers) / max(self.workers - 1, 1)
        queue.link = Link(cards, queue, lambda segment: shard.receive(worker, segment), latency=latency,
                          weights=self._crossing(beside, near, far), unsent=unsent, share=share, luck=luck)  # fmt: skip
        cards = (there.up, here.down) if not inside else here.inside
        results.link = Link(cards, results, queue.landed, latency=latency,
                            weights=self._crossing(beside, far, near), unsent=unsent, share=share)  # fmt: skip
        self._queues[worker, slot] = queue

    def _alike(self, beside: bool) -> tuple[float, float, float]:
        """How many processes that push or are pushed to alike are at the worker's end of a link and at the server's,
        and how many links one stands for on a card."""
        if self._exact:
            return 1.0, 1.0, 1.0
        workers, local = self._cluster.workers, self._cluster.per_host
        return float(local), float(workers), float(local * (self._cluster.hosts - 1) if beside else local)

    def _crossing(self, beside: bool, first: float, second: float) -> tuple[float, float]:
        """A Link's weights. What a host has for the server on itself, one of all that are alike, crosses no card."""
        if self._exact or not beside:
            return first, second
        crossing = self._cluster.per_host * (1 - 1 / self._cluster.hosts)
        return crossing, crossing
