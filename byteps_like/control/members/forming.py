"""How the next world comes together: who may wait for it, who is missing, which rank each gets. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice

from byteps_like.config_values import parse
from byteps_like.control.bounds import MOST_SHARDS_IN_ALL
from byteps_like.control.members.elasticity import Succession, WorldLimits
from byteps_like.control.members.epoch import Epoch
from byteps_like.control.members.seats import JoinClaim, Seat, describe, ranks_text
from byteps_like.control.types import Member, MemberRole
from byteps_like.errors import RefusedError

_ELASTIC = ("elastic", "min_workers", "max_workers")


@dataclass(frozen=True)
class Terms:
    """What the scheduler itself was told; anything else is decided by the first member that knows it."""

    world_size: int = 0
    """0: not told."""
    num_servers: int = -1
    """-1: not told."""
    settings: dict[str, str] = field(default_factory=dict)
    source: str = "the scheduler"


def terms_after(terms: Terms, epoch: Epoch) -> Terms:
    """Those of the next world. An elastic job keeps to what was agreed: some of its members are in the epoch, and not
    among those who wait."""
    told = (seat.claim.world_size for seat in epoch.workers() if seat.claim.world_size)
    size = terms.world_size or next(told, epoch.view.size)
    if WorldLimits.of(epoch.view.settings, size) is None:
        return terms
    counts = (seat.claim.num_servers for seat in epoch.workers() if seat.claim.num_servers >= 0)
    servers = terms.num_servers if terms.num_servers >= 0 else next(counts, len(epoch.view.servers))
    return Terms(size, servers, epoch.view.settings, f"epoch {epoch.number}")


@dataclass
class Forming:
    """The members that wait for the next epoch, in order of arrival."""

    terms: Terms
    before: Epoch | None = None
    """The newest epoch, if there was one."""
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

    def succession(self) -> Succession | None:
        """How an elastic job goes on; None if the job isn't elastic, as far as is known."""
        found = {name: agreed[0] for name in _ELASTIC if (agreed := self._agreed(name)) is not None}
        size = self.world_size()[0]
        limits = WorldLimits.of(found, size)
        return None if limits is None else Succession(limits, size, self.before)

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
            if not self.is_elastic(claim):
                self._check_room(claim, self.workers, size or claim.world_size or None)
        else:
            self._check_room(claim, self.servers, servers if servers >= 0 and not self._takes_more_servers() else None)
            shards = claim.member.shards + sum(seat.member.shards for seat in self.servers.values())
            if shards > MOST_SHARDS_IN_ALL:
                raise RefusedError(f"{who} makes shards={shards} of all servers, more than {MOST_SHARDS_IN_ALL}")

    def is_elastic(self, claim: JoinClaim) -> bool:
        """Whether the job is, or becomes so by `claim`: then workers get their ranks when the world forms, and more may
        wait than it takes."""
        agreed = self._agreed("elastic")
        value = claim.settings.get("elastic", "no") if agreed is None else agreed[0]
        return bool(parse("elastic", value, bool))

    def _check_settings(self, claim: JoinClaim) -> None:
        for name, value in claim.settings.items():
            agreed = self._agreed(name)
            if agreed is not None and agreed[0] != value:
                who, other = describe(claim.member), agreed[1]
                raise RefusedError(f"{who} has {name}={value}, but {other} has {name}={agreed[0]}")

    def _agreed(self, name: str) -> tuple[str, str] | None:
        """The value of a setting and who has it. The first member that knows it decides."""
        if name in self.terms.settings:
            return self.terms.settings[name], self.terms.source
        first = next((seat for seat in self.seats() if name in seat.claim.settings), None)
        return None if first is None else (first.claim.settings[name], describe(first.claim.member))

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
        if count < 0 or self._takes_more_servers():
            return []
        return [seat for place, seat in enumerate(self.servers.values()) if max(place, seat.member.rank) >= count]

    def is_complete(self) -> bool:
        """True when as many workers and servers wait as the world has. The workers of an elastic one: see
        Succession."""
        if not self._has_enough_servers():
            return False
        succession = self.succession()
        if succession is not None:
            return succession.is_complete(self.workers)
        size = self.world_size()[0]
        return size > 0 and len(self.workers) == size

    def _has_enough_servers(self) -> bool:
        """All; or any, in the later worlds of an elastic job."""
        return len(self.servers) == self.num_servers()[0] or (self._takes_more_servers() and bool(self.servers))

    def _takes_more_servers(self) -> bool:
        """Whether there may be any number of them: in the later worlds of an elastic job that has some."""
        return self.before is not None and self.succession() is not None and self.num_servers()[0] > 0

    def settled_at(self) -> float | None:
        """When those who wait become a world, though others are missing; None: not at all."""
        succession = self.succession()
        if succession is None or not self._has_enough_servers():
            return None
        return succession.settled_at(self.workers)

    def can_go_on(self) -> bool:
        """Whether any worker waits who has something to do."""
        succession = self.succession()
        return bool(self.workers) and (succession is None or succession.can_go_on(self.workers.values()))

    def too_few(self) -> int:
        """Least number of workers of an elastic job, if fewer are there; else 0."""
        succession = self.succession()
        return succession.limits.least if succession and len(self.workers) < succession.limits.least else 0

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
        succession = self.succession()
        if succession is not None and size:
            workers = succession.missing(len(self.workers))
        else:
            workers = _missing_workers(list(self.workers.values()), size)
        return "; ".join(filter(None, [workers, _missing_servers(list(self.servers.values()), servers)])) or "nobody"

    def assign(self) -> tuple[list[Seat], list[Seat]]:
        """Gives ranks to those that asked for any, one host's after another; workers and servers in rank order, servers
        that were there before first. Workers of an elastic job: see Succession."""
        succession = self.succession()
        if succession is None:
            workers = _with_ranks(list(self.workers.values()))
        else:
            workers = succession.chosen(self.workers.values())
            for rank, seat in enumerate(workers):
                seat.member = replace(seat.member, rank=rank)
        return workers, _with_ranks(sorted(self.servers.values(), key=lambda seat: seat.member.number))

    def spares(self, epoch: Epoch) -> list[Seat]:
        """Workers for whom there was no room in `epoch`, which has formed of the others."""
        return [seat for seat in self.workers.values() if seat.id not in epoch.seats]


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
