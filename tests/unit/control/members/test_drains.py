"""Members that are asked to leave an elastic job: who may, what the others hear, and how that stands."""

from __future__ import annotations

import pytest

from byteps_like.control.members.drains import DrainOrder, DrainProgress, DrainState
from byteps_like.control.members.past import JobState
from byteps_like.control.types import EventKind, MemberRole
from byteps_like.errors import MismatchError, RefusedError
from tests.unit.control.members.test_elastic_membership import ROOM, Elastic

WORKER, SERVER = MemberRole.WORKER, MemberRole.SERVER


def drain(job: Elastic, role: MemberRole, rank: int, number: int = 0, *, replace: bool = False) -> DrainProgress:
    """Asks; what the scheduler answers."""
    try:
        return job.membership.drain(DrainOrder(role, rank, number, replace))
    finally:
        job.deliver()


def running(servers: int, **agreed: str) -> Elastic:
    """Three workers and so many servers."""
    job = Elastic()
    job.servers, job.agreed = servers, {**job.agreed, **agreed}
    job.come("w1", "w2", "w3")
    names = [f"s{place}" for place in range(servers)]
    for name in names:
        job.server(name)
    job.get_ready(*names)
    assert job.state is JobState.RUNNING
    return job


def test_others_take_over_from_a_server_before_it_hears_that_it_may_go() -> None:
    job = running(2)
    found = drain(job, SERVER, 1)
    assert found.state is DrainState.ASKED and found.who.startswith("server 1 (host ")
    (lost,) = job.events("w1", EventKind.LOST)
    assert lost.servers == (1,) and "leaves, as it was asked to" in lost.text
    (asked,) = job.events("s1", EventKind.DRAIN)
    assert not asked.replace and job.events("s1", EventKind.LOST) == []
    assert job.events("s0", EventKind.DRAIN) == []
    assert drain(job, SERVER, 1, found.number).state is DrainState.ASKED
    job.do("leave", "s1", False)
    assert job.state is JobState.RUNNING and len(job.events("w1", EventKind.LOST)) == 1
    assert drain(job, SERVER, 1, found.number).state is DrainState.LEFT


def test_a_worker_stays_until_it_leaves_by_itself() -> None:
    job = running(0)
    first, *others = job.names("w1")
    found = drain(job, WORKER, 0, replace=True)
    (asked,) = job.events(first, EventKind.DRAIN)
    assert asked.replace
    job.wait(1000)
    assert drain(job, WORKER, 0, found.number).state is DrainState.ASKED
    assert len(job.events(first, EventKind.DRAIN)) == 1
    job.do("leave", first, False)
    job.again(*others)
    assert job.names(f"w{int(others[0][1:]) + 100}") == [f"w{int(id[1:]) + 100}" for id in others]
    assert drain(job, WORKER, 0, found.number).state is DrainState.LEFT


@pytest.mark.parametrize(
    ("role", "servers", "rank", "text"),
    [
        (SERVER, 2, 2, r"there is no server 2: world 1 has servers 0-1"),
        (SERVER, 0, 0, r"there is no server 0: world 1 has no servers"),
        (WORKER, 0, 3, r"there is no worker 3: world 1 has workers 0-2"),
        (SERVER, 1, 0, r"server 0 \(host host0, pid 100\) is the only server: start another one first"),
    ],
)
def test_who_is_not_there_or_can_not_be_done_without(role: MemberRole, servers: int, rank: int, text: str) -> None:
    job = running(servers)
    with pytest.raises(RefusedError, match=text):
        drain(job, role, rank)
    assert not any(job.events(id, EventKind.DRAIN) for id in job.inbox)


def test_who_has_another_rank_by_now_is_not_taken_for_who_had_it() -> None:
    job = running(0)
    assert job.membership.epoch is not None
    numbers = [seat.member.number for seat in job.membership.epoch.workers()]
    for rank, member in [(0, numbers[1]), (3, numbers[0])]:
        assert job.membership.drain(DrainOrder(WORKER, rank, member=member)).state is DrainState.FORMING
    job.deliver()
    assert not any(job.events(id, EventKind.DRAIN) for id in job.inbox)
    assert job.membership.drain(DrainOrder(WORKER, 0, member=numbers[0])).state is DrainState.ASKED


