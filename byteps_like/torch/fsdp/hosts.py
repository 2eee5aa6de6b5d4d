"""Which ranks of a process group share a host, and whom each exchanges what with in a reduction of two hops."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any

import torch

from byteps_like.collectives.algorithms.two_level import carried, carrier
from byteps_like.collectives.api import CallOptions, Group
from byteps_like.collectives.schedules.schedule import Layout
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.c10d.process_group import ProcessGroup

logger = logging.getLogger(__name__)
TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""What is encoded; tensors of other types travel as they are."""


@functools.cache
def warn_raw(call: str, device: str) -> None:
    """Says once that what `call` was to encode lies where it isn't encoded."""
    logger.warning("%s: tensors on %s are sent uncompressed: only tensors in host memory are encoded", call, device)


def ours(group: Any) -> ProcessGroup:
    """`group`, if it is of this backend. Raises InvalidArgumentError."""
    if isinstance(group, ProcessGroup):
        return group
    raise InvalidArgumentError(
        f"compress_fsdp needs process groups of 'byteps', not {type(group).__name__}: call"
        ' init_process_group("byteps") before the mesh is made'
    )


def even_hosts(group: ProcessGroup) -> int | None:
    """Ranks of each host, if there are several of both and ranks are numbered host by host."""
    hosts = group.lanes.first.hosts
    each = hosts.count(hosts[0])
    regular = all(host == hosts[rank - rank % each] for rank, host in enumerate(hosts))
    several = 1 < each < len(hosts) and len(hosts) == each * len(set(hosts))
    return each if regular and several else None


def crosses_hosts(group: ProcessGroup) -> bool:
    """Whether its ranks are on several hosts."""
    return len(set(group.lanes.first.hosts)) > 1


@dataclass(frozen=True)
class Hops:
    """The two hops of one rank. Numbers are ranks of the process group.

    parts: by rank of this host, in order, the chunks that it sums: its own, and those it carries for other hosts.
    place: this rank's among them.
    within: the group of this host's ranks; None if there is but this one.
    across: the group of the second hop; `peers`: its ranks.
    senders: the ranks from which chunks of this rank come, sums of one host each.
    """

    parts: tuple[tuple[int, ...], ...]
    place: int
    within: Group | None
    across: Group
    peers: tuple[int, ...]
    senders: tuple[int, ...]

    @property
    def carried(self) -> tuple[int, ...]:
        """The chunks, of ranks of other hosts, that this rank sends on."""
        return self.parts[self.place][1:]


def hops_of(group: ProcessGroup) -> Hops:
    """For a group on several hosts. Sends no message: all ranks come to the same."""
    lane, layout = group.lanes.first, Layout(group.lanes.first.hosts)
    host, place = layout.place(lane.rank)
    members = layout.members[host]
    even = len({len(ranks) for ranks in layout.members}) == 1
    peers = tuple(ranks[place] for ranks in layout.members) if even else tuple(range(lane.size))
    others = [number for number in range(len(layout.members)) if number != host]

    def made(name: str, ranks: tuple[int, ...]) -> Group:
        return group.world.group(f"{lane.name}/zero/{name}", [lane.ranks[rank] for rank in ranks])

    return Hops(
        tuple((rank, *sorted(carried(layout, rank))) for rank in members),
        place,
        made(f"within/{host}", members) if len(members) > 1 else None,
        made(f"across/{place}" if even else "across", peers),
        peers,
        tuple(sorted(carrier(layout, other, lane.rank) for other in others)),
    )


def gather_options(group: ProcessGroup) -> CallOptions:
    """By the schedule that sends each payload to another host once, unless the group's user has chosen one."""
    options = group.defaults.default
    sizes = {len(ranks) for ranks in Layout(group.lanes.first.hosts).members}
    return options if options.algorithm or sizes == {1} else options._replace(algorithm="two_level")
