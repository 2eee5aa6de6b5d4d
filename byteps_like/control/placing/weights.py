"""How much each server of a view sums: the hosts' optimum, shared out among the servers on each. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median

from byteps_like.config_values import LARGEST_PARTITION, SMALLEST_PARTITION
from byteps_like.control import bounds
from byteps_like.control.members.seats import ranks_text
from byteps_like.control.placing.optimum import Machine, shares
from byteps_like.control.types import Member, View
from byteps_like.errors import InvalidArgumentError


def hosts_of(view: View, rates: Mapping[str, float] | None = None) -> dict[str, Machine]:
    """The machines of `view` by host id. `rates` are measured ones, in Gb/s; they count before what members declare.

    A host whose rate nobody knows is taken to be like the others: their median, or 1 if none is known.
    """
    members = [*view.workers, *view.servers]
    known = {member.host_id: member.gbps for member in members if member.gbps > 0} | dict(rates or {})
    usual = median(known.values()) if known else 1.0
    workers = [member.host_id for member in view.workers]
    serving = {member.host_id for member in view.servers}
    ids = dict.fromkeys(member.host_id for member in members)
    return {id: Machine(workers.count(id), id in serving, known.get(id, usual)) for id in ids}


def server_weights(view: View, rates: Mapping[str, float] | None = None) -> list[float]:
    """The share of all bytes that each server sums, in the order of their ranks; 1 in all, [] without servers.

    Servers on one host share its part by their shards.
    """
    if not view.servers:
        return []
    hosts = hosts_of(view, rates)
    by_host = dict(zip(hosts, shares(list(hosts.values())), strict=True))
    threads = {id: sum(_shards(server) for server in view.servers if server.host_id == id) for id in hosts}
    return [by_host[server.host_id] * _shards(server) / threads[server.host_id] for server in view.servers]


def check_replan(view: View, partition_bytes: int, weights: Sequence[float]) -> None:
    """Raises InvalidArgumentError for a placement that can't be, or that some worker can't follow."""
    portable = [worker.rank for worker in view.workers if not worker.native]
    if portable:
        raise InvalidArgumentError(f"{ranks_text('worker', portable)}: portable workers can't move tensors")
    if partition_bytes:
        bounds.whole("partition_bytes", partition_bytes, SMALLEST_PARTITION, LARGEST_PARTITION)
    if not view.servers:
        raise InvalidArgumentError("the job has no servers to place tensors on")
    owned = [weight for server, weight in zip(view.servers, weights, strict=False) if server.rack]
    if any(owned):
        raise InvalidArgumentError(f"weights {list(weights)}: a server with a rack owns nothing; give it 0")
    usable = all(0 <= weight < inf for weight in weights) and 0 < sum(weights) < inf
    if weights and (len(weights) != len(view.servers) or not usable):
        raise InvalidArgumentError(f"weights {list(weights)} are not those of {len(view.servers)} servers")


def _shards(server: Member) -> int:
    return max(server.shards, 1)
