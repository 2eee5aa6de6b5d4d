"""What is known of a cluster and of how a job runs on it: everything that a prediction depends on but the model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError

GOODPUT = 1e9 / 8 * 1448 / 1514
"""Payload bytes per second of a line of 1 Gb/s, in TCP segments of full Ethernet frames."""

_DEFAULTS = Config()


@dataclass(frozen=True)
class ClusterCosts:
    """What things take besides the line, in seconds and bytes per second: `byteps-like plan --calibrate`."""

    latency: float = 50e-6
    """One way over a link."""
    frame: float = 2e-6
    """Of a network card, for each segment."""
    launch: float = 30e-6
    """Of the training thread, for each partition that it hands over."""
    sum_rate: float = 4e9
    """Bytes of contributions that one shard receives and sums per second."""
    memory_rate: float = 8e9
    """Between processes of one host, and of copies."""

    def __post_init__(self) -> None:
        _check_positive(self, ("sum_rate", "memory_rate"))

    def slower(self, times: float) -> ClusterCosts:
        """Each frame as dear as `times` of them."""
        return replace(self, frame=self.frame * times)


@dataclass(frozen=True)
class Cluster:
    """Machines and what joins them. Rates are payload bytes per second, each way, of a host's network card.

    `servers` are on machines of their own; with `colocated` there is also one beside the workers of each host, and
    bytes are shared out as BytePS has it. `rates`, if given, has one entry for each host: of workers, then of servers.
    """

    workers: int
    servers: int = 0
    rate: float = GOODPUT
    server_rate: float | None = None
    rates: tuple[float, ...] = ()
    per_host: int = 1
    colocated: bool = False
    shards: int = 2
    costs: ClusterCosts = field(default_factory=ClusterCosts)

    def __post_init__(self) -> None:
        _check_positive(self, ("workers", "rate", "per_host", "shards"))
        if self.servers < 0 or self.workers % self.per_host:
            raise InvalidArgumentError(f"{self.workers} workers, {self.per_host} to a host, and {self.servers} servers")
        if self.rates and len(self.rates) != self.hosts + self.servers:
            raise InvalidArgumentError(f"{len(self.rates)} rates for {self.hosts + self.servers} hosts")

    @property
    def hosts(self) -> int:
        """How many have workers."""
        return self.workers // self.per_host

    def rate_of(self, host: int) -> float:
        """The card of a host: workers' first, then servers'."""
        if self.rates:
            return self.rates[host]
        return self.rate if host < self.hosts else self.server_rate or self.rate

    def slowest_card(self) -> float:
        """Of those that traffic crosses: infinite on one host."""
        count = self.hosts + self.servers
        return min(self.rate_of(host) for host in range(count)) if count > 1 else math.inf


class SendOrder(StrEnum):
    """What goes first."""

    FIFO = "fifo"
    PRIORITY = "priority"


@dataclass(frozen=True)
class Settings:
    """How the job communicates; the defaults are the runtime's.

    `barrier`: the next forward waits for all parameters, not for each layer's own. `order`: of partitions; None: as
    they became ready under the barrier, else by priority. `overlap`: gradients leave from within backward. `first_k`:
    the weight gradients of all but so many layers come after all else. `whole`: tensors are not cut, and are answered
    once they are there whole: what is done without partitions. `proportional`: of a card each link gets a share like
    that of its bytes, instead of an equal one; None: where servers' shares differ, as the engine keeps its links in
    step. `unfairness`: how much more of a server's card TCP gives to the luckiest worker than to the unluckiest, which
    then runs ahead by its credit. `algorithm`: of collectives, "" for the runtime's own choice. `update`: seconds of
    the optimizer's step.
    """

    partition_bytes: int = _DEFAULTS.partition_bytes
    segment_bytes: int = _DEFAULTS.segment_bytes
    credit_bytes: float = _DEFAULTS.credit_bytes
    unsent_bytes: int = 256 << 10
    order: SendOrder | None = None
    barrier: bool = True
    overlap: bool = True
    first_k: int | None = None
    whole: bool = False
    proportional: bool | None = None
    unfairness: float = 2.0
    algorithm: str = ""
    update: float = 0.0
    bytes_factor: float = 1.0
    """Of what a codec leaves of each byte."""

    @property
    def by_priority(self) -> bool:
        """Whether layers near the input go first."""
        return self.order is SendOrder.PRIORITY or (self.order is None and not self.barrier)


def _check_positive(of: object, names: tuple[str, ...]) -> None:
    for name in names:
        if not getattr(of, name) > 0:
            raise InvalidArgumentError(f"{name}={getattr(of, name)} must be more than 0")
