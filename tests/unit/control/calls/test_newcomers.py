"""Processes that would catch up before they join: a real scheduler, its workers and newcomers, in threads."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from byteps_like.control import bounds
from byteps_like.control.calls.client import ControlClient, query_status
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.newcomers import MOST_FED
from byteps_like.control.calls.ruler import one_call
from byteps_like.control.calls.secret import load
from byteps_like.control.calls.session import LeftOutError
from byteps_like.control.types import EventKind, WatchEvent
from byteps_like.control.v1 import scheduler_pb2 as pb
from byteps_like.errors import DeadlineError, InvalidArgumentError, PeerLostError, RefusedError, StalledError
from byteps_like.worker.api import Newcomer
from tests.fakes.control.elastic_job import PATIENCE, ElasticJob, until

PAIR: list[dict[str, Any]] = [{}, {}]


@pytest.fixture
def job() -> Iterator[ElasticJob]:
    with closing(ElasticJob()) as made:
        yield made


def heard(worker: ControlClient, count: int) -> list[Newcomer]:
    """The newcomers that it knows of, once there are so many."""
    until(lambda: len(worker.newcomers) >= count)
    return list(worker.newcomers)


def refusal(call: Future[str]) -> str:
    """Of a call whose own time is not over: a DeadlineError is none."""
    with pytest.raises(RefusedError) as caught:
        call.result(PATIENCE)
    return str(caught.value)


def ask(job: ElasticJob, name: str, request: Any) -> Any:
    """A call of somebody who has the secret."""
    config = job.config()
    return control_loop().run(one_call(config, load(config), name, request, 10.0))


def test_a_newcomer_is_told_what_a_worker_says(job: ElasticJob) -> None:
    first, second = job.form(*PAIR)
    calls = {"a": job.catch_up("a")}
    (one,) = heard(second, 1)
    assert one.address == "a"
    assert query_status(job.config()).text == "1 newcomer catches up before joining"
    calls["b"] = job.catch_up("b")
    other = heard(first, 2)[1]
    assert query_status(job.config()).text == "2 newcomers catch up before joining"
    second.feed(other.number, "those who feed b")
    first.feed(one.number, "those who feed a")
    assert calls["b"].result(PATIENCE) == "those who feed b"
    assert calls["a"].result(PATIENCE) == "those who feed a"


def test_all_workers_hear_of_newcomers_in_one_order() -> None:
    with closing(ElasticJob(max_workers=9)) as job:
        workers = job.form({}, {}, {})
        addresses = [f"address {number}" for number in range(6)]
        for address in addresses:
            job.catch_up(address)
        orders = [heard(worker, len(addresses)) for worker in workers]
        assert orders[0] == orders[1] == orders[2]
        assert sorted(one.address for one in orders[0]) == addresses
        numbers = [one.number for one in orders[0]]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0


def test_workers_are_told_by_an_event(job: ElasticJob) -> None:
    first, _ = job.form(*PAIR)
    events: list[WatchEvent] = []
    first.on_event(events.append)
    job.catch_up("a")
    until(lambda: events)
    assert [(event.kind, event.newcomer) for event in events] == [(EventKind.NEWCOMER, heard(first, 1)[0])]
    assert first.changes == 0, "nobody has to leave this world for somebody who doesn't wait for the next one"


def test_who_has_waited_in_vain_is_forgotten_and_may_ask_again(job: ElasticJob) -> None:
    first, second = job.form(*PAIR)
    with pytest.raises(DeadlineError, match=r"no commit of the workers came within 0\.1 s") as caught:
        job.catch_up("a", timeout=0.1).result(PATIENCE)
    assert (caught.value.operation, caught.value.elapsed) == ("catch up", 0.1)
    assert query_status(job.config()).text == ""
    call = job.catch_up("a")
    before, now = heard(second, 2)
    assert before.address == now.address and before.number < now.number
    first.feed(before.number, "too late")
    first.feed(now.number, "they do")
    assert call.result(PATIENCE) == "they do"
    assert query_status(job.config()).text == "1 newcomer catches up before joining"


def test_who_is_fed_takes_no_place_from_others(job: ElasticJob) -> None:
    """It may have died: the scheduler does not know it as it does members."""
    first, _ = job.form(*PAIR)
    for number in range(3):
        call = job.catch_up("a")
        first.feed(heard(first, number + 1)[number].number, "they do")
        assert call.result(PATIENCE) == "they do"


def test_nobody_may_feed_it_and_the_first_word_counts(job: ElasticJob) -> None:
    first, second = job.form(*PAIR)
    call = job.catch_up("a")
    number = heard(first, 1)[0].number
    feed(job, second, number + 7, "of nobody")
    feed(job, first, number, "")
    feed(job, second, number, "they do")
    assert call.result(PATIENCE) == ""
    assert query_status(job.config()).text == ""


def feed(job: ElasticJob, who: ControlClient, number: int, feeders: str) -> None:
    """Says what the scheduler says to it."""
    session = who._session
    assert session is not None
    ask(job, "Feed", pb.FeedRequest(member_id=session.id, newcomer=number, feeders=feeders))


def test_only_running_workers_feed() -> None:
    with closing(ElasticJob(num_servers=1, world_size=2)) as job:
        server, view = job.join(role="server", urls=("tcp://127.0.0.1:1",), shards=1)
        joining = [job.join(rank) for rank in range(2)]
        server.ready(view.result(PATIENCE))
        job.workers = [client for client, world in joining if world.result(PATIENCE)]
        call = job.catch_up("a")
        number = heard(job.workers[0], 1)[0].number
        waiting, _ = job.join()
        until(lambda: [one.state for one in query_status(job.config()).members].count("waiting") == 1)
        with pytest.raises(RefusedError, match="only workers feed newcomers"):
            feed(job, server, number, "a server")
        with pytest.raises(RefusedError, match="its epoch is not running"):
            feed(job, waiting, number, "one who waits")
        with pytest.raises(RefusedError, match="not a member"):
            ask(job, "Feed", pb.FeedRequest(member_id="nobody", newcomer=number, feeders="a stranger"))
        job.workers[1].leave()
        with pytest.raises(RefusedError, match="not a member"):
            feed(job, job.workers[1], number, "left")
        assert not call.done()
        waiting.leave()
        server.leave()


def test_no_world_runs() -> None:
    with closing(ElasticJob(world_size=2)) as job:
        assert "no world runs" in refusal(job.catch_up("a"))
        waiting, _ = job.join(0)
        job.workers = [waiting]
        until(lambda: query_status(job.config()).members)
        assert "no world runs" in refusal(job.catch_up("a"))


def test_a_world_whose_servers_are_not_ready_does_not_run() -> None:
    with closing(ElasticJob(num_servers=1, world_size=1)) as job:
        server, view = job.join(role="server", urls=("tcp://127.0.0.1:1",), shards=1)
        worker, world = job.join(0)
        job.workers = [worker, server]
        view.result(PATIENCE)
        assert "no world runs" in refusal(job.catch_up("a"))
        server.ready(view.result())
        world.result(PATIENCE)
        job.catch_up("a")
        assert heard(worker, 1)[0].address == "a"
        assert not server.newcomers


@pytest.mark.parametrize(
    ("settings", "members"),
    [({"elastic": False, "max_workers": None}, PAIR), ({}, [{}, {"native": False}])],
    ids=["not elastic", "portable"],
)
def test_jobs_that_feed_nobody(settings: dict[str, Any], members: list[dict[str, Any]]) -> None:
    with closing(ElasticJob(**settings)) as job:
        first, _ = job.form(*members)
        assert "the workers of this job feed no newcomers" in refusal(job.catch_up("a"))
        assert not first.newcomers and query_status(job.config()).text == ""


def test_spares_follow_as_well_but_not_any_number(job: ElasticJob) -> None:
    """Workers don't leave their world for somebody whom the next one has no room for."""
    first, _ = job.form(*PAIR)
    calls = [job.catch_up(f"address {number}") for number in range(MOST_FED)]
    known = heard(first, MOST_FED)
    assert "feed 16 newcomers already" in refusal(job.catch_up("one more"))
    first.feed(known[0].number, "they do")
    until(lambda: any(call.done() for call in calls))
    assert "feed 16 newcomers already" in refusal(job.catch_up("one more")), "it is fed as before"
    first.feed(known[1].number, "")
    until(lambda: sum(call.done() for call in calls) == 2)
    job.catch_up("one more")
    assert heard(first, MOST_FED + 1)[-1].address == "one more"
    assert first.changes == 0


