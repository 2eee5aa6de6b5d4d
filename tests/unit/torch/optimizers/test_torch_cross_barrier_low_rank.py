"""What of PowerSGD waits for what when updates cross the barrier, with a network that delivers as the test wants."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import byteps_like.torch as bps
from byteps_like.errors import PeerLostError
from byteps_like.torch.device import inflight
from byteps_like.torch.gradients.low_rank import LowRankArena
from byteps_like.torch.job import runtime
from tests.fakes.held_worker import DEADLINE, HeldHandle, HeldWorker
from tests.scenarios.models import fill

FACTORS = {"*weight": "powersgd:rank=1"}
LAYERS = 3
WIDTH = 16
NBYTES = WIDTH * 8
"""Of a factor of rank 1: a partition."""


def layers() -> nn.Sequential:
    return fill(nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).double())


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 4 * WIDTH, dtype=torch.float64).reshape(4, WIDTH)


def optimizer_of(model: nn.Module, crosses: bool) -> Any:
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    return bps.DistributedOptimizer(
        plain, model.named_parameters(), compression=FACTORS, cross_barrier=crosses, model=model
    )


@pytest.fixture
def step() -> Iterator[Any]:
    """A model after a step() of which nothing has landed: `worker`, `model`, `optimizer`, `before` (its weights),
    `waited` (what was waited for while it was in flight)."""
    worker, waited = HeldWorker(NBYTES), []

    def wait(flight: HeldHandle) -> None:
        waited.append(flight)
        flight.comes()

    worker.on_wait = wait
    with runtime.bound(worker):
        yield stepped(worker, waited)
        worker.holding = False
        worker.land_all()


def stepped(worker: HeldWorker, waited: list[HeldHandle]) -> Any:
    model = layers()
    optimizer = optimizer_of(model, crosses=True)
    for holding in (False, True):
        worker.holding = holding
        model(x()).square().sum().backward()
        before = [weight.detach().clone() for weight in model.parameters()]
        optimizer.step()
    return SimpleNamespace(worker=worker, model=model, optimizer=optimizer, before=before, waited=waited)


def updated(step: Any) -> list[bool]:
    return [not torch.equal(*pair) for pair in zip(step.model.parameters(), step.before, strict=True)]


def until(true: Callable[[], bool]) -> None:
    """Waits for what a thread does in the background."""
    end = time.monotonic() + DEADLINE
    while not true():
        assert time.monotonic() < end, "it hasn't come about"
        time.sleep(0.001)


def flights(step: Any, factor: str) -> dict[int, HeldHandle]:
    """Those of the first factors, "p", or of the second, "q", by partitions: one for each layer, the last one first,
    then the control elements, if they have one of their own."""
    sent = [flight for flight in list(step.worker.flights) if flight.name.endswith(f".{factor}")]
    return {part: flight for flight in sent for part in flight.parts}


def land(step: Any, factor: str, error: Exception | None = None) -> None:
    until(lambda: len(flights(step, factor)) == LAYERS + 1)
    for flight in flights(step, factor).values():
        flight.land(error)


def place(layer: int) -> int:
    """Of a layer's partition."""
    return LAYERS - 1 - layer


def test_step_sends_the_first_factors_and_returns(step):
    assert len(flights(step, "p")) == LAYERS + 1 and not flights(step, "q")
    assert updated(step) == [False] * LAYERS


def test_the_second_go_when_the_first_have_landed_though_nobody_asks(step):
    land(step, "p")
    until(lambda: len(flights(step, "q")) == LAYERS + 1)
    assert updated(step) == [False] * LAYERS


def test_the_second_go_one_by_one_most_urgent_first(step):
    first = flights(step, "p")
    for part in (LAYERS, place(0)):  # the control elements, and the first layer
        first[part].land()
    until(lambda: place(0) in flights(step, "q"))
    assert place(1) not in flights(step, "q")
    first[place(1)].land()
    until(lambda: place(1) in flights(step, "q"))
    assert place(2) not in flights(step, "q")


def test_before_all_it_is_waited_for_the_word_that_all_ranks_made_the_step(step):
    for layer in range(LAYERS):
        flights(step, "p")[place(layer)].land()
    until(lambda: bool(step.waited))
    assert step.waited == [flights(step, "p")[LAYERS]] and not flights(step, "q")


def test_second_factors_of_layers_near_the_input_are_the_most_urgent(step):
    land(step, "p")
    until(lambda: len(flights(step, "q")) == LAYERS + 1)
    assert [flight.priority for _, flight in sorted(flights(step, "q").items())] == list(range(LAYERS + 1))


