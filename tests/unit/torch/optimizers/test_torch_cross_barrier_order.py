"""What waits for what when updates cross the barrier, with a network that delivers in the order that the test wants."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import byteps_like.torch as bps
from byteps_like.errors import MismatchError
from byteps_like.torch.device import inflight
from byteps_like.torch.job import runtime
from byteps_like.torch.reduction import sparse
from byteps_like.torch.reduction.sparse_landing import RowSum
from tests.fakes.held_worker import HeldHandle, HeldWorker
from tests.scenarios.models import fill

LAYERS = 4
NBYTES = 16 * 8  # of a layer's weight: one partition


def layers() -> nn.Sequential:
    """Four layers with a partition each."""
    return fill(nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(LAYERS))).double())


@pytest.fixture
def step() -> Iterator[Any]:
    """A model after a step() of which nothing has landed: `worker`, `model`, `optimizer`, `before` (its weights)."""
    worker = HeldWorker(NBYTES)
    with runtime.bound(worker):
        yield stepped(worker)
        worker.on_wait = None
        worker.land_all()


def stepped(worker: HeldWorker, model: nn.Module | None = None) -> Any:
    model = model or layers()
    optimizer = bps.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for holding in (False, True):
        worker.holding = holding
        model(x()).sum().backward()
        before = [weight.detach().clone() for weight in model.parameters()]
        optimizer.step()
    return SimpleNamespace(worker=worker, model=model, optimizer=optimizer, before=before)


def updated(step: Any) -> list[bool]:
    return [not torch.equal(*pair) for pair in zip(step.model.parameters(), step.before, strict=True)]


def flights_of(step: Any, layer: int) -> HeldHandle:
    """Backward makes the last layer ready first, so layers lie in reverse order."""
    return next(flight for flight in step.worker.flights if LAYERS - 1 - layer in flight.parts)


def commit_of(step: Any) -> HeldHandle:
    return next(flight for flight in step.worker.flights if LAYERS in flight.parts)


def x() -> torch.Tensor:
    return torch.ones(2, 4, dtype=torch.float64)


def test_step_returns_while_nothing_has_landed(step):
    assert sorted(part for flight in step.worker.flights for part in flight.parts) == list(range(LAYERS + 1))
    assert updated(step) == [False] * LAYERS
    step.optimizer.zero_grad()


def test_the_first_layer_goes_ahead_while_the_last_is_in_flight(step):
    commit_of(step).land()
    hidden = x()
    for number in range(LAYERS):
        flights_of(step, number).land()
        hidden = step.model[number](hidden)
        assert updated(step) == [other <= number for other in range(LAYERS)]
    step.optimizer.synchronize()


def test_a_layer_is_not_kept_up_by_those_before_it(step):
    commit_of(step).land()
    flights_of(step, 2).land()
    step.model[2](x())
    assert updated(step) == [False, False, True, False]


def test_a_layer_waits_for_its_own(step):
    for number in (1, 2, 3):
        flights_of(step, number).land()
    commit_of(step).land()
    with pytest.raises(AssertionError, match="in flight"):
        step.model(x())


def test_nothing_is_updated_before_it_is_known_that_all_ranks_made_the_step(step):
    for number in range(LAYERS):
        flights_of(step, number).land()
    with pytest.raises(AssertionError, match=rf"{LAYERS}"):
        step.model[3](x())
    assert updated(step) == [False] * LAYERS


def test_what_has_landed_is_updated_while_the_first_layer_is_waited_for(step):
    """Most urgent first: of layers 1 and 3, both there, layer 1."""
    order: list[list[bool]] = []

    def wait(flight: HeldHandle) -> None:
        order.append(updated(step))
        flight.land()

    commit_of(step).land()
    step.worker.on_wait = wait
    flights_of(step, 1).land()
    flights_of(step, 3).land()
    step.model[0](x())
    assert order == [[False, True, False, True]]
    assert updated(step) == [True, True, False, True]


class HeldSum(RowSum):
    """Lands when the test says so."""

    made: ClassVar[list[HeldSum]] = []

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.landed = False
        self.made.append(self)

    def done(self) -> bool:
        return self.landed

    def wait(self, timeout: float | None = None) -> None:
        assert self.landed, "waited for rows, which are in flight"
        super().wait(timeout)


@pytest.fixture
def with_rows(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A step() of a table, whose gradient is in flight by rows (`rows`), and a layer; see `step`."""
    worker = HeldWorker(NBYTES)
    model = nn.ModuleDict({"table": nn.Embedding(9, 4, sparse=True), "layer": nn.Linear(4, 4, bias=False)}).double()
    with runtime.bound(worker):
        optimizer = bps.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for number in range(3):  # the first step finds the rows, the second has a new arena
            if number == 2:
                worker.holding = True
                monkeypatch.setattr(sparse, "RowSum", HeldSum)
            model["layer"](model["table"](torch.tensor([1, 5]))).sum().backward()
            before = [weight.detach().clone() for weight in model.parameters()]
            optimizer.step()
        (rows,), HeldSum.made[:] = HeldSum.made, []
        yield SimpleNamespace(worker=worker, model=model, optimizer=optimizer, before=before, rows=rows)
        worker.land_all()
        rows.landed = True


