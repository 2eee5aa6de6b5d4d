"""Who comes to an elastic job whose world runs is no member before its first operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

pytest.importorskip("byteps_like._core")

import torch

import byteps_like.torch as bps
from byteps_like.control.calls.client import query_status
from byteps_like.control.calls.returning import returning
from byteps_like.control.hosts.routes import host_id
from byteps_like.errors import DeadlineError, NotInitializedError, StalledError
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.beginning import place_beside
from byteps_like.worker import session
from byteps_like.worker.current import join_beside
from byteps_like.worker.local import LocalWorker
from tests.fakes.control.elastic_job import PATIENCE, ElasticJob, until


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[ElasticJob]:
    """Two workers, one of them on this host; its settings are those of this process."""
    with closing(ElasticJob()) as made:
        made.form({"host_id": host_id()}, {"host_id": "another"})
        for name, value in made.settings.items():
            monkeypatch.setenv(f"BYTEPS_LIKE_{name.upper()}", str(value))
        yield made
        bps.shutdown()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


def members(job: ElasticJob) -> list[str]:
    return sorted(member.state for member in query_status(job.config()).members)


def check_outside(job: ElasticJob) -> None:
    """Nobody has heard of this process."""
    assert _runtime.pending() is not None
    assert members(job) == ["running", "running"]
    assert [worker.changes for worker in job.workers] == [0, 0]


def give_up_world(job: ElasticJob) -> None:
    """Its workers are gone, and who waits for the next one has it alone."""
    job.workers[0].report(StalledError("round 1 waits for rank 1"), job.workers[0].view.number)
    until(lambda: job.workers[1].error)
    for worker in job.workers:
        worker.leave()


def place() -> tuple[int, int, int, int]:
    return bps.rank(), bps.size(), bps.local_rank(), bps.local_size()


def test_it_stands_where_it_would_if_it_joined_now(job: ElasticJob) -> None:
    bps.init()
    assert place() == (2, 3, 1, 2)
    assert bps.is_initialized() and bps.initialized()
    bps.init()
    check_outside(job)


def test_what_the_launcher_says_of_this_host_counts(job: ElasticJob) -> None:
    bps.init(local_rank=3, local_size=5)
    assert place() == (2, 3, 3, 5)
    check_outside(job)


def an_optimizer() -> Any:
    model = torch.nn.Linear(2, 1)
    return bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def a_compressing_optimizer() -> Any:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), lr=0.1)
    return bps.DistributedOptimizer(optimizer, compression=bps.Compression.fp16)


def a_crossing_optimizer() -> Any:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return bps.DistributedOptimizer(optimizer, model.named_parameters(), cross_barrier=True, model=model)


def a_state() -> Any:
    model = torch.nn.Linear(2, 1)
    state = bps.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.1), step=3)
    state.save()
    state.restore()
    return state


def a_searched_deferral() -> Any:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer, deferred = torch.optim.SGD(model.parameters(), lr=0.1), bps.DeferredBackward(model, steps=1)
    for _ in range(30):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert deferred.searching and not deferred.table, "steps without the others say nothing"
    return deferred


def a_module_without_buffers() -> Any:
    return bps.DistributedDataParallel(torch.nn.Linear(2, 1))(torch.ones(1, 2))


def a_pacer() -> Any:
    pacer = bps.StepPacer(0.0, 0.001)
    pacer.step()
    return pacer


def an_iterated_sampler() -> Any:
    return list(bps.elastic.ElasticSampler(range(12)))


@pytest.mark.parametrize(
    "make",
    [an_optimizer, a_compressing_optimizer, a_crossing_optimizer, a_state, an_iterated_sampler,
     lambda: bps.DistributedDataParallel(torch.nn.Linear(2, 1)), lambda: bps.elastic.ElasticSampler(range(12)),
     bps.DDPHookState, a_searched_deferral, a_module_without_buffers, a_pacer],
    ids=["optimizer", "compression", "cross barrier", "state", "samples", "module", "sampler", "hook", "deferral",
         "forward", "pacer"],
)  # fmt: skip
def test_what_a_script_makes_does_not_join(job: ElasticJob, make: Callable[[], Any]) -> None:
    bps.init()
    assert make() is not None
    check_outside(job)


def test_steps_of_others_optimizers_do_not_join(job: ElasticJob) -> None:
    bps.init()
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    parameter.sum().backward()
    optimizer.step()
    assert parameter.tolist() == [0.5, 0.5]
    check_outside(job)


def test_questions_do_not_join(job: ElasticJob) -> None:
    bps.init()
    assert set(bps.stats().values()) == {0} and "payload_received" in bps.stats()
    report = bps.elastic.report()
    assert (report.world, report.size, report.rank, report.steps) == (0, 3, 2, ())
    assert not report.under_way.lacks
    check_outside(job)


def test_who_joins_another_job_beside_does_not_join(job: ElasticJob, monkeypatch: pytest.MonkeyPatch) -> None:
    bps.init()
    other = LocalWorker()
    monkeypatch.setattr(session, "connect", lambda _: other)
    assert join_beside(job.config()) is other
    check_outside(job)


@pytest.mark.parametrize(
    ("operation", "result"),
    [(lambda: bps.push_pull(torch.ones(2)).tolist(), [1.0, 1.0]), (lambda: bps.broadcast_object("own", 0), "own"),
     (lambda: bps.barrier(), None), (lambda: bps.allgather_object(7), [7]),
     (lambda: bps.broadcast_parameters(torch.nn.Linear(2, 1).state_dict(), 0), None)],
    ids=["push_pull", "broadcast_object", "barrier", "allgather_object", "broadcast_parameters"],
)  # fmt: skip
def test_its_first_operation_joins(
    job: ElasticJob, pool: ThreadPoolExecutor, operation: Callable[[], Any], result: Any
) -> None:
    bps.init()
    call = pool.submit(operation)
    until(lambda: job.workers[0].changes == job.workers[1].changes == 1)
    assert members(job) == ["running", "running", "waiting"]
    assert place() == (2, 3, 1, 2), "until it is in a world"
    assert not call.done()
    give_up_world(job)
    assert call.result(PATIENCE) == result
    assert _runtime.pending() is None and bps.is_initialized()
    assert place() == (0, 1, 0, 1)


def test_the_first_step_joins(job: ElasticJob, pool: ThreadPoolExecutor) -> None:
    bps.init()
    parameter = torch.ones(2, requires_grad=True)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.5))

    def step() -> None:
        parameter.sum().backward()
        optimizer.step()

    call = pool.submit(step)
    until(lambda: job.workers[0].changes)
    give_up_world(job)
    call.result(PATIENCE)
    assert parameter.tolist() == [0.5, 0.5] and bps.size() == 1


def test_several_threads_join_once(job: ElasticJob, pool: ThreadPoolExecutor) -> None:
    bps.init()
    calls: list[Future[Any]] = [pool.submit(bps.push_pull, torch.ones(2), name=f"{number}") for number in range(4)]
    until(lambda: job.workers[0].changes)
    assert members(job) == ["running", "running", "waiting"]
    give_up_world(job)
    assert [call.result(PATIENCE).tolist() for call in calls] == [[1.0, 1.0]] * 4
    assert members(job) == ["running"]


def test_who_can_not_join_may_try_again(job: ElasticJob) -> None:
    bps.init(join_timeout=0.3)
    job.scheduler.stop()
    for _ in range(2):
        with pytest.raises(DeadlineError, match="can't reach the scheduler"):
            bps.push_pull(torch.ones(2))
        assert bps.is_initialized() and place() == (2, 3, 1, 2)
    bps.shutdown()
    assert not bps.is_initialized()


@pytest.mark.parametrize("leave", [bps.shutdown, bps.suspend])
def test_who_leaves_before_it_has_joined_was_never_there(job: ElasticJob, leave: Callable[[], None]) -> None:
    bps.init()
    check_outside(job)
    leave()
    assert not bps.is_initialized() and _runtime.pending() is None
    with pytest.raises(NotInitializedError):
        bps.push_pull(torch.ones(2))
    assert members(job) == ["running", "running"]
    assert [worker.changes for worker in job.workers] == [0, 0]
    assert query_status(job.config()).text == ""


def test_shutdown_forgets_its_place(job: ElasticJob) -> None:
    bps.init()
    bps.shutdown()
    for asked in (bps.rank, bps.size, bps.local_rank, bps.local_size):
        with pytest.raises(NotInitializedError):
            asked()
    bps.init()
    check_outside(job)


def test_suspend_keeps_its_place_and_resume_comes_again(job: ElasticJob) -> None:
    bps.init()
    bps.suspend()
    assert place() == (2, 3, 1, 2)
    bps.resume(2, 0)
    assert place() == (2, 3, 1, 2) and bps.is_initialized()
    check_outside(job)


def test_a_worker_that_is_bound_to_a_thread_comes_first(job: ElasticJob) -> None:
    bps.init()
    with _runtime.bound(LocalWorker()):
        assert bps.push_pull(torch.ones(2)).tolist() == [1.0, 1.0]
    check_outside(job)


def test_there_is_no_such_place(job: ElasticJob) -> None:
    """Then `init()` joins."""
    config = job.config()
    assert place_beside(config) is not None
    with returning():
        assert place_beside(config) is None
    assert place_beside(job.config(elastic=False, max_workers=None)) is None
    assert place_beside(job.config(scheduler="127.0.0.1:1")) is None
    assert place_beside(job.config(secret="another secret than that of the job")) is None
    waiting, _ = job.join()
    until(lambda: job.workers[0].changes)
    beside = place_beside(config)
    assert beside is not None and beside.size == 3, "who waits is not counted"
    waiting.leave()
    give_up_world(job)
    assert place_beside(config) is None