def test_two_at_a_time_are_not_more_than_the_job_can_do_without() -> None:
    job = running(2)
    drain(job, WORKER, 2)
    with pytest.raises(RefusedError, match=r"min_workers=2: without worker 1 \(.*\) there is worker 0 \("):
        drain(job, WORKER, 1)
    drain(job, SERVER, 0)
    with pytest.raises(RefusedError, match="is the only server"):
        drain(job, SERVER, 1)


def test_whoever_waits_to_join_counts() -> None:
    job = running(0, max_workers="3")
    job.come("w7")
    drain(job, WORKER, 0)
    drain(job, WORKER, 1)
    with pytest.raises(RefusedError, match="min_workers=2"):
        drain(job, WORKER, 2)


def test_who_is_gone_is_not_asked() -> None:
    job = running(3)
    job.die("s0")
    with pytest.raises(RefusedError, match=r"server 0 .* has died"):
        drain(job, SERVER, 0)
    job.do("leave", "s1", False)
    with pytest.raises(RefusedError, match=r"server 2 .* has left already"):
        drain(job, SERVER, 2)


def hands_over(servers: int) -> Elastic:
    """Of whose values there are no copies."""
    job = running(servers)
    assert job.membership.epoch is not None
    job.membership.epoch.can_lose_servers, job.membership.epoch.keeps_values = False, True
    return job


def test_values_that_nobody_else_has_are_handed_over_first() -> None:
    job = hands_over(3)
    found = drain(job, SERVER, 2, replace=True)
    assert found.state is DrainState.ASKED and job.events("w1", EventKind.LOST) == []
    (asked,) = job.events("s1", EventKind.DRAIN)
    assert asked.hand_over and asked.replace
    busy = drain(job, SERVER, 1)
    assert busy == DrainProgress(DrainState.BUSY, who=found.who) and job.events("s2", EventKind.DRAIN) == []
    job.membership.leave("s1", returning=False, now=job.now, handed_over=True)
    job.deliver()
    (lost,) = job.events("w1", EventKind.LOST)
    assert lost.servers == (2,) and job.state is JobState.RUNNING
    assert drain(job, SERVER, 2, found.number).state is DrainState.LEFT
    assert drain(job, SERVER, 1).state is DrainState.ASKED


def test_error_feedback_can_not_be_handed_over() -> None:
    job = hands_over(2)
    assert job.membership.epoch is not None
    job.membership.epoch.can_hand_over = False
    with pytest.raises(RefusedError, match="error feedback of codecs"):
        drain(job, SERVER, 0)


def test_the_next_scheduler_asks_for_them_again() -> None:
    job = hands_over(2)
    drain(job, SERVER, 1)
    job.restart()
    job.come_back()
    assert job.membership.epoch is not None
    job.membership.epoch.can_lose_servers = False  # as the declarations say
    *_, asked = job.events("s1", EventKind.DRAIN)
    assert asked.hand_over


def test_what_servers_keep_is_handed_over_though_others_have_copies() -> None:
    """Which may not be whole yet."""
    job = hands_over(2)
    assert job.membership.epoch is not None
    job.membership.epoch.can_lose_servers = True
    drain(job, SERVER, 1)
    (asked,) = job.events("s1", EventKind.DRAIN)
    assert asked.hand_over and job.events("w1", EventKind.LOST) == []


def test_a_world_that_ends_meanwhile_takes_with_it_what_there_was_to_hand_over() -> None:
    job = hands_over(2)
    drain(job, SERVER, 1)
    job.report(job.names("w1")[0], MismatchError("seen"))
    *_, asked = job.events("s1", EventKind.DRAIN)
    assert not asked.hand_over, "it may leave now"
    job.do("leave", "s1", False)
    job.again(*job.names("w1"))
    job.get_ready("s0")
    assert job.state is JobState.RUNNING and len(job.worlds("s0")[-1].servers) == 1


def test_a_world_that_ends_in_order_takes_along_what_is_still_to_be_handed_over() -> None:
    job = hands_over(2)
    drain(job, SERVER, 1)
    job.again(*job.names("w1"))
    assert not [one for one in job.events("s1", EventKind.DRAIN) if not one.hand_over], "nobody else has it yet"
    for server in ("s0", "s1"):
        job.do("ready", server, 2)
    assert job.state is JobState.RUNNING and len(job.worlds("s0")[-1].servers) == 2
    first, again = job.events("s1", EventKind.DRAIN)
    assert first.hand_over and again.hand_over, "it goes on with that"
    job.membership.leave("s1", returning=False, now=job.now, handed_over=True)
    assert job.state is JobState.RUNNING