def test_only_its_own_module_waits_for_rows(with_rows):
    with_rows.worker.land_all()
    with_rows.model["layer"](x())
    assert updated(with_rows) == [False, True]
    with pytest.raises(AssertionError, match="rows"):
        with_rows.model["table"](torch.tensor([1]))


def test_rows_are_an_update_once_they_have_landed(with_rows):
    with_rows.worker.land_all()
    with_rows.rows.landed = True
    with_rows.model["table"](torch.tensor([1]))
    assert updated(with_rows) == [True, False]
    changed = (with_rows.model["table"].weight != with_rows.before[0]).any(1)
    assert changed.nonzero().flatten().tolist() == [1, 5]


def test_rows_wait_for_the_word_that_all_ranks_made_the_step(with_rows):
    with_rows.rows.landed = True
    with pytest.raises(AssertionError, match="partitions"):
        with_rows.model["table"](torch.tensor([1]))
    assert updated(with_rows) == [False, False]


def test_rows_are_no_update_if_a_rank_threw_the_step_away(with_rows, monkeypatch):
    """The word is the arena's, of which nothing else has landed."""

    def thrown_away() -> None:
        raise MismatchError("thrown away")

    (arena,) = with_rows.optimizer._distribution.reducer.parameters.buckets
    monkeypatch.setattr(arena, "check_agreed", thrown_away)
    with_rows.worker.on_wait = lambda flight: flight.land()
    with_rows.rows.landed = True
    next(flight for flight in with_rows.worker.flights if arena.commits.start in flight.parts).land()
    with pytest.raises(MismatchError, match="thrown away"):
        with_rows.model["table"](torch.tensor([1]))
    assert updated(with_rows) == [False, False]


class Mixed(nn.Module):
    """Three layers in float64, then a small one in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = fill(nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(3))).double())
        self.narrow = fill(nn.Linear(4, 2, bias=False))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.narrow(self.wide(data).float())


def test_element_types_do_not_wait_for_each_other():
    """Each has an arena, and each arena's last partition is as urgent as the other's."""
    worker = HeldWorker(NBYTES)
    with runtime.bound(worker):
        made = stepped(worker, Mixed())
        narrow = [flight for flight in worker.flights if "float32" in flight.name]
        wide = [flight for flight in worker.flights if "float64" in flight.name]
        assert max(flight.priority for flight in narrow) == max(flight.priority for flight in wide) == 3
        assert [flight.priority for flight in wide] == [flight.parts.start for flight in wide]
        for flight in narrow:
            flight.land()
        made.model.narrow(torch.ones(2, 4))
        assert updated(made) == [False, False, False, True]
        worker.land_all()


class Reader(nn.Module):
    """Reads its layer's weight without calling it, but in training it calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = fill(nn.Linear(4, 4, bias=False).double())

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.inner(data) if self.training else data @ self.inner.weight.T


def test_a_module_in_eval_mode_waits_for_all_below_it():
    worker = HeldWorker(NBYTES)
    with runtime.bound(worker):
        made = stepped(worker, Reader())
        worker.land_all()
        output = made.model.eval()(x())
        assert updated(made) == [True]
        assert torch.equal(output, x() @ made.model.inner.weight.T)


def test_the_next_step_finishes_this_one(step):
    commit_of(step).land()
    for number in (0, 1, 2):
        flights_of(step, number).land()
    step.worker.on_wait = lambda flight: flight.land()
    step.optimizer.step()
    assert updated(step) == [True] * LAYERS
    step.worker.land_all()


