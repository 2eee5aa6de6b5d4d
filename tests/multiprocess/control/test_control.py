"""A real scheduler and real members: joining, refusals, and deaths that are named in time."""

import signal
import time
from collections.abc import Iterator

import pytest

from tests.fakes.firewall import Firewall
from tests.multiprocess.control.processes import Cluster


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    made = Cluster(**getattr(request, "param", {}))
    try:
        yield made
    finally:
        made.end()


def test_a_job_from_join_to_end(cluster: Cluster) -> None:
    server = cluster.start("server", num_servers=1)
    server.send("join")
    first, second = (cluster.start("worker", num_servers=1) for _ in range(2))
    first.send("join", rank=1)
    second.send("join")  # takes the rank that is free
    assert first.outcome()["rank"] == 1
    assert second.outcome()["rank"] == 0
    assert server.outcome()["epoch"] == 1
    first.send("barrier", name="a")
    quarters = [[part, 1 << 20, 0, part % 2] for part in range(4)]
    assert second.ask("declare", name="w", shape=[1 << 20])["partitions"] == quarters
    assert second.ask("status")["members"] == ["running"] * 3
    assert second.ask("barrier", name="a")["answer"] == "barrier"
    assert first.outcome()["answer"] == "barrier"
    assert first.ask("fork", times=20)["exits"] == [7]
    assert first.ask("declare", name="w", shape=[1 << 20])["partitions"] == quarters
    server.send("next_view")
    for member in (first, second):
        assert member.ask("leave")["seconds"] < 2
    assert server.outcome()["error"] == "ShutdownError"
    assert cluster.scheduler.process.wait(10) == 0


def test_refusals_name_both_sides(cluster: Cluster) -> None:
    first = cluster.start("worker")
    first.send("join", rank=0)
    other = cluster.start("worker")
    deadline = time.monotonic() + 10
    while other.ask("status")["members"] != ["waiting"]:
        assert time.monotonic() < deadline
    pid = first.process.pid
    for arguments, words in [
        ({"rank": 0}, f"duplicate rank: worker 0 (host here, pid {other.process.pid}) wants the rank of worker 0"),
        ({"rank": 1, "world_size": 3}, f"has world_size=3, but worker 0 (host here, pid {pid}) has world_size=2"),
        ({"rank": 1, "partition_bytes": 640}, f"partition_bytes=640, but worker 0 (host here, pid {pid}) has"),
        ({"rank": 1, "secret": "not the secret that this job has"}, "wrong secret"),
        ({"rank": 1, "job": "another"}, "this is job 'test', the caller is of job 'another'"),
    ]:
        said = other.ask("join", **arguments)
        assert said.get("error") == "RefusedError", said
        assert words in said["text"]
    assert other.ask("join", rank=1)["workers"] == 2
    assert first.outcome()["workers"] == 2
    late = cluster.start("worker").ask("join")
    assert late["error"] == "RefusedError"
    assert "late: all 2 workers are there in epoch 1" in late["text"]


def test_who_waits_hears_who_is_missing(cluster: Cluster) -> None:
    members = [cluster.start("worker", world_size=4, num_servers=1, join_timeout=1.5) for _ in range(2)]
    for member in members:
        member.ask("status")  # it runs: both join within a moment
    for rank, member in enumerate(members):
        member.send("join", rank=2 * rank)
    for member in members:
        said = member.outcome()
        assert said["error"] == "DeadlineError"
        assert "missing: workers 1, 3 of 4; 1 of 1 server" in said["text"]
    assert "can't reach the scheduler 127.0.0.1:1" in members[0].ask("join", scheduler="127.0.0.1:1")["text"]


def test_kill_of_a_member_is_named_and_the_others_start_again(cluster: Cluster) -> None:
    first, victim, third = cluster.workers(3)
    third.send("barrier", name="a")
    killed = victim.kill()
    for member in (first, third):
        event = member.hear("event")
        assert event["error"] == "PeerLostError"
        assert f"worker 1 (host here, pid {victim.process.pid}) died" in event["text"]
        assert event["at"] - killed < 1.5
    assert third.outcome()["error"] == "PeerLostError"
    assert first.ask("barrier", name="b")["error"] == "PeerLostError"
    again = cluster.start("worker", world_size=3)
    for rank, member in enumerate((first, again, third)):
        member.ask("leave") if member is not again else None
        member.send("join", rank=rank)
    assert [member.outcome()["epoch"] for member in (first, again, third)] == [2, 2, 2]


