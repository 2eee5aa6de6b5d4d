"""The membership's rules, one by one, on a clock that stands still."""

import pytest

from byteps_like.control.members.forming import Terms
from byteps_like.control.members.membership import DIAGNOSIS_SECONDS, TooEarlyError
from byteps_like.control.members.past import JobState
from byteps_like.control.types import EventKind, MemberRole
from byteps_like.errors import DeadlineError, MismatchError, PeerLostError, RefusedError, StalledError
from tests.unit.control.members.membership_world import Job, claim


@pytest.fixture
def job() -> Job:
    return Job()


def test_workers_hear_of_the_world_when_all_servers_are_ready(job: Job) -> None:
    for rank in range(3):
        job.worker(rank)
    job.server("s0")
    assert job.state is JobState.FORMING
    job.server("s1")
    assert len(job.worlds("s0")) == 1
    assert job.worlds("w0") == []
    job.get_ready("s0")
    assert job.state is JobState.PREPARING
    job.get_ready("s1")
    (world,) = job.worlds("w2")
    assert [member.rank for member in world.workers] == [0, 1, 2]
    assert [member.rank for member in world.servers] == [0, 1]
    assert (world.number, world.settings) == (1, {"partition_bytes": "4096"})


def test_members_without_a_rank_are_given_free_ones_host_by_host(job: Job) -> None:
    for id in ("w1", "w2", "w3"):  # hosts 1, 0, 1
        job.worker(-1 if id != "w2" else 1, id)
    job.server("s0")
    job.server("s1")
    job.get_ready("s0", "s1")
    (world,) = job.worlds("w1")
    assert [member.pid for member in world.workers] == [101, 102, 103]


def _refusal(job: Job, id: str) -> str:
    (event,) = job.events(id, EventKind.FAILED)
    assert isinstance(event.error, RefusedError)
    return event.text


def test_a_worker_that_cannot_start_is_named_to_those_who_wait_and_to_those_who_come(job: Job) -> None:
    job.worker(0)
    job.server("s0")
    job.decline(1, "unknown setting")
    assert _refusal(job, "w0") == "worker 1 (host host1, pid 101) can't start: unknown setting"
    assert job.events("s0", EventKind.FAILED) == [], "servers wait for the next try"
    with pytest.raises(RefusedError, match=r"worker 1 .* can't start: unknown setting"):
        job.worker(2)


@pytest.mark.parametrize("first", [0, 1])
def test_after_a_worker_that_could_not_start_all_may_try_again(job: Job, first: int) -> None:
    job.worker(0)
    job.decline(1, "unknown setting")
    order = [first, *(rank for rank in range(3) if rank != first)]
    for rank in order:
        job.worker(rank, f"w{10 + rank}")
    for id in ("s0", "s1"):
        job.server(id)
    job.get_ready("s0", "s1")
    assert len(job.worlds("w12")) == 1


def test_a_server_that_cannot_start_is_named_to_workers(job: Job) -> None:
    job.worker(0)
    job.server("s0")
    job.decline(-1, "the port is taken", MemberRole.SERVER)
    assert "server (host" in _refusal(job, "w0") and "can't start: the port is taken" in _refusal(job, "w0")
    assert job.events("s0", EventKind.FAILED) == []
    with pytest.raises(RefusedError, match="can't start: the port is taken"):
        job.worker(1)
    job.server("s1")  # started again
    for rank in (2, 1, 0):
        job.worker(rank, f"w{10 + rank}")
    job.get_ready("s0", "s1")
    assert len(job.worlds("w12")) == 1


def test_a_server_too_many_that_cannot_start_is_no_matter(job: Job) -> None:
    job.worker(0)
    job.server("s0")
    job.server("s1")
    job.decline(-1, "the port is taken", MemberRole.SERVER)
    job.worker(1)
    assert job.events("w0", EventKind.FAILED) == []


def test_a_running_world_does_not_care_who_cannot_start(job: Job) -> None:
    job.form()
    job.decline(1, "unknown setting")
    assert job.events("w0", EventKind.FAILED) == []