def test_the_last_server_stays_for_the_next_world() -> None:
    job = hands_over(2)
    assert job.membership.epoch is not None
    job.membership.epoch.can_lose_servers = True
    drain(job, SERVER, 1)
    job.die("s0")
    assert job.state is JobState.RUNNING
    job.report(job.names("w1")[0], MismatchError("seen"))
    job.again(*job.names("w1"))
    job.get_ready("s1")
    assert job.state is JobState.RUNNING and len(job.events("s1", EventKind.DRAIN)) == 1


@pytest.mark.parametrize("how", ["dies", "leaves"])
def test_who_goes_before_that_takes_them_along(how: str) -> None:
    job = hands_over(2)
    drain(job, SERVER, 1)
    if how == "dies":
        job.die("s1")
    else:
        job.do("leave", "s1", False)
    assert "server 1 (" in str(job.failure("w1"))


def test_nobody_leaves_a_job_that_is_not_elastic() -> None:
    job = Elastic()
    job.agreed = {"partition_bytes": "4096"}
    assert drain(job, WORKER, 0).state is DrainState.FORMING, "nothing is known of it"
    for rank in range(3):
        job.worker(rank)
        if rank < 2:
            with pytest.raises(RefusedError, match="job 'job' is not elastic"):
                drain(job, WORKER, 0)
    with pytest.raises(RefusedError, match="job 'job' is not elastic"):
        drain(job, WORKER, 0)


def test_nobody_is_asked_while_a_world_forms() -> None:
    job = Elastic()
    job.agreed = ROOM
    job.come("w1", "w2")
    assert drain(job, WORKER, 0) == DrainProgress(DrainState.FORMING)
    job.come("w3")
    assert drain(job, WORKER, 0).state is DrainState.ASKED


@pytest.mark.parametrize("returning", [False, True])
def test_who_is_left_when_all_workers_have_gone_is_not_asked(returning: bool) -> None:
    job = running(1)
    for id in job.names("w1"):
        job.do("leave", id, returning)
    if returning:
        assert drain(job, SERVER, 0) == DrainProgress(DrainState.FORMING)
    else:
        with pytest.raises(RefusedError, match="all workers of job 'job' have left"):
            drain(job, SERVER, 0)


def test_who_has_died_instead_is_told_apart() -> None:
    job = running(2)
    worker, server = drain(job, WORKER, 0), drain(job, SERVER, 1)
    job.die(job.names("w1")[0], "s1")
    assert drain(job, WORKER, 0, worker.number).state is DrainState.LOST
    assert drain(job, SERVER, 1, server.number).state is DrainState.LOST


def test_a_worker_that_hears_of_it_in_the_next_world_leaves_that() -> None:
    job = running(0)
    order = job.names("w1")
    found = drain(job, WORKER, 1)
    job.again(*order)
    again = f"w{int(order[1][1:]) + 100}"
    assert len(job.events(again, EventKind.DRAIN)) == 1
    assert drain(job, WORKER, 1, found.number).state is DrainState.ASKED
    job.do("leave", again, False)
    assert drain(job, WORKER, 1, found.number).state is DrainState.LEFT


def test_another_scheduler_goes_on_with_it() -> None:
    job = running(2)
    worker, server = drain(job, WORKER, 0, replace=True), drain(job, SERVER, 1)
    job.restart()
    job.come_back()
    first = job.names("w1")[0]
    for id in (first, "s1"):
        assert [event.replace for event in job.events(id, EventKind.DRAIN)] == [id == first] * 2
    assert drain(job, SERVER, 1, server.number).state is DrainState.ASKED
    assert drain(job, WORKER, 0, worker.number).state is DrainState.ASKED
    job.do("leave", "s1", False)
    assert job.state is JobState.RUNNING
    job.restart()
    assert drain(job, SERVER, 1, server.number).state is DrainState.LEFT
    with pytest.raises(RefusedError, match="there has been no member 99"):
        drain(job, SERVER, 1, 99)