def test_a_spare_that_does_not_wait_hears_when_the_others_run() -> None:
    """It may come while they are forming a world, or when they have one."""
    with closing(ElasticJob(max_workers=2, world_size=2)) as job:
        joining = [job.join(-1, waits=False) for _ in range(3)]
        until(lambda: all(view.done() for _, view in joining))
        left_out = [view for _, view in joining if view.exception() is not None]
        assert len(left_out) == 1
        _, late = job.join(waits=False)
        with pytest.raises(LeftOutError, match="no room beside the 2 that run"):
            left_out[0].result(PATIENCE)
        with pytest.raises(LeftOutError, match="no room beside the 2 that run"):
            late.result(PATIENCE)
        job.workers = [client for client, view in joining if view.exception() is None]
        waiting, its = job.join()
        until(lambda: len(query_status(job.config()).members) == 3)
        assert not its.done()
        waiting.leave()


def fail(job: ElasticJob) -> None:
    job.workers[0].report(StalledError("round 1 waits for rank 1"), job.workers[0].view.number)


@pytest.mark.parametrize("end", [ElasticJob.leave_for_next, fail], ids=["in order", "failed"])
def test_the_world_ends_in_which_it_waits(job: ElasticJob, end: Callable[[ElasticJob], None]) -> None:
    first, _ = job.form(*PAIR)
    call = job.catch_up("a")
    (before,) = heard(first, 1)
    end(job)
    assert "to be caught up with has ended" in refusal(call)
    assert "no world runs" in refusal(job.catch_up("a"))
    first, _ = job.form_next()
    assert not first.newcomers and query_status(job.config()).text == ""
    call = job.catch_up("a")
    (now,) = heard(first, 1)
    assert now.number > before.number
    first.feed(before.number, "of the world before")
    first.feed(now.number, "they do")
    assert call.result(PATIENCE) == "they do"