@pytest.mark.parametrize(
    ("rank", "id", "changes", "message"),
    [
        (0, "x9", {}, r"duplicate rank: worker 0 \(.*109\) wants the rank of worker 0 \(host host0, pid 100\)"),
        (1, "x9", {"world_size": 4}, r"worker 1 .* has world_size=4, but worker 0 \(.*100\) has world_size=3"),
        (1, "x9", {"num_servers": 1}, "has num_servers=1, but worker 0 .* has num_servers=2"),
        (3, "x9", {}, "worker 3 .* is out of range: this job has 3 workers"),
        (1, "x9", {"settings": {"partition_bytes": "64"}}, "has partition_bytes=64, but worker 0 .*=4096"),
    ],
)  # fmt: skip
def test_refused_while_forming(job: Job, rank: int, id: str, changes: dict[str, object], message: str) -> None:
    job.worker(0)
    with pytest.raises(RefusedError, match=message):
        job.worker(rank, id, **changes)
    (warning,) = job.events("w0", EventKind.WARNING)
    assert "(host host1, pid 109)" in warning.text
    job.wait(60)
    assert "pid 109" in str(job.failure("w0")), "those who waited hear at last who was refused"


def test_the_schedulers_own_terms_count_most() -> None:
    job = Job(Terms(world_size=2, num_servers=0, settings={"partition_bytes": "8"}, source="the scheduler (pid 1)"))
    with pytest.raises(RefusedError, match=r"world_size=3, but the scheduler \(pid 1\) has world_size=2"):
        job.worker(0)
    with pytest.raises(RefusedError, match=r"partition_bytes=4096, but the scheduler \(pid 1\)"):
        job.worker(0, world_size=2, num_servers=0)
    with pytest.raises(RefusedError, match="one too many: this job has 0 servers"):
        job.server("s0")


def test_servers_beyond_the_number_that_a_worker_names_are_dismissed(job: Job) -> None:
    for id in ("s0", "s1", "s2"):
        job.server(id)
    job.worker(0)
    assert isinstance(job.failure("s2"), RefusedError)
    assert job.events("s1", EventKind.FAILED) == []


@pytest.mark.parametrize(
    ("rank", "changes", "message"),
    [
        (0, {}, "duplicate rank: worker 0 .* wants the rank of worker 0 .* in epoch 1"),
        (-1, {}, "a worker .* is late: all 3 workers are there in epoch 1, which formed 7 s ago"),
        (3, {"world_size": 4}, "has world_size=4, but the world has 3 workers in epoch 1"),
    ],
)
def test_refused_while_running(job: Job, rank: int, changes: dict[str, object], message: str) -> None:
    job.form()
    job.wait(7)
    with pytest.raises(RefusedError, match=message):
        job.worker(rank, "x9", **changes)
    assert job.events("w0", EventKind.FAILED) == []


def test_a_member_number_is_never_used_twice_and_outlives_epochs(job: Job) -> None:
    job.form()
    (first,) = job.worlds("w0")
    job.report("w1", MismatchError("seen"))
    for id in ("w0", "w1", "w2"):
        job.do("leave", id, False)
    for rank in range(3):
        job.worker(rank, f"again{rank}")
    job.get_ready("s0", "s1")
    (second,) = job.worlds("again0")
    assert {member.number for member in first.workers}.isdisjoint(member.number for member in second.workers)
    assert [member.number for member in first.servers] == [member.number for member in second.servers]
    assert job.membership.join(claim(MemberRole.WORKER, 0, "again0"), job.now).member == second.workers[0]


def test_everybody_who_waits_hears_who_is_missing(job: Job) -> None:
    job.worker(0)
    job.wait(10)
    job.worker(2)
    job.server("s0")
    job.wait(49.9)
    assert job.events("w0", EventKind.FAILED) == []
    job.wait(0.2)
    for id in ("w0", "w2", "s0"):
        assert isinstance(job.failure(id), DeadlineError)
        assert "missing: worker 1 of 3; 1 of 2 servers" in str(job.failure(id))


