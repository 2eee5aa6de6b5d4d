"""How the next world comes together: who may wait for it, who is missing, which rank each gets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from byteps_like.control.bounds import MOST_SHARDS_IN_ALL
from byteps_like.control.members.seats import JoinClaim, Seat, describe, ranks_text
from byteps_like.control.types import Member, MemberRole
from byteps_like.errors import RefusedError


@dataclass(frozen=True)
class Terms:
    """What the scheduler itself was told; anything else is decided by the first member that knows it."""

    world_size: int = 0
    """0: not told."""
    num_servers: int = -1
    """-1: not told."""
    settings: dict[str, str] = field(default_factory=dict)
    source: str = "the scheduler"


@dataclass
class Forming:
    """The members that wait for the next epoch, in order of arrival."""

    terms: Terms
    workers: dict[str, Seat] = field(default_factory=dict)
    servers: dict[str, Seat] = field(default_factory=dict)
    _holders: dict[tuple[MemberRole, int], Seat] = field(default_factory=dict)

    def add(self, seat: Seat) -> None:
        """`seat` waits from now on; `check` has let it in."""
        (self.workers if seat.is_worker else self.servers)[seat.id] = seat
        if seat.member.rank >= 0:
            self._holders[seat.member.role, seat.member.rank] = seat

    def remove(self, seat: Seat) -> None:
        """`seat` no longer waits."""
        (self.workers if seat.is_worker else self.servers).pop(seat.id, None)
        if self._holders.get((seat.member.role, seat.member.rank)) is seat:
            del self._holders[seat.member.role, seat.member.rank]

    def holder(self, member: Member) -> Seat | None:
        """Who waits under the rank that `member` wants."""
        return self._holders.get((member.role, member.rank))

    def seats(self) -> Iterator[Seat]:
        """All who wait: workers, then servers, each in order of arrival."""
        return chain(self.workers.values(), self.servers.values())

    def world_size(self) -> tuple[int, str]:
        """Number of workers and who says so; 0 while nobody has."""
        if self.terms.world_size:
            return self.terms.world_size, self.terms.source
        first = next((seat for seat in self.seats() if seat.claim.world_size), None)
        return (first.claim.world_size, describe(first.claim.member)) if first else (0, "")

    def num_servers(self) -> tuple[int, str]:
        """Number of servers and who says so; -1 while nobody has."""
        if self.terms.num_servers >= 0:
            return self.terms.num_servers, self.terms.source
        first = next((seat for seat in self.seats() if seat.claim.num_servers >= 0), None)
        return (first.claim.num_servers, describe(first.claim.member)) if first else (-1, "")

    def has_servers(self, wanted: int = -1) -> bool:
        """Whether as many servers wait as are `wanted`; -1: as it is known how many there must be."""
        count = self.num_servers()[0] if wanted < 0 else wanted
        return 0 <= count <= len(self.servers)

    def settings(self) -> dict[str, str]:
        """What all agree on so far."""
        agreed = dict(self.terms.settings)
        for seat in self.seats():
            for name, value in seat.claim.settings.items():
                agreed.setdefault(name, value)
        return agreed

    def check(self, claim: JoinClaim) -> None:
        """Raises RefusedError if `claim` contradicts the scheduler or those who wait: sizes, settings, rank, room."""
        who = describe(claim.member)
        size, by = self.world_size()
        if claim.world_size and size and claim.world_size != size:
            raise RefusedError(f"{who} has world_size={claim.world_size}, but {by} has world_size={size}")
        servers, by = self.num_servers()
        if claim.num_servers >= 0 and servers >= 0 and claim.num_servers != servers:
            raise RefusedError(f"{who} has num_servers={claim.num_servers}, but {by} has num_servers={servers}")
        self._check_settings(claim)
        if claim.member.role is MemberRole.WORKER:
            self._check_room(claim, self.workers, size or claim.world_size or None)
        else:
            self._check_room(claim, self.servers, servers if servers >= 0 else None)
            shards = claim.member.shards + sum(seat.member.shards for seat in self.servers.values())
            if shards > MOST_SHARDS_IN_ALL:
                raise RefusedError(f"{who} makes shards={shards} of all servers, more than {MOST_SHARDS_IN_ALL}")

    def _check_settings(self, claim: JoinClaim) -> None:
        # The first member that knows a setting decides it, so comparing with the first that has each is enough.
        for name, value in claim.settings.items():
            holder, agreed = self.terms.source, self.terms.settings.get(name)
            if agreed is None:
                first = next((seat for seat in self.seats() if name in seat.claim.settings), None)
                if first is None:
                    continue
                holder, agreed = describe(first.claim.member), first.claim.settings[name]
            if agreed != value:
                raise RefusedError(f"{describe(claim.member)} has {name}={value}, but {holder} has {name}={agreed}")

    def _check_room(self, claim: JoinClaim, peers: dict[str, Seat], limit: int | None) -> None:
        who, role = describe(claim.member), claim.member.role.value
        if limit is not None and claim.member.rank >= limit:
            raise RefusedError(f"{who} is out of range: this job has {limit} {role}s")
        holder = self.holder(claim.member)
        if holder is not None:
            raise RefusedError(
                f"duplicate rank: {who} wants the rank of {describe(holder.member)}, which joined before"
            )
        if limit is not None and len(peers) >= limit:
            there = ", ".join(describe(seat.member) for seat in islice(peers.values(), 8)) or "none"
            raise RefusedError(f"{who} is one too many: this job has {limit} {role}s; there are already: {there}")

    def excess(self) -> list[Seat]:
        """Servers beyond the number that a worker named after they had come."""
        count = self.num_servers()[0]
        if count < 0:
            return []
        return [seat for place, seat in enumerate(self.servers.values()) if max(place, seat.member.rank) >= count]

    def is_complete(self) -> bool:
        """True when as many workers and servers wait as the world has."""
        size, servers = self.world_size()[0], self.num_servers()[0]
        return size > 0 and len(self.workers) == size and len(self.servers) == servers

    def flaw(self) -> str:
        """Why those who have come can't be a world, though they are all; "" if they can."""
        racks = [seat.member.rack for seat in self.servers.values()]
        if not racks or not all(racks):
            return ""
        return (
            f"no server owns what workers push: all {len(racks)} have a rack ({', '.join(sorted(set(racks)))}), so that"
            " each only passes sums on; start one without"
        )

    def missing(self) -> str:
        """Who has not come, in words: "workers 1, 3 of 4; 1 of 2 servers"."""
        size, servers = self.world_size()[0], self.num_servers()[0]
        workers = _missing_workers(list(self.workers.values()), size)
        return "; ".join(filter(None, [workers, _missing_servers(list(self.servers.values()), servers)])) or "nobody"

    def assign(self) -> tuple[list[Seat], list[Seat]]:
        """Gives ranks to those that asked for any, one host's after another; workers and servers in rank order."""
        return _with_ranks(list(self.workers.values())), _with_ranks(list(self.servers.values()))


