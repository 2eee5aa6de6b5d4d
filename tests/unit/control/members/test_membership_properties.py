"""Whatever members do, in any order: invariants of the membership."""

import contextlib

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from byteps_like.control.members.membership import TooEarlyError
from byteps_like.control.members.past import JobState
from byteps_like.control.members.seats import SeatState
from byteps_like.control.types import EventKind, MemberRole
from byteps_like.errors import BytePSLikeError, MismatchError, RefusedError
from tests.unit.control.members.membership_world import INCARNATION, Job

RANKS = st.integers(-1, 3)


class Members(RuleBasedStateMachine):
    """Workers and servers that join, break, come back, leave and fail at random."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Job()
        self.count = 0
        self.epochs: dict[int, object] = {}
        self.numbers: dict[int, str] = {}

    def _name(self) -> str:
        self.count += 1
        return f"m{self.count}"

    def _pick(self, place: int) -> str | None:
        seats = self.job.membership.seats()
        return seats[place % len(seats)].id if seats else None

    @rule(rank=RANKS, size=st.sampled_from([3, 3, 3, 2]))
    def worker_joins(self, rank: int, size: int) -> None:
        with contextlib.suppress(RefusedError, TooEarlyError):
            self.job.worker(rank, self._name(), world_size=size)

    @rule(rank=RANKS)
    def server_joins(self, rank: int) -> None:
        with contextlib.suppress(RefusedError, TooEarlyError):
            self.job.server(self._name(), rank)

    @rule(place=st.integers(0, 20), action=st.sampled_from(["broken", "watching", "ready", "leave", "report", "beat"]))
    def member_acts(self, place: int, action: str) -> None:
        id = self._pick(place)
        arguments: dict[str, tuple[object, ...]] = {
            "ready": (self.job.membership.number,),
            "leave": (place % 2 == 0,),
            "report": (self.job.membership.number, MismatchError("seen")),
            "beat": (None, {}),
        }
        if id is not None:
            with contextlib.suppress(BytePSLikeError):
                self.job.do({"beat": "heartbeat"}.get(action, action), id, *arguments.get(action, ()))

    @precondition(lambda self: self.job.state is JobState.PREPARING)
    @rule()
    def servers_get_ready(self) -> None:
        epoch = self.job.membership.epoch
        assert epoch is not None
        self.job.get_ready(*(seat.id for seat in epoch.servers() if seat.state is SeatState.RUNNING))

    @precondition(lambda self: self.job.state is JobState.RUNNING)
    @rule(can=st.booleans())
    def values_may_outlive_workers(self, can: bool) -> None:
        assert self.job.membership.epoch is not None
        self.job.membership.epoch.can_lose_workers = can

    @rule(silence=st.sampled_from([0.0, 1.0, 100.0]), back=st.booleans())
    def another_scheduler_goes_on(self, silence: float, back: bool) -> None:
        before, can = self.job.membership, None
        if before.state is JobState.RUNNING and before.epoch is not None:
            can = before.epoch.can_lose_workers
        ids = {seat.id: seat.state for seat in before.seats()}
        self.job.restart(silence=silence)
        after = self.job.membership
        if before.state is JobState.ENDED:
            assert (after.state, after.seats()) == (JobState.FORMING, [])
            self.job, self.epochs, self.numbers = Job(), {}, {}
            return
        if can is not None and after.epoch is not None:
            after.epoch.can_lose_workers = can  # as the declarations say
        assert {seat.id: seat.state for seat in after.seats()} == ids
        assert (after.state, after.number, after.last_member) == (before.state, before.number, before.last_member)
        if back:
            self.job.come_back()

    @rule(seconds=st.sampled_from([0.1, 1.0, 30.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.wait(seconds)

    @invariant()
    def a_world_is_whole_and_told_once(self) -> None:
        for id in self.job.inbox:
            worlds = self.job.worlds(id)
            assert len({world.number for world in worlds}) == len(worlds)
            for world in worlds:
                assert [member.rank for member in world.workers] == list(range(len(world.workers)))
                assert [member.rank for member in world.servers] == list(range(2))
                assert self.epochs.setdefault(world.number, world) == world

    @invariant()
    def a_member_number_names_one_member_for_ever(self) -> None:
        for seat in self.job.membership.seats():
            assert seat.member.number > 0
            assert self.numbers.setdefault(seat.member.number, seat.id) == seat.id

    @invariant()
    def a_world_names_the_incarnation_and_each_member(self) -> None:
        for id in self.job.inbox:
            for world in self.job.worlds(id):
                named = [self.numbers[member.number] for member in (*world.workers, *world.servers)]
                assert id in named
                assert len(set(named)) == len(named)
                assert world.incarnation == INCARNATION

    @invariant()
    def ranks_are_unique_among_the_present(self) -> None:
        running = [seat.member for seat in self.job.membership.seats() if seat.state is SeatState.RUNNING]
        assert len({(member.role, member.rank) for member in running}) == len(running)

    @invariant()
    def a_worker_hears_of_one_end_at_most(self) -> None:
        for id in self.job.inbox:
            assert len(self.job.events(id, EventKind.ENDED)) <= 1
            if any(seat.id == id and seat.member.role is MemberRole.WORKER for seat in self.job.membership.seats()):
                assert len(self.job.events(id, EventKind.FAILED)) <= 1

    @invariant()
    def a_loss_is_told_to_those_who_stay_and_each_once(self) -> None:
        for id in self.job.inbox:
            told = [rank for event in self.job.events(id, EventKind.LOST) for rank in event.ranks]
            assert len(told) <= 3 * len(self.job.worlds(id))
            assert all(event.ranks for event in self.job.events(id, EventKind.LOST))

    @invariant()
    def states_agree(self) -> None:
        membership = self.job.membership
        running = [seat for seat in membership.seats() if seat.state is SeatState.RUNNING]
        assert bool(running) == (membership.state in (JobState.PREPARING, JobState.RUNNING))
        waiting = {seat.id for seat in membership.seats() if seat.state is SeatState.WAITING}
        assert waiting == {seat.id for seat in membership.forming.seats()}
        if membership.state is JobState.FORMING and membership.forming.is_complete():
            assert any(seat.suspected is not None for seat in membership.forming.seats())


TestMembers = Members.TestCase
TestMembers.settings = settings(max_examples=60, stateful_step_count=40)