def test_a_lost_worker_fails_the_epoch_and_is_named_to_all(job: Job) -> None:
    job.form()
    job.do("broken", "w1")
    job.wait(0.69)
    assert job.events("w0", EventKind.FAILED) == []
    job.wait(0.02)
    for id in ("w0", "w2", "s0", "s1"):
        assert isinstance(job.failure(id), PeerLostError)
        assert "worker 1 (host host1, pid 101) died" in str(job.failure(id))
        assert job.failure(id).peer == "worker 1"
    with pytest.raises(PeerLostError):
        job.membership.running("w0")


def go_on_without_the_lost(job: Job) -> None:
    """From here on the epoch can lose workers."""
    assert job.membership.epoch is not None
    job.membership.epoch.can_lose_workers = True


def test_where_values_outlive_workers_the_others_are_told_and_go_on(job: Job) -> None:
    job.form()
    go_on_without_the_lost(job)
    job.do("broken", "w1")
    job.wait(1.0)
    for id in ("w0", "w2", "s0", "s1"):
        (lost,) = job.events(id, EventKind.LOST)
        assert lost.ranks == (1,)
        assert "worker 1 (host host1, pid 101) died" in lost.text
        assert job.events(id, EventKind.FAILED) == []
    assert job.state is JobState.RUNNING
    with pytest.raises(RefusedError):
        job.membership.running("w1")
    job.report("s0", StalledError("'w' waits for rank 2"), fatal=False)
    assert job.state is JobState.RUNNING
    job.do("leave", "w0", False)
    assert job.state is JobState.RUNNING
    job.do("leave", "w2", False)
    job.wait(2.0)
    assert job.state is JobState.ENDED
    assert job.membership.epoch is not None and job.membership.epoch.failure is None


@pytest.mark.parametrize("lost", [["s0"], ["w0", "w1", "w2"], ["w1", "s1"]])
def test_no_epoch_goes_on_without_a_server_or_without_workers(job: Job, lost: list[str]) -> None:
    job.form()
    go_on_without_the_lost(job)
    for id in lost:
        job.do("broken", id)
    job.wait(1.0)
    (left, *_) = [id for id in ("w0", "w1", "w2", "s0", "s1") if id not in lost]
    assert isinstance(job.failure(left), PeerLostError)


def test_the_last_of_several_losses_ends_what_went_on_before(job: Job) -> None:
    job.form()
    go_on_without_the_lost(job)
    for id in ("w0", "w1"):
        job.do("broken", id)
        job.wait(1.0)
    assert [event.ranks for event in job.events("s0", EventKind.LOST)] == [(0,), (1,)]
    job.do("broken", "w2")
    job.wait(1.0)
    assert isinstance(job.failure("s0"), PeerLostError)


def test_the_next_scheduler_tells_of_losses_and_failures_once_more(job: Job) -> None:
    job.form()
    go_on_without_the_lost(job)
    job.do("broken", "w1")
    job.wait(1.0)
    job.inbox["s0"].clear()  # its stream was down
    job.restart()
    job.come_back()
    assert [event.ranks for event in job.events("s0", EventKind.LOST)] == [(1,)]
    job.report("w0", MismatchError("seen"))
    job.inbox["s1"].clear()
    job.restart()
    (failed,) = job.events("s1", EventKind.FAILED)
    assert (failed.epoch, str(failed.error)) == (1, "seen")


@pytest.mark.parametrize("action", ["report", "warn"])
def test_what_was_met_in_an_epoch_that_has_ended_is_nothing_to_the_next(job: Job, action: str) -> None:
    job.form()
    job.report("w1", MismatchError("seen"))
    for rank in range(3):
        job.worker(rank, f"again{rank}")
    job.get_ready("s0", "s1")
    assert (job.membership.number, job.state) == (2, JobState.RUNNING)
    job.do(action, "s0", 1, MismatchError("late"))
    assert job.state is JobState.RUNNING
    assert job.inbox["again0"] == [*job.worlds("again0")], "nobody is told"
    job.do(action, "s0", 2, MismatchError("now"))
    assert len(job.inbox["again0"]) == 2


def test_a_lost_peer_that_was_reported_before_ends_nothing_that_goes_on_without_it(job: Job) -> None:
    job.form()
    go_on_without_the_lost(job)
    job.do("broken", "w1")
    job.report("w0", PeerLostError("the link broke", peer="worker 1"))
    job.wait(5.0)
    assert job.state is JobState.RUNNING