def test_the_job_ends_in_which_it_waits(job: ElasticJob) -> None:
    workers = job.form(*PAIR)
    call = job.catch_up("a")
    heard(workers[0], 1)
    for worker in workers:
        worker.leave()
    assert "has ended" in refusal(call)


def test_the_scheduler_ends_in_which_it_waits(job: ElasticJob) -> None:
    first, _ = job.form(*PAIR)
    call = job.catch_up("a")
    heard(first, 1)
    began = time.monotonic()
    job.scheduler.stop()
    with pytest.raises(PeerLostError):
        call.result(PATIENCE)
    assert time.monotonic() - began < 5


def test_another_scheduler_goes_on_counting(tmp_path: Path) -> None:
    """Workers that know a number take it for somebody who is fed already."""
    with closing(ElasticJob(str(tmp_path))) as job:
        first, second = job.form(*PAIR)
        call = job.catch_up("a")
        (before,) = heard(second, 1)
        job.scheduler.stop()
        with pytest.raises(PeerLostError):
            call.result(PATIENCE)
        job.start_scheduler()
        call = job.catch_up("a")
        known = heard(first, 2)
        assert known[0] == before and known[1].address == "a"
        assert known[1].number > before.number
        first.feed(known[1].number, "they do")
        assert call.result(PATIENCE) == "they do"


def begin_call(job: ElasticJob, address: str) -> Future[Any]:
    """One that may be cancelled: its connection is closed then."""
    config, request = job.config(), pb.CatchUpRequest(address=address, timeout_s=PATIENCE)
    return control_loop().submit(one_call(config, load(config), "CatchUp", request, PATIENCE))


def test_whose_call_is_cut_off_is_forgotten_and_leaves_no_error(
    job: ElasticJob, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = job.form(*PAIR)
    calls = [begin_call(job, address) for address in "ab"]
    numbers = [one.number for one in heard(first, 2)]
    calls[0].cancel()
    until(lambda: query_status(job.config()).text == "1 newcomer catches up before joining")
    for number in numbers:
        first.feed(number, "they do")
    assert calls[1].result(PATIENCE).feeders == "they do"
    last = begin_call(job, "c")
    heard(first, 3)
    last.cancel()
    job.leave_for_next()
    job.form(*PAIR)
    gc.collect()
    control_loop().run(asyncio.sleep(0))
    assert not [record for record in caplog.records if record.name in ("asyncio", "byteps_like.control.calls.rpc")]


def test_addresses_times_and_feeders_are_bounded(job: ElasticJob) -> None:
    first, _ = job.form(*PAIR)
    long = "x" * (bounds.LARGEST_JOIN + 1)
    with pytest.raises(InvalidArgumentError, match=r"address .* has 65537 characters, more than 65536"):
        job.catch_up(long).result(PATIENCE)
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidArgumentError, match="timeout_s="):
            ask(job, "CatchUp", pb.CatchUpRequest(address="a", timeout_s=seconds))
    assert not first.newcomers
    call = job.catch_up(long[1:])
    (one,) = heard(first, 1)
    assert one.address == long[1:]
    with pytest.raises(InvalidArgumentError, match=r"feeders .* has 65537 characters, more than 65536"):
        feed(job, first, one.number, long)
    first.feed(one.number, long[1:])
    assert call.result(PATIENCE) == long[1:]
