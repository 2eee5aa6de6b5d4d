"""States and `run` in a world of one: what is kept, restored and called, and when a run gives up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.torch.elastic import agreement, running
from byteps_like.torch.elastic import state as states


@pytest.fixture(autouse=True)
def world() -> Iterator[None]:
    bps.init()
    yield
    bps.shutdown()


@pytest.fixture
def rejoined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As long as the times that the world has changed; nothing is left or joined."""
    times: list[int] = []

    def rejoin(meanwhile) -> None:
        times.append(len(times))
        meanwhile()

    monkeypatch.setattr(running, "rejoin", rejoin)
    return times


def model_of(value: float) -> torch.nn.Linear:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, value)
    torch.nn.init.constant_(model.bias, value)
    return model


def test_values_are_as_they_were_at_the_last_commit() -> None:
    state = bps.elastic.ObjectState(epoch=1, seen=[1])
    state.epoch, state.seen = 2, [1, 2]
    state.restore()
    assert (state.epoch, state.seen) == (1, [1])
    state.seen.append(7)
    state.commit()
    state.seen.append(8)
    state.restore()
    assert state.seen == [1, 7], "kept by value"
    state.sync()
    assert (state.epoch, state.seen) == (1, [1, 7])


def test_models_and_optimizers_are_restored_in_place() -> None:
    model = model_of(1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    state = bps.elastic.TorchState(model, optimizer, batch=0)
    weight, before = model.weight, model.weight.detach().clone()
    for expected in (0, 1):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        state.batch += 1
        if expected:
            state.commit()
            before = weight.detach().clone()
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.25
        state.restore()
        assert model.weight is weight and torch.equal(weight, before)
        assert state.batch == expected and optimizer.param_groups[0]["lr"] == 0.5
        assert bool(optimizer.state) == bool(expected)
    assert state.model is model and state.optimizer is optimizer
    state.sync()


def test_another_model_takes_the_place_of_one() -> None:
    state = bps.elastic.TorchState(model=model_of(1.0), teacher=model_of(2.0))
    assert state.optimizer is None
    state.teacher = model_of(3.0)
    torch.nn.init.zeros_(state.teacher.bias)
    state.restore()
    assert state.teacher.bias.tolist() == [3.0, 3.0] and state.model.bias.tolist() == [1.0, 1.0]
    with pytest.raises(AttributeError, match="no 'student'"):
        _ = state.student


def test_handlers_of_other_kinds_can_be_registered() -> None:
    class Counted:
        value = 0

    class CountedHandler(bps.elastic.StateHandler):
        saved = 0

        def save(self) -> None:
            self.saved = self.value.value

        def restore(self) -> None:
            self.value.value = self.saved

        def sync(self) -> None:
            self.save()

    before = bps.elastic.get_handler_registry()
    bps.elastic.set_handler_registry([*before, (Counted, CountedHandler)])
    try:
        state = bps.elastic.TorchState(counted=Counted())
    finally:
        bps.elastic.set_handler_registry(before)
    state.counted.value = 5
    state.commit()
    state.counted.value = 6
    state.restore()
    assert state.counted.value == 5 and bps.elastic.get_handler_registry() == before


def test_a_loss_restores_and_an_interrupt_does_not(rejoined: list[int]) -> None:
    called, reset = [], []
    state = bps.elastic.ObjectState(step=0)
    state.register_reset_callbacks([lambda: reset.append(state.step)])

    @bps.elastic.run
    def train(state: bps.elastic.ObjectState, *, last: int) -> str:
        called.append(state.step)
        state.step += 1
        state.commit()
        state.step += 10
        if len(called) == 1:
            raise bps.PeerLostError("worker 1 died")
        if len(called) == 2:
            raise bps.HostsUpdatedInterrupt
        return f"{state.step} {last}"

    assert train(state, last=7) == "23 7"
    assert called == [0, 1, 12] and reset == [1, 12] and len(rejoined) == 2
    assert train.__name__ == "train"


@pytest.mark.parametrize("error", [bps.MismatchError, bps.InvalidArgumentError, bps.TooFewWorkersError, KeyError])
def test_what_another_world_would_not_mend_ends_the_run(rejoined: list[int], error: type[Exception]) -> None:
    @bps.elastic.run
    def train(_: bps.elastic.ObjectState) -> None:
        raise error("no")

    with pytest.raises(error):
        train(bps.elastic.ObjectState())
    assert rejoined == []


def test_a_run_gives_up_when_nothing_is_committed_between_changes(rejoined: list[int]) -> None:
    @bps.elastic.run
    def train(state: bps.elastic.ObjectState) -> None:
        if len(rejoined) % 4 == 3 and len(rejoined) < 10:
            state.commit()
        raise bps.ShutdownError("the optimizer's share was in another world")

    with pytest.raises(bps.ShutdownError):
        train(bps.elastic.ObjectState())
    assert len(rejoined) == 12


def test_a_run_gives_up_after_so_many_changes(rejoined: list[int]) -> None:
    @bps.elastic.run(reset_limit=3)
    def train(_: bps.elastic.ObjectState) -> None:
        raise bps.HorovodInternalError

    with pytest.raises(bps.HorovodInternalError):
        train(bps.elastic.ObjectState())
    assert len(rejoined) == 3


def test_a_rank_that_has_not_heard_of_joiners_is_interrupted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    state = bps.elastic.ObjectState(step=0)
    state.step = 4
    monkeypatch.setattr(states, "exchange", lambda own: [list(own), [1, *own[1:]]])
    with pytest.raises(bps.HostsUpdatedInterrupt):
        state.check_host_updates()
    state.restore()
    assert state.step == 0
    state.step = 5
    with pytest.raises(bps.HostsUpdatedInterrupt):
        state.commit()
    state.restore()
    assert state.step == 5, "saved before it was raised"
    assert agreement.changes() == 0


def test_states_of_users_say_how_they_are_kept() -> None:
    class Own(bps.elastic.State):
        def __init__(self) -> None:
            super().__init__(bcast_object=bps.broadcast_object, get_rank=bps.rank)
            self.calls: list[str] = []

        def save(self) -> None:
            self.calls.append("save")

        def reset(self) -> None:
            self.calls.append("reset")

    own = Own()
    own.commit()
    own.on_reset()
    assert own.calls == ["save", "reset"]
    with pytest.raises(NotImplementedError):
        own.restore()


OURS = ("commits", "cut", "feeding", "handlers", "kept", "resume", "saver")
HOROVODS = {
    "check_host_updates", "commit", "model", "on_reset", "optimizer", "register_reset_callbacks", "reset", "restore",
    "save", "sync",
}  # fmt: skip


def test_values_may_have_any_names_that_horovods_states_leave_to_them(tmp_path: Path) -> None:
    model = model_of(1.0)
    values = dict.fromkeys(OURS, "the script's")
    state = bps.elastic.TorchState(model, torch.optim.SGD(model.parameters(), lr=0.5), **values)

    @bps.elastic.run(save_to=tmp_path, save_every=1)
    def train(state: bps.elastic.TorchState) -> dict[str, str]:
        state.commit()
        return {name: getattr(state, name) for name in OURS}

    assert train(state) == values
    again = bps.elastic.TorchState(model_of(2.0), torch.optim.SGD(model.parameters(), lr=0.5), **dict.fromkeys(OURS, 0))
    assert bps.elastic.load(tmp_path, again) is not None
    assert {name: getattr(again, name) for name in OURS} == values
    public = {name for name in dir(bps.elastic.TorchState()) if not name.startswith("_")}
    assert all("_" in name for name in public - HOROVODS), "short names belong to scripts"