@pytest.mark.parametrize("how", ["failed", "suspended"])
def test_a_deserted_job_waits_as_long_with_the_next_scheduler(job: Job, how: str) -> None:
    job.form()
    if how == "failed":
        job.report("w0", MismatchError("seen"))
    for id in ("w0", "w1", "w2"):
        job.do("leave", id, how == "suspended")
    job.restart()
    job.come_back()
    job.wait(30.0)
    assert job.state is JobState.FORMING
    job.wait(40.0)
    assert job.state is JobState.ENDED


def test_nobody_gets_a_place_before_those_of_the_last_scheduler_can_come_back(job: Job) -> None:
    job.form()
    job.restart()
    with pytest.raises(TooEarlyError):
        job.worker(1, "stray")
    job.come_back("w0", "w1", "w2")
    with pytest.raises(RefusedError, match="duplicate rank"):
        job.worker(1, "stray")
    job.come_back("s0", "s1")
    job.wait(10.0)
    assert job.state is JobState.RUNNING


def test_who_died_with_the_scheduler_is_in_no_world(job: Job) -> None:
    for id in ("s0", "s1"):
        job.server(id)
    for rank in range(2):
        job.worker(rank)
    job.restart()
    job.come_back("s0", "w0", "w1")
    with pytest.raises(TooEarlyError):
        job.server("s2")
    job.worker(2)
    job.wait(5.1)
    assert job.state is JobState.FORMING
    job.server("s2")
    job.get_ready("s0", "s2")
    assert [member.number for member in job.worlds("w0")[0].servers] == [1, 6]


def test_a_member_that_comes_back_in_time_is_not_lost(job: Job) -> None:
    job.form()
    job.do("broken", "w1")
    job.wait(0.5)
    job.do("watching", "w1")
    job.wait(100)
    assert job.events("w0", EventKind.FAILED) == []


def test_silence_alone_is_mentioned_but_no_reason_to_fail(job: Job) -> None:
    job.form()
    for _second in range(20):
        job.wait(1)
        for id in ("w0", "w2", "s0", "s1"):
            job.do("heartbeat", id, None, {})
    (warning,) = job.events("w0", EventKind.WARNING)
    assert "no sign of life from worker 1 (host host1, pid 101) for 5.0 s" in warning.text
    assert job.state is JobState.RUNNING


def test_many_members_may_be_silent_for_longer(job: Job) -> None:
    for rank in range(1000):
        job.worker(rank, world_size=1000, num_servers=0)
    assert job.state is JobState.RUNNING
    job.wait(14.9)
    assert job.events("w0", EventKind.WARNING) == []
    job.wait(0.2)
    assert len(job.events("w0", EventKind.WARNING)) == 1


def test_a_host_that_goes_takes_its_members_in_one_message(job: Job) -> None:
    job.form()
    job.do("broken", "w0")
    job.now += 0.1
    job.do("broken", "s0")
    job.wait(1)
    assert "worker 0 (host host0, pid 100), server 0 (host host0, pid 100) died" in str(job.failure("w1"))


def test_a_report_is_passed_on_but_our_own_eyes_know_better_about_lost_peers(job: Job) -> None:
    job.form()
    job.report("w0", PeerLostError("link to 10.0.0.2:99 closed"))
    job.do("broken", "w1")
    job.wait(2)
    assert "worker 1 (host host1, pid 101) died" in str(job.failure("w2"))

    other = Job()
    other.form()
    other.report("w0", PeerLostError("link to 10.0.0.2:99 closed"))
    other.wait(2)
    assert str(other.failure("w2")) == "link to 10.0.0.2:99 closed"

    third = Job()
    third.form()
    third.report("s1", StalledError("round 3 waits for rank 2"))
    assert isinstance(third.failure("w2"), StalledError)


def test_a_report_of_a_lost_peer_ends_with_an_epoch_that_all_leave_in_order(job: Job) -> None:
    job.form()
    job.report("w0", PeerLostError("link to 10.0.0.2:99 closed"))
    for rank in range(3):
        job.do("leave", f"w{rank}", True)
    job.wait(10)  # fails if its deadline stays in the past
    assert job.state is JobState.FORMING
    assert job.events("s0", EventKind.FAILED) == []


