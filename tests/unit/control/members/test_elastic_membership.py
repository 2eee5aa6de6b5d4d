"""Elastic worlds: of whom the next one is made, who waits, and when it is too late. On a clock that stands still."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from byteps_like.control.members.membership import TooEarlyError
from byteps_like.control.members.past import JobState
from byteps_like.control.members.seats import SeatState
from byteps_like.control.types import EventKind, View
from byteps_like.errors import BytePSLikeError, DeadlineError, MismatchError, RefusedError, TooFewWorkersError
from tests.unit.control.members.membership_world import Job

AGREED = {"partition_bytes": "4096", "elastic": "True", "min_workers": "2", "max_workers": "4"}
ROOM = {**AGREED, "max_workers": "0"}


class Elastic(Job):
    """A job of three workers, 2 at least and 4 at most, without servers unless somebody says otherwise."""

    agreed = AGREED
    servers = 0

    def worker(self, rank: int, id: str = "", **changes: object) -> str:
        """A worker joins; its id."""
        return super().worker(rank, id, **{"settings": self.agreed, "num_servers": self.servers} | changes)

    def come(self, *ids: str) -> None:
        """Workers of these names join, of any rank."""
        for id in ids:
            self.worker(-1, id)

    def again(self, *ids: str) -> None:
        """Members of the newest epoch leave, and join the next one: w1 as w101."""
        for id in ids:
            self.do("leave", id, True)
        for id in ids:
            self.worker(-1, f"w{int(id[1:]) + 100}", follows=id)

    def die(self, *ids: str) -> None:
        """The processes of these members are gone."""
        for id in ids:
            self.do("broken", id)
        self.wait(1.0)

    def names(self, id: str) -> list[str]:
        """The world of `id` by the names of its workers, in order."""
        ids = {seat.member.number: seat.id for seat in self.membership.epoch.seats.values()}  # type: ignore[union-attr]
        return [ids[member.number] for member in self.worlds(id)[-1].workers]


@pytest.fixture
def job() -> Elastic:
    return Elastic()


def test_the_first_world_has_the_size_that_was_asked_for(job: Elastic) -> None:
    job.come("w1", "w2")
    assert job.state is JobState.FORMING
    job.come("w3")
    assert [len(job.names(id)) for id in ("w1", "w2", "w3")] == [3, 3, 3]


def test_the_first_world_is_smaller_when_the_others_do_not_come(job: Elastic) -> None:
    job.come("w1")
    job.wait(20)
    job.come("w2")
    job.wait(29)
    assert job.state is JobState.FORMING, "30 s after the last one came"
    job.wait(2)
    assert job.names("w1") == ["w2", "w1"] or job.names("w1") == ["w1", "w2"]


def test_too_few_are_told_so(job: Elastic) -> None:
    job.come("w1")
    job.wait(61)
    error = job.failure("w1")
    assert isinstance(error, TooFewWorkersError)
    assert str(error) == "min_workers=2, but only 1 came within 60.0 s"


def test_missing_servers_are_not_missing_workers(job: Elastic) -> None:
    job.servers = 1
    job.come("w1", "w2", "w3")
    job.wait(61)
    assert isinstance(job.failure("w1"), DeadlineError)
    assert "1 of 1 server" in str(job.failure("w1"))


def test_survivors_keep_their_order_and_go_on_at_once(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    order = job.names("w1")
    job.die(order[0])
    job.again(order[2], order[1])
    assert job.names(f"w{int(order[1][1:]) + 100}") == [f"w{int(id[1:]) + 100}" for id in order[1:]]


def test_a_survivor_that_is_still_there_is_waited_for(job: Elastic) -> None:
    job.come("w1", "w2", "w3", "w4")
    first, *others = job.names("w1")
    job.report(first, MismatchError("seen"))
    job.again(*others[:2])
    assert job.state is JobState.FORMING, "the fourth has not even left"
    job.do("leave", first, False)
    assert job.state is JobState.RUNNING, "it doesn't come back"


@pytest.mark.parametrize("how", ["stays away", "dies"])
def test_who_said_that_it_comes_back_is_waited_for_but_not_for_ever(job: Elastic, how: str) -> None:
    job.come("w1", "w2", "w3")
    first, *others = job.names("w1")
    job.report(first, MismatchError("seen"))
    if how == "dies":
        job.die(first)
    else:
        job.do("leave", first, True)
    job.again(*others)
    assert (job.state is JobState.RUNNING) == (how == "dies")
    job.wait(2.5)
    job.come("w9")
    assert (job.state is JobState.RUNNING) == (how == "dies")
    job.wait(1)
    assert job.state is JobState.RUNNING, "it has died on its way, which nobody could see; others come and go meanwhile"
    assert len(job.names("w101" if first != "w1" else "w102")) == (2 if how == "dies" else 3)


def test_who_comes_back_too_late_is_one_more(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    first, *others = job.names("w1")
    job.report(first, MismatchError("seen"))
    job.do("leave", first, True)
    job.again(*others)
    job.restart()
    job.come_back()
    job.wait(7.5)
    assert job.state is JobState.FORMING, (
        "another scheduler gives it as long once more, after it has heard of the others"
    )
    job.wait(1)
    job.worker(-1, "w9", follows=first)
    assert len(job.events(f"w{int(others[0][1:]) + 100}", EventKind.JOINERS)) == 1
    job.again(*(f"w{int(id[1:]) + 100}" for id in others))
    assert job.names("w9")[-1] == "w9"


def test_who_leaves_while_it_waits_may_come_back_once_more(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    first, second, third = job.names("w1")
    job.report(first, MismatchError("seen"))
    job.again(first)
    job.do("leave", f"w{int(first[1:]) + 100}", True)
    job.again(second, third)
    assert job.state is JobState.FORMING
    job.worker(-1, "w9", follows=first)
    assert job.names("w9")[0] == "w9"


def test_whoever_comes_while_the_job_runs_waits_and_the_others_hear_of_it(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    job.wait(100)
    job.come("w7")
    (event,) = job.events("w1", EventKind.JOINERS)
    assert "(host host1, pid 107) would join" in event.text
    job.wait(1000)
    assert job.events("w7", EventKind.FAILED) == [], "it waits for as long as the others run"
    order = job.names("w1")
    job.again(*order)
    assert job.names("w101") == [*(f"w{int(id[1:]) + 100}" for id in order), "w7"]


def test_beyond_the_most_they_are_spares_of_which_nobody_hears(job: Elastic) -> None:
    job.come("w1", "w2", "w3", "w4", "w5")
    assert len(job.names("w1")) == 3, "formed as soon as there were as many as asked for"
    job.again(*job.names("w1"))
    assert len(job.names("w4")) == 4, "the longest wait comes in"
    assert job.worlds("w5") == []
    assert not any(job.events(f"w{number}", EventKind.JOINERS) for number in (101, 102, 103, 4))
    job.die("w102")
    job.again("w4", "w101", "w103")
    assert job.names("w5") == [*(f"w{n}" for n in (101, 103)), "w104", "w5"] or len(job.names("w5")) == 4


def test_a_joiner_must_have_the_settings_of_those_who_run(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    with pytest.raises(RefusedError, match="has min_workers=1, but epoch 1 has min_workers=2"):
        job.worker(-1, "w7", settings={**AGREED, "min_workers": "1"})


def test_joiners_of_another_size_are_refused_while_the_job_runs(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    with pytest.raises(RefusedError, match="has world_size=5, but epoch 1 has world_size=3"):
        job.worker(-1, "w7", world_size=5)


def test_ranks_that_were_asked_for_are_an_order_at_first(job: Elastic) -> None:
    for rank in (2, 0, 1):
        job.worker(rank)
    assert job.names("w1") == ["w0", "w1", "w2"]
    job.die("w0")
    job.worker(0, "w9")  # what the launcher starts in its place
    job.again("w1", "w2")
    assert job.names("w9") == ["w101", "w102", "w9"]


def test_servers_stay(job: Elastic) -> None:
    job.servers = 2
    job.come("w1", "w2", "w3")
    for id in ("s0", "s1"):
        job.server(id)
    job.get_ready("s0", "s1")
    order = job.names("w1")
    job.die(order[1])
    job.again(order[0], order[2])
    assert job.state is JobState.PREPARING
    job.get_ready("s0", "s1")
    assert len(job.names(f"w{int(order[0][1:]) + 100}")) == 2
    assert [len(view.workers) for view in job.worlds("s0")] == [3, 2]


def test_the_job_ends_when_all_leave_though_spares_wait(job: Elastic) -> None:
    job.agreed = ROOM
    job.come("w1", "w2", "w3", "w4", "w5")
    for id in job.names("w1"):
        job.do("leave", id, False)
    job.wait(2)
    assert job.state is JobState.ENDED
    assert len(job.events("w4", EventKind.ENDED)) == len(job.events("w5", EventKind.ENDED)) == 1


def test_a_new_process_goes_on_after_all_have_died(job: Elastic) -> None:
    job.come("w1", "w2", "w3")
    job.die("w1", "w2", "w3")
    job.come("w4", "w5")
    job.wait(31)
    assert len(job.names("w4")) == 2


def test_a_loss_that_an_epoch_outlives_makes_room_for_who_waits(job: Elastic) -> None:
    job.agreed = ROOM
    job.come("w1", "w2", "w3", "w4")
    assert job.membership.epoch is not None
    job.membership.epoch.can_lose_workers = True
    assert job.events("w1", EventKind.JOINERS) == []
    job.die("w2")
    assert job.state is JobState.RUNNING
    assert len(job.events("w1", EventKind.JOINERS)) == 1
    job.die("w3")
    assert isinstance(job.failure("w1"), Exception), "fewer than min_workers can't go on"


def test_who_has_no_room_hears_that_a_world_runs_without_it(job: Elastic) -> None:
    job.agreed = {**ROOM, "max_workers": "3"}
    job.come("w1", "w2", "w3")
    job.come("w4")
    assert len(job.events("w4", EventKind.LEFT_OUT)) == 1
    job.again("w1", "w2", "w3")
    assert job.state is JobState.RUNNING and len(job.names("w101")) == 3
    assert len(job.events("w4", EventKind.LEFT_OUT)) == 2, "of the next world, too"
    assert not any(job.events(f"w10{number}", EventKind.LEFT_OUT) for number in (1, 2, 3))


def test_whom_the_next_world_has_room_for_hears_nothing(job: Elastic) -> None:
    job.come("w1", "w2", "w3", "w4")
    assert not job.events("w4", EventKind.LEFT_OUT) and job.events("w1", EventKind.JOINERS)


@pytest.mark.parametrize("moment", ["running", "over", "back"])
def test_another_scheduler_knows_whom_to_wait_for(job: Elastic, moment: str) -> None:
    job.come("w1", "w2", "w3")
    order = job.names("w1")
    job.come("w8")
    if moment != "running":
        job.report(order[0], MismatchError("seen"))
    if moment == "back":
        job.again(order[1])
    job.restart()
    job.come_back()
    rest = [id for id in order if moment != "back" or id != order[1]]
    job.again(*rest)
    back = [f"w{int(id[1:]) + 100}" for id in order]
    assert job.names(back[0]) == [*back, "w8"]
    assert job.worlds("w8")[-1].number == 2


class ElasticMembers(RuleBasedStateMachine):
    """Workers of an elastic job that come, die, come back and go at random."""

    def __init__(self) -> None:
        super().__init__()
        self.job = Elastic()
        self.count = 0
        self.views: dict[int, View] = {}
        self.follows: dict[str, str] = {}
        self.names: dict[int, str] = {}
        """Of members, by number."""

    def _pick(self, place: int, *states: SeatState) -> str | None:
        seats = [seat for seat in self.job.membership.seats() if not states or seat.state in states]
        return seats[place % len(seats)].id if seats else None

    def _join(self, follows: str = "") -> None:
        self.count += 1
        self.follows[f"w{self.count}"] = follows
        try:
            self.job.worker(-1, f"w{self.count}", follows=follows)
            self.names[self.job.membership.last_member] = f"w{self.count}"
        except TooEarlyError:
            pass
        except RefusedError as refusal:
            assert "has ended" in str(refusal), "nobody is late, or too many"

    @rule()
    def somebody_joins(self) -> None:
        self._join()

    @rule(place=st.integers(0, 20), comes=st.booleans())
    def somebody_comes_back(self, place: int, comes: bool) -> None:
        id = self._pick(place, SeatState.RUNNING, SeatState.OVER)
        if id is not None:
            self.job.do("leave", id, True)
            if comes:
                self._join(id)

    @rule(place=st.integers(0, 20), action=st.sampled_from(["broken", "broken", "watching", "leave", "report"]))
    def somebody_acts(self, place: int, action: str) -> None:
        id = self._pick(place)
        said = (self.job.membership.number, MismatchError("seen"))
        arguments = {"leave": (False,), "report": said}.get(action, ())
        if id is not None:
            with contextlib.suppress(BytePSLikeError):
                self.job.do(action, id, *arguments)

    @rule(seconds=st.sampled_from([0.1, 1.0, 40.0, 100.0]))
    def time_passes(self, seconds: float) -> None:
        self.job.wait(seconds)

    @rule()
    def another_scheduler_goes_on(self) -> None:
        before = self.job.membership
        self.job.restart()
        if before.state is JobState.ENDED:
            self.job, self.views, self.follows, self.names = Elastic(), {}, {}, {}
            return
        self.job.come_back()
        assert self.job.membership.number >= before.number

    @invariant()
    def worlds_are_within_their_limits_and_told_once(self) -> None:
        for id in self.job.inbox:
            worlds = self.job.worlds(id)
            assert len({world.number for world in worlds}) == len(worlds)
            for world in worlds:
                assert 2 <= world.size <= 4
                assert [member.rank for member in world.workers] == list(range(world.size))
                assert self.views.setdefault(world.number, world) == world

    @invariant()
    def survivors_keep_their_order_before_all_others(self) -> None:
        epoch = self.job.membership.epoch
        if epoch is None or self.views.get(epoch.number - 1) is None:
            return
        old = {self.names[member.number]: member.rank for member in self.views[epoch.number - 1].workers}
        before = [old.get(self.follows[self.names[member.number]]) for member in epoch.view.workers]
        known = [rank for rank in before if rank is not None]
        assert known == sorted(set(known))
        assert before == [*known, *([None] * (len(before) - len(known)))]

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        membership = self.job.membership
        waiting = [seat for seat in membership.seats() if seat.state is SeatState.WAITING]
        assert {seat.id for seat in waiting} == {seat.id for seat in membership.forming.seats()}
        if membership.state is JobState.FORMING:
            assert all(seat.deadline is not None for seat in waiting)
            if membership.forming.is_complete():
                assert any(seat.suspected is not None for seat in waiting)
        else:
            assert all(seat.deadline is None for seat in waiting), "for as long as the others run"


TestElasticMembers = ElasticMembers.TestCase
TestElasticMembers.settings = settings(max_examples=80, stateful_step_count=40)


def test_servers_come_while_others_run(job: Elastic) -> None:
    """One that takes the place of one that died, whatever rank it was told, and one more."""
    job.servers = 2
    job.server("s1", 0)
    job.server("s2", 1)
    job.come("w1", "w2", "w3")
    job.do("ready", "s1", 1)
    job.do("ready", "s2", 1)
    assert job.state is JobState.RUNNING
    job.die("s1")
    job.again(*job.names("w1"))
    job.do("ready", "s2", 2)
    assert job.state is JobState.RUNNING and len(job.worlds("w101")[-1].servers) == 1
    job.server("s3", 0)
    assert job.events("w101", EventKind.JOINERS), "those who run hear of it"
    job.server("s4", 1)
    job.server("s5")
    job.again(*job.names("w101"))
    for server in ("s2", "s3", "s4", "s5"):
        job.do("ready", server, 3)
    assert job.state is JobState.RUNNING
    numbers = [one.number for one in job.worlds("w201")[-1].servers]
    assert len(numbers) == 4 and numbers[0] == min(numbers), "who was there comes first"


def test_a_job_without_servers_takes_none(job: Elastic) -> None:
    job.servers = 0
    job.come("w1", "w2", "w3")
    assert job.state is JobState.RUNNING
    with pytest.raises(RefusedError, match="0 servers"):
        job.server("s1")


@pytest.fixture
def served() -> Elastic:
    """Three workers and two servers that run."""
    job = Elastic()
    job.servers = 2
    job.server("s1")
    job.server("s2")
    job.come("w1", "w2", "w3")
    job.do("ready", "s1", 1)
    job.do("ready", "s2", 1)
    return job


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_all_hear_which_server_is_gone_and_go_on(served: Elastic, how: str) -> None:
    served.do("leave", "s2", False) if how == "leaves" else served.die("s2")
    assert served.state is JobState.RUNNING
    for id in ("w1", "w2", "w3", "s1"):
        (lost,) = served.events(id, EventKind.LOST)
        assert lost.servers == (1,) and lost.ranks == ()
        assert "server 1 (" in lost.text


def test_with_the_last_server_the_epoch_ends(served: Elastic) -> None:
    served.die("s2")
    served.die("s1")
    assert "server 0 (" in str(served.failure("w1")) and served.state is JobState.FORMING


def test_what_only_one_server_has_is_lost_with_it(served: Elastic) -> None:
    assert served.membership.epoch is not None
    served.membership.epoch.can_lose_servers = False  # tensors are kept
    served.die("s2")
    assert "server 1 (" in str(served.failure("w1"))


def test_servers_that_are_left_get_the_first_ranks(served: Elastic) -> None:
    served.die("s1")
    served.again("w1", "w2", "w3")
    served.do("ready", "s2", 2)
    assert [server.rank for server in served.worlds("w101")[-1].servers] == [0]
    assert served.state is JobState.RUNNING