def _missing_workers(seats: list[Seat], size: int) -> str:
    if not size:
        return "all workers"
    unranked = sum(seat.member.rank < 0 for seat in seats)
    absent = sorted(set(range(size)) - {seat.member.rank for seat in seats})
    if len(seats) >= size:
        return ""
    if unranked:
        return f"{size - len(seats)} of {size} workers"
    return f"{ranks_text('worker', absent)} of {size}"


def _missing_servers(seats: list[Seat], count: int) -> str:
    if len(seats) >= count:
        return ""
    ranked = {seat.member.rank for seat in seats}
    if seats and min(ranked) >= 0:
        return f"{ranks_text('server', sorted(set(range(count)) - ranked))} of {count}"
    return f"{count - len(seats)} of {count} server{'s' if count > 1 else ''}"


def _with_ranks(seats: list[Seat]) -> list[Seat]:
    taken = {seat.member.rank for seat in seats}
    free = iter(sorted(set(range(len(seats))) - taken))
    unranked = [seat for seat in seats if seat.member.rank < 0]
    hosts = {host: order for order, host in enumerate(dict.fromkeys(seat.member.host_id for seat in unranked))}
    for seat in sorted(unranked, key=lambda seat: hosts[seat.member.host_id]):
        seat.member = replace(seat.member, rank=next(free))
    return sorted(seats, key=lambda seat: seat.member.rank)