def test_after_a_failure_the_next_epoch_forms_when_all_workers_are_back(job: Job) -> None:
    job.form()
    job.report("w0", MismatchError("no"))
    job.do("leave", "w0", False)
    job.worker(0, "w10")
    job.worker(2, "w12")  # w2 has not left yet: its old seat does not stand in the way
    job.worker(1, "w11")
    assert [world.number for world in job.worlds("s0")] == [1, 2]
    job.get_ready("s0", "s1")
    assert [world.number for world in job.worlds("w12")] == [2]
    assert [member.pid for member in job.worlds("w10")[0].workers] == [110, 111, 112]


def test_a_rank_that_left_can_join_again_and_waits_for_the_others(job: Job) -> None:
    job.form()
    for rank in range(3):
        job.do("leave", f"w{rank}", False)
        job.worker(rank, f"w1{rank}")
    job.get_ready("s0", "s1")
    assert job.worlds("w10")[0].number == 2


def test_the_job_ends_soon_after_the_last_worker_left_unless_one_is_returning(job: Job) -> None:
    job.form()
    for rank in range(3):
        job.do("leave", f"w{rank}", False)
    job.wait(0.9)
    assert job.state is JobState.FORMING
    job.wait(0.2)
    assert job.state is JobState.ENDED
    assert len(job.events("s0", EventKind.ENDED)) == 1
    with pytest.raises(RefusedError, match="has ended"):
        job.worker(0, "w20")

    other = Job()
    other.form()
    for rank in range(3):
        other.do("leave", f"w{rank}", rank == 2)
    other.wait(50)
    assert other.state is JobState.FORMING
    other.wait(11)
    assert other.state is JobState.ENDED


def test_a_failed_job_ends_when_nobody_comes_back(job: Job) -> None:
    job.form()
    job.report("w0", MismatchError("no"))
    job.wait(500)
    assert job.state is JobState.FORMING, "its workers are still there"
    for rank in range(3):
        job.do("broken", f"w{rank}")
    job.wait(61)
    (event,) = job.events("s1", EventKind.ENDED)
    assert isinstance(event.error, MismatchError)


def test_a_server_that_leaves_or_never_takes_up_the_epoch(job: Job) -> None:
    job.form()
    job.do("leave", "s1", False)
    assert "server 1 (host host1, pid 101) left while epoch 1 was running" in str(job.failure("w0"))

    other = Job()
    for rank in range(3):
        other.worker(rank)
    other.server("s0")
    other.server("s1")
    other.get_ready("s0")
    other.wait(11)
    assert "server 1 (host host1, pid 101) did not start epoch 1" in str(other.failure("w0"))


def test_a_member_that_dies_while_the_world_forms_makes_room(job: Job) -> None:
    job.worker(1)
    job.worker(0)
    job.do("broken", "w1")
    job.worker(1, "w11")
    assert (
        "worker 1 (host host1, pid 101) died while the world was forming" in job.events("w0", EventKind.WARNING)[0].text
    )
    job.worker(2)
    job.server("s0")
    job.server("s1")
    job.get_ready("s0", "s1")
    assert [member.pid for member in job.worlds("w0")[0].workers] == [100, 111, 102]


def test_no_world_forms_with_a_member_that_is_just_now_away(job: Job) -> None:
    for rank in range(3):
        job.worker(rank)
    job.server("s0")
    job.do("broken", "w0")
    job.server("s1")
    assert job.state is JobState.FORMING
    job.do("watching", "w0")
    assert job.state is JobState.PREPARING


def test_a_stalled_round_after_a_worker_left_is_a_failure(job: Job) -> None:
    job.form()
    job.report("s0", StalledError("round 7 of 'w' waits for rank 1"), fatal=False)
    assert job.state is JobState.RUNNING
    assert job.events("w0", EventKind.WARNING)[0].text == "round 7 of 'w' waits for rank 1"
    job.do("leave", "w1", False)
    job.report("s0", StalledError("round 7 of 'w' waits for rank 1"), fatal=False)
    assert "worker 1 (host host1, pid 101) left the job and will not contribute" in str(job.failure("w0"))


