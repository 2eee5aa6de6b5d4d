"""A job's tensors, as the next scheduler knows them: what it says of all calls is what one scheduler had said."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.control.calls import wire
from byteps_like.control.calls.journal import Decisions, Journal, PastTable, RuleEndedError
from byteps_like.control.calls.service import SchedulerService
from byteps_like.control.members.membership import Membership
from byteps_like.control.members.past import JobState
from byteps_like.control.placing.declarations import Declarations
from byteps_like.control.placing.placement import Placer
from byteps_like.control.records.records import Changes
from byteps_like.control.types import MemberRole
from byteps_like.control.v1 import records_pb2 as pb
from byteps_like.control.v1 import scheduler_pb2
from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, CorruptError, RefusedError, SystemCallError
from byteps_like.worker.api import TensorSpec
from tests.fakes.control.records import RecordsInMemory
from tests.fakes.views import view_of
from tests.unit.control.members.membership_world import claim

VIEW = view_of(range(3))
SPECS = [
    TensorSpec("small", DType.INT8, (9,)),
    TensorSpec("large", DType.FLOAT32, (9000, 3), row_bytes=12),
    TensorSpec("coded", DType.FLOAT32, (70_000,), codec="onebit:block=512"),
    TensorSpec("kept", DType.INT64, (4000,), on_loss="finish"),
    TensorSpec("beside", DType.FLOAT32, (27_000,), beside="large", details="a\nb"),
    TensorSpec("small", DType.INT8, (8,)),
    *(TensorSpec(f"many {number}", DType.INT8, (700 * number,)) for number in range(6)),
    TensorSpec("neighbour", DType.INT8, (2100,), beside="many 3"),
]
CALLS = st.one_of(
    st.tuples(st.just("declare"), st.integers(0, 2), st.lists(st.sampled_from(SPECS), min_size=1, max_size=4)),
    st.tuples(st.just("retire"), st.integers(0, 2), st.integers(0, 12)),
    st.tuples(st.just("replan"), st.sampled_from([(1.0, 1.0), (3.0, 1.0)]), st.just(None)),
    st.tuples(st.just("restart"), st.just(None), st.just(None)),
)


def placer(weights: tuple[float, ...]) -> Placer:
    return Placer([2, 1], 4096, weights)


class Scheduler:
    """Its table, with or without a journal."""

    def __init__(self, records: RecordsInMemory | None) -> None:
        self.records, self.weights = records, (1.0, 1.0)
        self.table = Declarations(VIEW, placer(self.weights))
        self.moves: list[Any] = []
        self.membership = Membership("job")
        if records is not None:
            self.journal = Journal(records)

    def call(self, what: str, first: Any, second: Any) -> Any:
        if what == "declare":
            return self.table.declare(first, second)
        if what == "retire":
            return self.table.retire(first, [second])
        if what == "replan":
            self.weights = first
            moves = self.table.replan(placer(first))
            self.moves.append(("why", moves))
            return moves
        return self.restart()

    def store(self) -> None:
        if self.records is not None:
            self.journal.write(self.membership, Decisions(self.table, 0, 4096, self.weights, self.moves))

    def restart(self) -> None:
        if self.records is None:
            return
        self.store()
        self.journal = Journal(self.records)
        past = self.journal.past()
        assert past is not None
        table = past[2]
        assert list(table.moves) == self.moves
        assert table.weights == self.weights
        self.table = Declarations(VIEW, placer(self.weights))
        self.table.resume(table.tensors, table.uses, table.next_tensor)


def outcome(scheduler: Scheduler, call: tuple[str, Any, Any]) -> Any:
    try:
        return scheduler.call(*call)
    except BytePSLikeError as error:
        return type(error)
    finally:
        scheduler.store()


@settings(max_examples=200, deadline=None)
@given(calls=st.lists(CALLS, max_size=14))
def test_whoever_goes_on_answers_as_one_scheduler_had(calls: list[tuple[str, Any, Any]]) -> None:
    whole, in_turn = Scheduler(None), Scheduler(RecordsInMemory())
    for call in calls:
        assert outcome(in_turn, call) == outcome(whole, call)
    assert in_turn.table.can_lose_workers == whole.table.can_lose_workers
    assert in_turn.table._placer.loads() == whole.table._placer.loads()
    text = "; ".join(f"key {number << 16}" for number in range(9))
    assert in_turn.table.name_keys(text) == whole.table.name_keys(text)


def test_tensors_of_an_epoch_that_is_over_are_dropped() -> None:
    records = RecordsInMemory()
    scheduler = Scheduler(records)
    scheduler.call("declare", 0, [SPECS[0]])
    scheduler.call("replan", (3.0, 1.0), None)
    scheduler.store()
    scheduler.membership.number = 1  # another view has formed, and nobody has declared anything
    scheduler.store()
    journal = Journal(records)
    past = journal.past()
    assert past is not None
    assert past[2] == PastTable()
    journal.write(scheduler.membership, Decisions())
    assert not [name for name in records.kept if "/" in name or name == "placing"]


def test_an_ended_job_is_known_as_such_and_forgotten() -> None:
    records = RecordsInMemory()
    scheduler = Scheduler(records)
    scheduler.membership.state = JobState.ENDED
    scheduler.store()
    journal = Journal(records)
    assert (journal.past(), journal.has_ended, records.kept) == (None, True, {})


class FullDisk(RecordsInMemory):
    """Full from some time on."""

    full = False

    def commit(self, changes: Changes) -> None:
        if self.full:
            raise SystemCallError("the disk is full")
        super().commit(changes)


def test_what_cant_be_stored_ends_the_rule_and_is_not_there_for_the_next() -> None:
    disk = FullDisk()
    scheduler = Scheduler(disk)
    scheduler.call("declare", 0, [SPECS[0]])
    scheduler.store()
    before = dict(disk.kept)
    disk.full = True
    scheduler.call("declare", 0, [SPECS[1]])
    with pytest.raises(RuleEndedError, match="the disk is full"):
        scheduler.store()
    assert disk.kept == before


def test_nothing_is_written_where_nothing_has_changed() -> None:
    disk = FullDisk()
    scheduler = Scheduler(disk)
    scheduler.call("declare", 0, [SPECS[0]])
    scheduler.store()
    disk.full = True
    scheduler.call("declare", 0, [SPECS[0]])
    scheduler.store()


class Deposed(RecordsInMemory):
    """From some time on another scheduler may rule."""

    is_over = False

    def check(self) -> None:
        if self.is_over:
            raise RefusedError("the lease has ended")


def test_who_may_rule_no_more_decides_nothing_that_has_not_changed_either() -> None:
    records = Deposed()
    scheduler = Scheduler(records)
    scheduler.call("declare", 0, [SPECS[0]])
    scheduler.store()
    records.is_over = True
    scheduler.call("declare", 0, [SPECS[0]])
    with pytest.raises(RuleEndedError, match="the lease has ended"):
        scheduler.store()


def test_who_may_rule_no_more_answers_nobody() -> None:
    async def test() -> None:
        records = Deposed()
        service = SchedulerService(Membership("job"), journal=Journal(records))
        status = service.methods()["Status"]
        assert await status(scheduler_pb2.StatusRequest())  # type: ignore[call-arg, misc]
        records.is_over = True
        for name, request in (("Status", scheduler_pb2.StatusRequest()), ("Names", scheduler_pb2.NamesRequest())):
            with pytest.raises(RuleEndedError, match="the lease has ended"):
                await service.methods()[name](request)  # type: ignore[call-arg, misc]
        with pytest.raises(RuleEndedError, match="the lease has ended"):
            await service.watch(scheduler_pb2.WatchRequest(member_id="m"), None)  # type: ignore[arg-type]
        assert service.ended.is_set() and service.failure is not None

    asyncio.run(test())


def test_a_rule_that_is_lost_between_calls_ends_the_scheduler() -> None:
    async def test() -> None:
        service = SchedulerService(Membership("job"), journal=Journal(RecordsInMemory()))
        service.end_rule(RefusedError("the lease has ended"))
        assert service.ended.is_set() and "the lease has ended" in str(service.failure)

    asyncio.run(test())


@pytest.mark.parametrize("content", [b"\xff\xff", pb.JobRecord(state="happy").SerializeToString()])
def test_records_that_make_no_sense_are_an_error(content: bytes) -> None:
    records = RecordsInMemory()
    records.kept["job"] = content
    with pytest.raises(CorruptError, match="record 'job'"):
        Journal(records).past()


def test_a_scheduler_goes_on_with_a_world_whose_servers_have_all_died() -> None:
    async def test() -> None:
        records = RecordsInMemory()
        membership = Membership("job")
        service = SchedulerService(membership, journal=Journal(records))
        for role, id in ((MemberRole.WORKER, "w0"), (MemberRole.SERVER, "s0")):
            own = {"world_size": 1, "num_servers": 1} if role is MemberRole.WORKER else {}
            membership.join(claim(role, 0, id, **own), 0.0)
            membership.watching(id, 0.0)
        membership.ready("s0", 1, 0.0)
        await service.declare(scheduler_pb2.DeclareRequest(member_id="w0", specs=[wire.spec_to_wire(SPECS[0])]))
        membership.broken("s0", 0.0)
        membership.tick(1.0)
        service._after()
        assert membership.state is JobState.FORMING
        journal = Journal(records)
        past = journal.past()
        assert past is not None
        SchedulerService(Membership("job", past[0]), journal=journal).resume(*past[1:])

    asyncio.run(test())