def test_a_straggler_of_an_earlier_start_is_no_member_of_the_next(cluster: Cluster) -> None:
    """Stopped in the first start of a job, which is killed; it goes on when the next one runs at the same address."""
    wall, again = Firewall(cluster.address), None
    try:
        gone, straggler = cluster.workers(2, scheduler=wall.address)
        straggler.kill(signal.SIGSTOP)
        cluster.scheduler.end()
        gone.end()
        again = Cluster()
        wall.point_to(again.address)
        members = again.workers(2, scheduler=wall.address)
        straggler.kill(signal.SIGCONT)
        event = straggler.hear("event")
        assert event["error"] == "PeerLostError" and "no longer knows this member" in event["text"]
        assert straggler.ask("barrier", name="a")["error"] == "PeerLostError"
        assert straggler.ask("declare", name="w", shape=[9])["error"] == "PeerLostError"
        straggler.ask("leave")
        assert straggler.ask("join", rank=1)["error"] == "RefusedError"
        members[0].send("barrier", name="a")
        assert members[1].ask("barrier", name="a")["answer"] == "barrier"
        assert members[0].outcome()["answer"] == "barrier"
        assert members[0].ask("status")["members"] == ["running"] * 2
    finally:
        wall.close()
        if again is not None:
            again.end()


def test_kill_of_the_scheduler_is_named(cluster: Cluster) -> None:
    members = cluster.workers(2)
    members[0].send("barrier", name="a")
    killed = cluster.scheduler.kill()
    for member in members:
        event = member.hear("event")
        assert f"scheduler {cluster.address} died" in event["text"]
        assert event["at"] - killed < 2
    assert members[0].outcome()["error"] == "PeerLostError"
    for member in members:
        assert member.ask("leave")["seconds"] < 2


@pytest.mark.parametrize("cluster", [{"stall_warning": 1.0}], indirect=True)
def test_a_stopped_member_is_mentioned_but_not_lost(cluster: Cluster) -> None:
    first, stopped = cluster.workers(2, stall_warning=1.0, heartbeat_interval=0.3)
    stopped.kill(signal.SIGSTOP)
    assert "no sign of life from worker 1" in first.hear("event")["text"]
    assert first.ask("barrier", name="a", timeout=1.5)["error"] == "DeadlineError"
    stopped.kill(signal.SIGCONT)
    first.send("barrier", name="a")
    assert stopped.ask("barrier", name="a")["answer"] == "barrier"


def test_mismatches_reports_and_deadlocks_reach_everybody(cluster: Cluster) -> None:
    first, second = cluster.workers(2, num_servers=0, heartbeat_interval=0.2)
    first.ask("wait_for", name="a")
    second.ask("wait_for", name="b")
    for member in (first, second):
        event = member.hear("event", 5)
        assert event["error"] == "MismatchError"
        assert "rank 0 waits for 'a' round 1, which rank 1 has not pushed" in event["text"]
    for rank, member in enumerate((first, second)):
        member.ask("leave")
        member.send("join", rank=rank)
    assert [member.outcome()["epoch"] for member in (first, second)] == [2, 2]
    first.ask("report", text="round 5 waits for rank 1")
    assert second.hear("event")["error"] == "StalledError"


def test_a_rank_that_has_left_is_not_waited_for(cluster: Cluster) -> None:
    first, second, third = cluster.workers(3)
    first.send("barrier", name="a")
    assert second.ask("leave")["seconds"] < 2
    for said in (first.outcome(), third.ask("barrier", name="a")):
        assert said["error"] == "StalledError"
        assert f"worker 1 (host here, pid {second.process.pid}) left the job" in said["text"]


def test_with_a_short_clock_silence_is_named_early_and_is_no_death() -> None:
    cluster = Cluster(failure_timeout=2)
    try:
        first, stopped = cluster.workers(2, failure_timeout=2)
        stopped.kill(signal.SIGSTOP)
        text = first.hear("event")["text"]
        assert "no sign of life from worker 1" in text, text
        assert 0.4 <= float(text.split(" for ")[1].split(" s")[0]) < 1.0, text  # other jobs say so from a second on
        time.sleep(2.5)
        stopped.kill(signal.SIGCONT)
        stopped.send("barrier", name="alive")
        assert first.ask("barrier", name="alive")["answer"] == "barrier"
        assert stopped.outcome()["answer"] == "barrier"
        began = time.monotonic()
        stopped.kill()
        failed = first.hear_failure()
        assert failed["error"] == "PeerLostError", failed
        assert "it did not come back within 0.1 s" in failed["text"] and time.monotonic() - began < 5
    finally:
        cluster.end()
