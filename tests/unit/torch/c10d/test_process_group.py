"""The c10d surface over groups of threads: what each call does, what it refuses, how errors reach torch."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from byteps_like.errors import DeadlineError, InvalidArgumentError, MismatchError, ShutdownError
from byteps_like.torch.c10d.futures import Callbacks, CallFuture
from byteps_like.torch.c10d.process_group import ProcessGroup
from byteps_like.torch.device.tensors import WIRE_DTYPES
from tests.fakes.thread_process_groups import run_groups
from tests.scenarios.c10d import calls as c10d


@pytest.mark.parametrize("scenario", c10d.SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_scenario(size: int, scenario: Callable[..., None]) -> None:
    run_groups(size, scenario)


def single(body: Callable[[ProcessGroup], Any]) -> Any:
    """`body` with a group of one."""
    return run_groups(1, lambda group, rank, size: body(group))[0]


class _Wrapper(torch.Tensor):
    """A tensor as DTensor is one: its memory is another tensor's."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> _Wrapper:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError


REFUSED: dict[str, tuple[Callable[[ProcessGroup], Any], str]] = {
    "not_contiguous": (lambda g: g.allreduce([torch.ones(4, 4).t()]), "allreduce: tensors is not contiguous.*strides"),
    "part_not_contiguous": (
        lambda g: g.allgather([[torch.ones(4, 4).t()]], [torch.ones(4, 4)]),
        r"allgather: output_list\[0\] is not contiguous",
    ),
    "sparse": (lambda g: g.broadcast([torch.eye(2).to_sparse()], 0), "broadcast: tensors is sparse.*to_dense"),
    "sparse_rows": (lambda g: g.allreduce([torch.eye(2).to_sparse_csr()]), "allreduce: tensors is sparse.*to_dense"),
    "sparse_max": (
        lambda g: g.allreduce([torch.eye(2).to_sparse()], dist.ReduceOp.MAX),
        "sparse tensors can't be reduced with MAX; use SUM or AVG",
    ),
    "sparse_bool": (lambda g: g.allreduce([torch.eye(2).bool().to_sparse()]), r"of torch\.bool can't be summed"),
    "meta": (lambda g: g.allreduce([torch.ones(2, device="meta")]), "Tensor on meta without memory of its own"),
    "wrapper": (lambda g: g.allreduce([_Wrapper(torch.ones(2))]), "is a _Wrapper on cpu without memory.*DTensor"),
    "no_tensor": (lambda g: g.broadcast(["text"], 0), "broadcast: tensors is of type str"),
    "two_tensors": (lambda g: g.allreduce([torch.ones(1)] * 2), "must be one tensor, not 2"),
    "conjugated": (lambda g: g.allreduce([torch.ones(2, dtype=torch.cfloat).conj()]), "lazily conjugated"),
    "float_bits": (lambda g: g.allreduce([torch.ones(1)], dist.ReduceOp.BAND), "BAND is not defined for torch.float32"),
    "complex_max": (
        lambda g: g.allreduce([torch.ones(1, dtype=torch.cfloat)], dist.ReduceOp.MAX),
        "MAX is not defined for torch.complex64",
    ),
    "gather_size": (lambda g: g.all_gather_single(torch.ones(3), torch.ones(2)), "output has 3 elements, 1 inputs"),
    "gather_type": (lambda g: g.all_gather_single(torch.ones(2).int(), torch.ones(2)), "int32, the other tensor"),
    "list_length": (lambda g: g.allgather([[]], [torch.ones(1)]), "needs 1 tensors, one per rank, not 0"),
    "splits": (
        lambda g: g.all_to_all_single(torch.ones(3), torch.ones(3), [3], [2]),
        r"input_split_sizes \[2\] must be 1 numbers that add up to 3",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, text = REFUSED[name]

    def body(group: ProcessGroup) -> None:
        with pytest.raises(InvalidArgumentError, match=text):
            call(group)

    single(body)


def test_uneven_all_to_all_without_splits_is_refused() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        with pytest.raises(InvalidArgumentError, match="2 ranks can't share evenly"):
            group.all_to_all_single(torch.ones(3), torch.ones(3))

    run_groups(2, body)


MISMATCHES: dict[str, Callable[[ProcessGroup, int], Any]] = {
    "operation": lambda g, r: g.allreduce([torch.ones(2)]) if r else g.broadcast([torch.ones(2)], 0),
    "reduction": lambda g, r: g.allreduce([torch.ones(2)], (dist.ReduceOp.SUM, dist.ReduceOp.MAX)[r]),
    "count": lambda g, r: g.allreduce([torch.ones(2 + r)]),
    "dtype": lambda g, r: g.allreduce([torch.ones(2).to((torch.int32, torch.float32)[r])]),
    "root": lambda g, r: g.broadcast([torch.ones(2)], r),
}


@pytest.mark.parametrize("name", MISMATCHES)
def test_mismatch_is_raised_by_wait_on_every_rank(name: str) -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        work = MISMATCHES[name](group, rank)
        with pytest.raises(MismatchError):
            work.wait()
        assert work.is_completed() and not work.is_success()
        assert isinstance(work.exception(), MismatchError)
        with pytest.raises(RuntimeError, match="rank 0"):
            work.get_future().wait()

    run_groups(2, body)


def test_errors_reach_whoever_waits_for_a_future() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        future = group.allreduce([torch.ones(2 + rank)]).get_future()
        seen = future.then(lambda done: done.value())
        for item in (future, seen, torch.futures.collect_all([future])):
            with pytest.raises(MismatchError):
                item.wait()

    run_groups(2, body)


def test_what_cpp_finds_in_a_failed_future_raises_the_error() -> None:
    future, found = CallFuture(Callbacks()), []
    future.set_result = found.append  # type: ignore[method-assign]
    future.set_exception(MismatchError("sizes differ"))
    for use in (lambda: torch.zeros(2).copy_(found[0]), lambda: found[0].view(-1), lambda: torch.cat(found)):
        with pytest.raises(MismatchError, match="sizes differ"):
            use()


def test_timeouts() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        if rank == 1:
            return
        options = dist.BarrierOptions()
        options.timeout = timedelta(seconds=0.05)
        with pytest.raises(DeadlineError, match=r"waiting for ranks \[1\]"):
            group.barrier(options).wait()
        with pytest.raises(DeadlineError, match=r"timed out after the timeout of 0\.05 s"):
            group.allreduce([torch.ones(1)]).wait(timedelta(seconds=0.05))
        group.set_timeout(timedelta(seconds=0.07))
        with pytest.raises(DeadlineError, match=r"timed out after the timeout of 0\.07 s"):
            group.allreduce([torch.ones(1)]).wait()

    run_groups(2, body)


def test_monitored_barrier_names_the_missing() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> str:
        group.monitored_barrier(timedelta(seconds=5))
        if rank in (1, 3):
            return ""
        with pytest.raises(DeadlineError) as caught:
            group.monitored_barrier(timedelta(seconds=0.3), wait_all_ranks=True)
        return str(caught.value)

    texts = run_groups(5, body)
    assert [bool(text) for text in texts] == [True, False, True, False, True]
    assert texts[0].startswith("Rank 0 timed out in monitoredBarrier after 300 ms: ")
    reached = (
        "Rank 4 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0"
    )
    assert texts[4].startswith(reached)
    assert all("Ranks 1, 3 failed to pass monitoredBarrier in 300 ms" in text for text in texts if text)


def test_monitored_barrier_takes_a_timeout_of_nothing() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        if rank == 0:
            with pytest.raises(DeadlineError, match="Rank 0 timed out in monitoredBarrier after 0 ms"):
                group.monitored_barrier(timedelta(0))

    run_groups(2, body)


def test_monitored_barrier_names_rank_0() -> None:
    def body(group: ProcessGroup, rank: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        if rank:
            with pytest.raises(DeadlineError, match="Rank 0 failed to pass monitoredBarrier in 100 ms"):
                group.monitored_barrier(timedelta(seconds=0.1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("byteps_like.torch.c10d.monitored._GRACE", 0.1)
        run_groups(2, body, patch)


def test_callbacks_may_wait_for_other_collectives() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        def again(future: torch.futures.Future) -> torch.Tensor:
            tensor = future.value()[0]
            group.allreduce([tensor]).wait()
            return tensor

        for _ in range(8):
            tensor = group.allreduce([torch.ones(2)]).get_future().then(again).wait()
            assert tensor.tolist() == [4.0, 4.0]

    run_groups(2, body)


def test_callbacks_may_start_collectives_beside_the_program() -> None:
    """Ranks differ in whether an operation has ended when its callback is added, and in how long callbacks take."""

    def body(group: ProcessGroup, rank: int, size: int) -> None:
        def again(future: torch.futures.Future) -> torch.Tensor:
            time.sleep(0.003 * rank)
            count = future.value()[0].numel() + 1
            return group.allreduce([torch.ones(count)]).get_future().wait()

        outcomes = []
        for number in range(8):
            future = group.allreduce([torch.ones(2)]).get_future()
            time.sleep(0.004 * ((number + rank) % 2))
            outcomes.append(future.then(again).then(again))
        for outcome in outcomes:
            assert outcome.wait()[0].tolist() == [size] * 4

    run_groups(3, body)


def test_callbacks_may_wait_for_callbacks_that_they_add() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        def nested(depth: int) -> torch.Tensor:
            future = group.allreduce([torch.ones(depth + 1)]).get_future()
            return future.then(lambda _: nested(depth - 1)).wait() if depth else future.wait()[0]

        outcomes = [group.barrier().get_future().then(lambda _: nested(3)) for _ in range(3)]
        group.allreduce([torch.ones(9)]).wait()
        assert [outcome.wait().tolist() for outcome in outcomes] == [[size]] * 3

    run_groups(2, body)


def test_callbacks_run_in_the_order_in_which_they_are_added() -> None:
    def body(group: ProcessGroup) -> None:
        seen: list[int] = []
        futures = [group.allreduce([torch.ones(1)]).get_future() for _ in range(4)]
        for number in (2, 0, 3, 1):
            futures[number].add_done_callback(lambda _, number=number: seen.append(number))
        futures[0].then(lambda _: 1 / 0)
        last = futures[0].then(lambda _: threading.get_ident())
        assert last.wait() != threading.get_ident()
        assert seen == [2, 0, 3, 1]
        group.shutdown()
        assert futures[0].then(lambda _: 7).wait() == 7

    single(body)


def test_dropped_work_keeps_its_tensors_alive() -> None:
    class Pending:
        source = -1

        def __init__(self) -> None:
            self.callbacks: list[Callable[[], None]] = []

        def done(self) -> bool:
            return False

        def on_done(self, callback: Callable[[], None]) -> None:
            self.callbacks.append(callback)

    from byteps_like.torch.c10d.work import Work

    class Token:
        alive = True

        def __del__(self) -> None:
            Token.alive = False

    operation: Any = Pending()
    work = Work(operation, [], Token(), Callbacks())
    del work
    assert Token.alive
    operation.callbacks.pop()()
    assert not Token.alive


def test_shutdown_and_abort() -> None:
    def body(group: ProcessGroup) -> None:
        part = group.split_group([0])
        assert part is not None
        part.shutdown()
        with pytest.raises(ShutdownError, match="was destroyed"):
            part.allreduce([torch.ones(1)])
        group.allreduce([torch.ones(1)]).wait()
        group.abort()
        group.shutdown()
        assert group.world.closed
        with pytest.raises(ShutdownError, match="was aborted"):
            group.barrier()

    single(body)


def test_abort_ends_what_is_in_flight() -> None:
    def body(group: ProcessGroup, rank: int, size: int) -> None:
        if rank == 0:
            work = group.allreduce([torch.ones(1)])
            threading.Timer(0.05, group.abort).start()
            with pytest.raises(ShutdownError):
                work.wait()

    run_groups(2, body)


def test_every_element_type_of_the_core_has_one_of_torch() -> None:
    assert all(torch.empty(0, dtype=kind).element_size() == code.itemsize for kind, code in WIRE_DTYPES.items())


def test_options_are_checked() -> None:
    from byteps_like.torch.c10d.backend import create
    from byteps_like.torch.c10d.options import GroupOptions

    with pytest.raises(InvalidArgumentError, match="neither 'fast' nor 'ordered'"):
        GroupOptions(reduction="exact")
    with pytest.raises(InvalidArgumentError, match="GroupOptions, not dict"):
        create(None, {})


def test_an_ordered_group_makes_ordered_calls() -> None:
    from byteps_like.torch.c10d.options import CallDefaults, GroupOptions

    defaults = CallDefaults(GroupOptions(reduction="ordered", algorithm="ring"), timedelta(seconds=5))
    for options in (defaults.default, defaults.get(None), defaults.get(timedelta(seconds=2), waits=True)):
        assert (options.reduction, options.algorithm) == ("ordered", "ring")