@pytest.mark.parametrize(
    "call",
    [
        lambda step: step.optimizer.synchronize(),
        lambda step: step.optimizer.state_dict(),
        lambda step: step.optimizer.load_state_dict(torch.optim.SGD(layers().parameters(), lr=0.2).state_dict()),
        lambda step: step.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]}),
        lambda step: step.optimizer.close(),
        lambda step: step.model.state_dict(),
        lambda step: step.model[2].state_dict(),
        lambda step: step.model.load_state_dict(layers().state_dict(), strict=False) and None,
        lambda step: step.model.eval()(x()),
        lambda step: bps.join(),
        lambda step: bps.broadcast_parameters(step.model.named_parameters()),
        lambda step: runtime.current().close(),
    ],
    ids=[
        "synchronize", "state_dict", "load_state_dict", "add_param_group", "close", "model.state_dict",
        "part.state_dict", "model.load_state_dict", "eval", "join", "broadcast_parameters", "shutdown",
    ],
)  # fmt: skip
def test_what_waits_for_all_updates(step: Any, call: Callable[[Any], Any]) -> None:
    waited: list[HeldHandle] = []

    def wait(flight: HeldHandle) -> None:
        waited.append(flight)
        flight.land()

    step.worker.on_wait = wait
    call(step)
    assert set(waited) == set(step.worker.flights)
    assert updated(step) == [True] * LAYERS


@pytest.mark.parametrize("landed", list(itertools.permutations(range(LAYERS)))[::5])
def test_any_order_of_landing_gives_the_same_weights(step: Any, landed: tuple[int, ...]) -> None:
    queue = [commit_of(step), *(flights_of(step, number) for number in landed)]

    def wait(_: HeldHandle) -> None:
        next(flight for flight in queue if not flight.landed).land()

    def wait_for(flight: HeldHandle) -> None:
        while not flight.landed:
            wait(flight)

    step.worker.on_wait = wait_for
    step.model(x())
    reference = layers()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        plain.zero_grad()
        reference(x()).sum().backward()
        plain.step()
    assert all(torch.equal(*pair) for pair in zip(step.model.parameters(), reference.parameters(), strict=True))


def test_an_error_is_raised_by_the_next_forward_and_says_what_is_lost(step):
    commit_of(step).land()
    flights_of(step, 0).land()
    for number in (1, 2, 3):
        flights_of(step, number).land(bps.PeerLostError("rank 1 is gone"))
    with pytest.raises(bps.PeerLostError, match="rank 1 is gone") as caught:
        step.model(x())
    assert any("3 parameters" in note for note in caught.value.__notes__)
    assert updated(step) == [True, False, False, False]
    step.model(x())  # what was lost is not waited for again


def test_ctrl_c_loses_nothing(step):
    def wait(flight: HeldHandle) -> None:
        raise KeyboardInterrupt

    commit_of(step).land()
    step.worker.on_wait = wait
    with pytest.raises(KeyboardInterrupt):
        step.model(x())
    step.worker.on_wait = None
    step.worker.land_all()
    step.model(x())
    assert updated(step) == [True] * LAYERS


def test_names_in_flight_outlive_model_and_optimizer(step, monkeypatch):
    """Who retires a name says that nothing of it is in flight any more."""
    retired: list[str] = []
    monkeypatch.setattr(step.worker, "retire", lambda declared: retired.append(declared.spec.name), raising=False)
    monkeypatch.setattr(step.worker, "use", lambda links: None, raising=False)
    del step.model, step.optimizer
    gc.collect()
    assert not retired
    step.worker.land_all()
    inflight.release()
    assert {flight.name for flight in step.worker.flights} <= set(retired)


def test_memory_in_flight_outlives_model_and_optimizer(step):
    flights = step.worker.flights
    memory = [weakref.ref(bucket.data) for bucket in step.optimizer._distribution.reducer.parameters.buckets]
    del step.model, step.optimizer
    gc.collect()
    kept = [parked.handles for parked in inflight._parked]
    assert any(set(flights) <= set(handles) for handles in kept)
    assert all(data() is not None for data in memory)
    step.worker.land_all()
    inflight.release()
    gc.collect()
    assert all(data() is None for data in memory)


def test_it_goes_on_in_another_world():
    """suspend() makes the updates of the last step; after resume() the first step waits again."""
    model, reference = layers(), layers()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    optimizer: Any = None
    for _ in range(3):
        worker = HeldWorker(NBYTES)
        worker.holding, worker.on_wait = True, lambda flight: flight.land()
        with runtime.bound(worker):
            optimizer = optimizer or bps.CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
            for _ in range(2):
                for module, owner in ((model, optimizer), (reference, plain)):
                    owner.zero_grad()
                    module(x()).square().sum().backward()
                    owner.step()
        assert all(torch.equal(*pair) for pair in zip(model.parameters(), reference.parameters(), strict=True))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.processes
def test_a_forked_child_does_not_wait(step):
    pid = os.fork()
    if pid == 0:
        try:
            step.model(x())
        except bps.NotInitializedError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
