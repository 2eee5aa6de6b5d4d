"""One generation of the membership, from the moment its world has formed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from byteps_like.control.members.seats import JoinClaim, Seat, SeatState, describe
from byteps_like.control.types import MemberRole, View
from byteps_like.errors import BytePSLikeError, RefusedError

_NOT_SERVING = (SeatState.LEAVING, SeatState.LEFT, SeatState.LOST)


@dataclass
class Epoch:
    """The members of one view and how it ended."""

    view: View
    seats: dict[str, Seat]
    started: float
    failure: BytePSLikeError | None = None
    can_lose_workers: bool = False
    """Who lives goes on when a worker has died, or left."""

    can_lose_servers: bool = False
    """Those that live take over what a server had that has died, or left."""

    can_hand_over: bool = False
    """A server that is to leave can give them what nobody else has."""

    keeps_values: bool = False
    """Servers keep some, not only sums."""

    least: int = 1
    """Workers with which it can go on."""

    given_up: set[str] = field(default_factory=set)
    """Names of tensors whose ranks disagree, for which nobody waits any more."""

    def __post_init__(self) -> None:
        self._staying = self.view.size - len(self.gone())

    @property
    def number(self) -> int:
        """Counts from 1."""
        return self.view.number

    @property
    def staying(self) -> int:
        """Number of workers that have neither left nor died."""
        return self._staying

    def take_leave(self) -> int:
        """Counts a worker that leaves in order; the number of those that stay."""
        self._staying -= 1
        return self._staying

    def take_loss(self, lost: Sequence[Seat], *, handed_over: bool = False) -> bool:
        """Whether the epoch goes on without these, who have died or, with servers that have `handed_over` what they
        kept, left; if so, counts them."""
        workers = [seat for seat in lost if seat.is_worker]
        stay = self._staying - len(workers)
        if workers and (not self.can_lose_workers or stay < self.least):
            return False
        if len(workers) < len(lost) and not ((self.can_lose_servers or handed_over) and self.serving()):
            return False
        self._staying = stay
        return True

    def workers(self) -> list[Seat]:
        """All workers, also those that have left."""
        return [seat for seat in self.seats.values() if seat.is_worker]

    def servers(self) -> list[Seat]:
        """All servers."""
        return [seat for seat in self.seats.values() if not seat.is_worker]

    def present(self) -> list[Seat]:
        """Members that are running."""
        return [seat for seat in self.seats.values() if seat.state is SeatState.RUNNING]

    def serving(self) -> list[Seat]:
        """Servers that are running."""
        return [seat for seat in self.servers() if seat.state is SeatState.RUNNING]

    def lost_servers(self) -> list[Seat]:
        """Servers that have left, or are about to, or have died."""
        return [seat for seat in self.servers() if seat.state in _NOT_SERVING]

    def parting_servers(self) -> list[Seat]:
        """The same, and those that were asked to leave: nothing new is placed on them."""
        return [seat for seat in self.servers() if seat.state in _NOT_SERVING or seat.drained]

    def left(self) -> list[Seat]:
        """Workers that have left in order."""
        return [seat for seat in self.workers() if seat.state is SeatState.LEFT]

    def lost(self) -> list[Seat]:
        """Workers that have died."""
        return [seat for seat in self.workers() if seat.state is SeatState.LOST]

    def gone(self) -> set[int]:
        """Member numbers of workers that have left or died."""
        return {seat.member.number for seat in [*self.left(), *self.lost()]}

    def awaited(self) -> list[Seat]:
        """Workers that may come to the next epoch: it has failed under them, or they have said that they will."""
        return [seat for seat in self.workers() if seat.state is SeatState.OVER or seat.returning]

    def holder(self, claim: JoinClaim) -> Seat | None:
        """The running member whose rank `claim` wants."""
        member = claim.member
        for seat in self.present():
            if (seat.member.role, seat.member.rank) == (member.role, member.rank):
                return seat
        return None

    def check_late(self, claim: JoinClaim, now: float) -> None:
        """Raises RefusedError if `claim` wants a running member's rank, or comes while nobody has left."""
        holder, role = self.holder(claim), claim.member.role
        same = [seat for seat in self.seats.values() if seat.member.role is role]
        if holder is None and any(seat.state is not SeatState.RUNNING for seat in same):
            return
        who, since = describe(claim.member), f"epoch {self.number}, which formed {now - self.started:.0f} s ago"
        size = self.view.size
        if role is MemberRole.WORKER and claim.world_size not in (0, size):
            raise RefusedError(f"{who} has world_size={claim.world_size}, but the world has {size} workers in {since}")
        if holder is not None:
            raise RefusedError(f"duplicate rank: {who} wants the rank of {describe(holder.member)} in {since}")
        raise RefusedError(f"{who} is late: all {len(same)} {role.value}s are there in {since}")