def blocked(job: Job, rank: int, name: str, started: dict[str, int] | None, times: int = 2) -> None:
    waiting: dict[str, object] = {"name": name, "round": 3, "since": 1.0}
    if started is not None:
        waiting["started"] = started
    for _report in range(times):
        job.do("heartbeat", f"w{rank}", waiting, {})


def test_a_circle_of_waits_is_proved_and_named(job: Job) -> None:
    job.form()
    blocked(job, 2, "b", {"b": 3, "a": 3})
    blocked(job, 0, "a", {"a": 3})
    assert job.state is JobState.RUNNING
    blocked(job, 1, "b", {"b": 3}, times=1)
    assert job.state is JobState.RUNNING, "one report may be a moment's wait"
    blocked(job, 1, "b", {"b": 3}, times=1)
    job.wait(DIAGNOSIS_SECONDS)
    error = job.failure("w2")
    assert isinstance(error, MismatchError)
    assert "rank 0 waits for 'a' round 3, which rank 1 has not pushed" in str(error)
    assert "rank 1 waits for 'b' round 3, which rank 0 has not pushed" in str(error)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("a", {"a": 3}), ("a", {"a": 3})),  # both wait for the third
        (("a", {"a": 3, "b": 3}), ("b", {"b": 3})),  # the first has pushed what the second waits for
        (("a", {"a": 3}), ("b", None)),  # nobody knows what the second has started
    ],
)
def test_waits_that_prove_nothing(
    job: Job, first: tuple[str, dict[str, int]], second: tuple[str, dict[str, int]]
) -> None:
    job.form()
    blocked(job, 0, *first, times=5)
    blocked(job, 1, *second, times=5)
    job.wait(DIAGNOSIS_SECONDS)
    assert job.state is JobState.RUNNING


def test_what_the_ranks_were_told_to_give_up_proves_nothing(job: Job) -> None:
    job.form()
    blocked(job, 0, "a", {"a": 3})
    job.membership.give_up({"a"})
    blocked(job, 1, "b", {"b": 3})
    blocked(job, 0, "a", {"a": 3})  # sent before it was told
    job.wait(DIAGNOSIS_SECONDS)
    assert job.state is JobState.RUNNING


def test_many_warnings_at_once_do_not_flood_the_members(job: Job) -> None:
    job.form()
    for number in range(50):
        job.report("s0", StalledError(f"round {number} waits for rank 1"), fatal=False)
    assert len(job.events("w0", EventKind.WARNING)) == 8
    job.wait(1.5)
    job.report("s0", StalledError("another"), fatal=False)
    assert job.events("w0", EventKind.WARNING)[-1].text == "another"


def test_all_who_are_silent_are_mentioned_in_one_message(job: Job) -> None:
    job.form()
    job.wait(20)
    (warning,) = job.events("w0", EventKind.WARNING)
    assert "worker 0 (host host0, pid 100), worker 1" in warning.text


def test_who_has_started_a_process_knows_first_that_it_has_ended() -> None:
    job = Job()
    job.form()
    job.membership.processes_ended("boot1", {102}, job.now)  # worker 2 is on the other host
    job.membership.processes_ended("boot0", {7}, job.now)
    job.deliver()
    assert job.state is JobState.RUNNING
    job.membership.processes_ended("boot0", {102}, job.now)
    job.deliver()
    failure = job.failure("w0")
    assert str(failure) == "worker 2 (host host0, pid 102) died: the process has ended"
    assert isinstance(failure, PeerLostError) and failure.peer == "worker 2"


def test_a_scheduler_that_goes_on_need_not_wait_for_who_is_known_to_be_dead() -> None:
    job = Job()
    job.form()
    job.restart()
    job.come_back("w0", "w2", "s0", "s1")
    job.wait(4.9)
    assert job.state is JobState.RUNNING, "worker 1 may come back yet"
    job.membership.processes_ended("boot1", {101}, job.now)
    job.deliver()
    assert isinstance(job.failure("w2"), PeerLostError)