def test_a_layer_waits_for_its_own_second_factor(step):
    land(step, "p")
    until(lambda: len(flights(step, "q")) == LAYERS + 1)
    for part in (LAYERS, place(0)):
        flights(step, "q")[part].land()
    step.model[0](x())
    assert updated(step) == [True, False, False]


def reference() -> nn.Module:
    """After two steps that have waited."""
    model = layers()
    with runtime.bound(HeldWorker(NBYTES)):
        optimizer = optimizer_of(model, crosses=False)
        for _ in range(2):
            optimizer.zero_grad()
            model(x()).square().sum().backward()
            optimizer.step()
    return model


@pytest.mark.parametrize("late", range(LAYERS + 1))
def test_a_first_factor_that_lands_late_makes_no_difference(step, late):
    for part, flight in flights(step, "p").items():
        if part != late:
            flight.land()
    forward = threading.Thread(target=step.model, args=(x(),))
    forward.start()
    flights(step, "p")[late].land()
    land(step, "q")
    forward.join(DEADLINE)
    assert updated(step) == [True] * LAYERS
    assert all(torch.equal(*pair) for pair in zip(step.model.parameters(), reference().parameters(), strict=True))


@pytest.mark.parametrize("factor", ["p", "q"])
def test_an_error_of_either_factor_is_raised_by_the_next_forward(step, factor):
    if factor == "q":
        land(step, "p")
    land(step, factor, PeerLostError("rank 1 is gone"))
    with pytest.raises(PeerLostError, match="rank 1 is gone") as caught:
        step.model(x())
    assert any(f"{LAYERS} parameters" in note for note in caught.value.__notes__)
    assert updated(step) == [False] * LAYERS
    step.worker.holding = False
    for _ in range(2):  # what was lost is not waited for again
        step.optimizer.zero_grad()
        step.model(x()).square().sum().backward()
        step.optimizer.step()
    step.optimizer.synchronize()
    assert updated(step) == [True] * LAYERS


def test_what_keeps_the_second_from_being_sent_is_raised_by_the_next_forward(step, monkeypatch):
    def broken(*_: Any, **__: Any) -> None:
        raise PeerLostError("rank 1 is gone")

    monkeypatch.setattr(step.worker, "push_pull", broken)
    land(step, "p")
    with pytest.raises(PeerLostError, match="rank 1 is gone"):
        step.model(x())
    assert updated(step) == [False] * LAYERS


def test_what_was_sent_before_an_error_has_landed_when_that_is_raised(step, monkeypatch):
    """Nobody else would wait for it, and the next round uses its memory."""
    turn, errors = LowRankArena._turn, []

    def broken(self: LowRankArena, *arguments: Any) -> None:
        turn(self, *arguments)
        raise PeerLostError("rank 1 is gone")

    def forward() -> None:
        try:
            step.model(x())
        except PeerLostError as error:
            errors.append(error)

    with monkeypatch.context() as patch:
        patch.setattr(LowRankArena, "_turn", broken)
        land(step, "p")
        until(lambda: len(flights(step, "q")) == 2)  # the control elements, and a layer's
        thread = threading.Thread(target=forward)
        thread.start()
        sent = list(flights(step, "q").values())
        until(lambda: any(flight in step.waited for flight in sent))
        assert not errors
        step.worker.land_all()
        thread.join(DEADLINE)
    assert len(errors) == 1 and updated(step) == [False] * LAYERS
    step.worker.holding = False
    for _ in range(2):
        step.optimizer.zero_grad()
        step.model(x()).square().sum().backward()
        step.optimizer.step()
    step.optimizer.synchronize()
    assert updated(step) == [True] * LAYERS


def test_a_step_that_is_dropped_still_sends_its_second_factors(step, monkeypatch):
    """Other ranks wait for them. Until they have landed the names stay, and the memory."""
    retired: list[str] = []
    monkeypatch.setattr(step.worker, "retire", lambda declared: retired.append(declared.spec.name), raising=False)
    monkeypatch.setattr(step.worker, "use", lambda links: None, raising=False)
    del step.model, step.optimizer
    gc.collect()
    land(step, "p")
    until(lambda: len(flights(step, "q")) == LAYERS + 1)
    assert not retired
    land(step, "q")
    gc.collect()
    inflight.release()
    assert any(name.endswith(".q") for name in retired)


def test_partitions_in_which_nothing_lies_are_sent_too():
    """Factors of five elements, each in a place of sixteen, two to a partition."""
    worker = HeldWorker(16)
    with runtime.bound(worker):
        model = fill(nn.Sequential(nn.Linear(5, 7, bias=False), nn.Linear(7, 5, bias=False)).double())
        optimizer = optimizer_of(model, crosses=True)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(2, 5).double()).square().sum().backward()
            optimizer.step()
        optimizer.synchronize()
