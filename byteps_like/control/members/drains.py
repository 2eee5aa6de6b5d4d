"""Members that are asked to leave a running elastic job: who may, and what became of those who were asked. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from byteps_like.control.members.epoch import Epoch
from byteps_like.control.members.seats import Seat, SeatState, describe, describe_all, ranks_text
from byteps_like.control.types import MemberRole
from byteps_like.errors import RefusedError


class DrainState(StrEnum):
    """How a drain stands."""

    FORMING = "forming"  # no world runs that this member could leave: nobody was asked
    BUSY = "busy"  # another server still hands over what it keeps: nobody was asked
    ASKED = "asked"  # it is still there
    LEFT = "left"
    LOST = "lost"  # it has died


@dataclass(frozen=True)
class DrainOrder:
    """Who is to leave."""

    role: MemberRole
    rank: int
    """In the world that runs."""
    number: int = 0
    """Its member number, once that is known; 0: not yet."""
    replace: bool = False
    """Whoever has started it may start another one in its place."""
    member: int = 0
    """Who has the rank, by number, as far as who asks knows; 0: whoever has it."""


@dataclass(frozen=True)
class DrainProgress:
    """What became of an order."""

    state: DrainState
    number: int = 0
    """Names the member in the orders that follow."""
    who: str = ""
    """The member; while BUSY, who is to leave before."""


class Drains:
    """Whom a member number stands for that was given as the answer to an order. Not thread-safe."""

    def __init__(self) -> None:
        self._seats: dict[int, Seat] = {}

    def add(self, seat: Seat) -> None:
        """Was asked to leave."""
        self._seats.setdefault(seat.member.number, seat)

    def follow(self, before: Seat, seat: Seat) -> None:
        """The process of `before` is in the next world by `seat`: it was asked too late to stay out of that."""
        seat.drained, seat.replaced = before.drained, before.replaced
        for number, one in self._seats.items():
            if one is before:
                self._seats[number] = seat

    def find(self, number: int) -> Seat | None:
        """Under which seat that member is, or was last."""
        return self._seats.get(number)


def progress_of(seat: Seat, number: int) -> DrainProgress:
    """Of the order that `number` was the answer to."""
    gone = {SeatState.LEFT: DrainState.LEFT, SeatState.LOST: DrainState.LOST}
    return DrainProgress(gone.get(seat.state, DrainState.ASKED), number, describe(seat.member))


def has_that_rank(epoch: Epoch, order: DrainOrder) -> bool:
    """Whether it is the member that is meant who has the rank."""
    places = [(seat.member.role, seat.member.rank, seat.member.number) for seat in epoch.seats.values()]
    return (order.role, order.rank, order.member) in places


def chosen(epoch: Epoch, order: DrainOrder) -> Seat:
    """Who is meant. Raises RefusedError if there is no such member, or no more."""
    role, seats = order.role.value, epoch.workers() if order.role is MemberRole.WORKER else epoch.servers()
    found = next((seat for seat in seats if seat.member.rank == order.rank), None)
    if found is None:
        there = ranks_text(role, [seat.member.rank for seat in seats]) if seats else f"no {role}s"
        raise RefusedError(f"there is no {role} {order.rank}: world {epoch.number} has {there}", operation="drain")
    if found.state in (SeatState.LEFT, SeatState.LOST):
        how = "has left already" if found.state is SeatState.LEFT else "has died"
        raise RefusedError(f"{describe(found.member)} {how}", operation="drain")
    return found


def check_server(epoch: Epoch, seat: Seat) -> None:
    """Raises RefusedError if others can't take over from this server, with why."""
    if not epoch.view.finishes_sums:
        text = "a server of a job with racks or portable workers can't leave while it runs"
    elif not epoch.can_hand_over:
        text = "servers keep error feedback of codecs (twoway) that nobody else can have: none can leave"
    elif not any(one is not seat and not one.drained for one in epoch.serving()):
        text = f"{describe(seat.member)} is the only server: start another one first"
    else:
        return
    raise RefusedError(text, operation="drain")


def handing_over(epoch: Epoch) -> list[Seat]:
    """Servers that were asked to leave, and are there until others have what they keep: one at a time."""
    return [one for one in epoch.serving() if one.drained]


def check_worker(epoch: Epoch, seat: Seat, waiting: int) -> None:
    """Raises RefusedError if too few workers would be left, those counted who wait to join."""
    running = [one for one in epoch.workers() if one.state is SeatState.RUNNING]
    stay = [one for one in running if one is not seat and not one.drained]
    if len(stay) + waiting >= epoch.least:
        return
    left = describe_all(stay) or "nobody"
    text = f"min_workers={epoch.least}: without {describe(seat.member)} there is {left}; start another worker first"
    raise RefusedError(text, operation="drain")
