"""Sharded optimizers that cross the barrier: shares are updated, and gathered, after step() has returned. The reference
is the same sharded optimizer made to wait in step(); both must hold the same bits. `body(bps, rank, size)`."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn

from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.gradients.relay import Relay
from byteps_like.torch.job import runtime
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting
from tests.fakes.thread_world import DEADLINE
from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.crossing import misuse, updates
from tests.scenarios.crossing.models import OPTIMIZERS, Loss, Run, output_of, plain_loss, same, state_of
from tests.scenarios.models import batch, flat, mlp, share
from tests.scenarios.optimizers.sharded import SHARDED, Failing, as_sharded
from tests.scenarios.optimizers.sharded import Lion as Counting

WIDE = (20, 33, 27, 19, 5)


def pair(bps: Any, make: Any = OPTIMIZERS["Adam"], new: Any = lambda: mlp(widths=WIDE), **options: Any) -> list[Run]:
    """One that crosses the barrier, and one that waits."""
    return [Run(bps, crosses, make, new(), **{**SHARDED, **options}) for crosses in (True, False)]


def train(
    runs: list[Run], rank: int, size: int, steps: range, loss: Loss = plain_loss, passes: int = 1
) -> list[int]:  # fmt: skip
    """The steps in which the first has waited."""
    waited = []
    for step in steps:
        for run in runs:
            run.train(rank, size, range(step, step + 1), loss, passes)
        if runs[0].optimizer._distribution.guards.flight is None:
            waited.append(step)
    return waited


def finish(bps: Any, runs: list[Run]) -> None:
    """The same bits in both runs, and on all ranks; then both are closed."""
    same(*runs)
    same_everywhere(bps, flat(runs[0].model))
    for run in runs:
        run.optimizer.close()


def each_optimizer(bps: Any, rank: int, size: int) -> None:
    """After the first step none waits."""
    for make in OPTIMIZERS.values():
        runs = pair(bps, make)
        assert train(runs, rank, size, range(5)) == [0]
        finish(bps, runs)


def counters(bps: Any, rank: int, size: int) -> None:
    """An optimizer that counts its steps in its groups, and divides by the count."""
    runs = pair(bps, Counting)
    assert train(runs, rank, size, range(5)) == [0]
    assert runs[0].optimizer.total == 5 and runs[0].optimizer.param_groups[1]["made"] == 5
    finish(bps, runs)


def of_several_types(bps: Any, rank: int, size: int) -> None:
    """An arena for each type of elements, and chunks that layers share."""

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mlp(widths=WIDE), mlp(torch.bfloat16, (5, 31, 29, 5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).bfloat16())  # type: ignore[no-any-return]

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        x, y = (share(part, rank, size) for part in batch(step))
        return nn.functional.mse_loss(model(x).double(), y)

    runs = [Run(bps, crosses, OPTIMIZERS["momentum"], Both(), **SHARDED) for crosses in (True, False)]
    assert train(runs, rank, size, range(5), loss) == [0]
    weights = [[parameter.detach().clone() for parameter in run.model.parameters()] for run in runs]
    runs[0].optimizer.synchronize()
    weights[0] = [parameter.detach() for parameter in runs[0].model.parameters()]
    assert all(torch.equal(*two) for two in zip(*weights, strict=True))


def cast_and_encoded(bps: Any, rank: int, size: int) -> None:
    """With what error feedback remembers, and a warm-up: the step after which another codec follows waits."""
    onebit = Compress("onebit:block=64", feedback=True, warmup=((2, None),))
    for way, waits in (
        ("bf16", [0]),
        ({"*weight": "int8", "4.bias": "topk:ratio=0.2"}, [0]),
        ({"*.*": onebit}, [0, 1]),
    ):
        runs = pair(bps, OPTIMIZERS["SGD"], lambda: mlp(torch.float32, WIDE), compression=way, op=bps.Sum)
        assert train(runs, rank, size, range(5)) == waits
        finish(bps, runs)


def tuned(bps: Any, rank: int, size: int) -> None:
    """The last step of each trial waits, since shares may move after it."""
    runs, pace = pair(bps), TrialPace(trials=3, discard=0, measure=2)
    grid = [Setting(runs[0].optimizer.route, nbytes) for nbytes in (512, 2048, 600)]
    Tuning(runs[0].optimizer._distribution.reducer, pace=pace, search=Listed(grid))
    waited = train(runs, rank, size, range(9))
    assert waited == ([0] if size == 1 else [0, 2, 4, 6])
    finish(bps, runs)


def clipped(bps: Any, rank: int, size: int) -> None:
    """A clipped step has waited for its gradients, but doesn't wait for its updates."""
    runs = pair(bps)
    for step in range(4):
        for run in runs:
            run.optimizer.zero_grad()
            plain_loss(run.model, step, rank, size).backward()
            run.optimizer.clip_grad_norm_(0.05)
            run.optimizer.step()
        assert step == 0 or runs[0].optimizer._distribution.guards.flight is not None
    finish(bps, runs)


def ranks_go_different_ways(bps: Any, rank: int, size: int) -> None:
    """One rank evaluates right after step() while others wait for it elsewhere: nobody waits for ever."""
    runs = pair(bps)
    for step in range(4):
        train(runs, rank, size, range(step, step + 1))
        if rank == 0:
            with torch.no_grad():
                runs[0].model(batch(0)[0])
        bps.barrier()
    finish(bps, runs)


def checkpoints_and_memory_in_flight(bps: Any, rank: int, size: int) -> None:
    """What is asked for while updates are in flight is that of after them."""
    runs = pair(bps)
    train(runs, rank, size, range(3))
    first, second = (run.optimizer.state_dict() for run in runs)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    train(runs, rank, size, range(3, 4))
    assert runs[0].optimizer.shard_memory().state == runs[1].optimizer.shard_memory().state
    for run in runs:
        run.optimizer.load_state_dict(second)
    assert train(runs, rank, size, range(4, 6)) == []
    finish(bps, runs)


def dropped_in_flight(bps: Any, rank: int, size: int) -> None:
    """The model outlives its optimizer; nothing is lost of the last step, whoever asks for it, and however late it
    lands. Then no hook is left."""
    for ask in (output_of, state_of):
        runs, go_on = pair(bps), threading.Event()
        train(runs, rank, size, range(2))
        runtime.current().of(Relay).put(lambda held=go_on: held.wait(DEADLINE))  # type: ignore[misc]
        runs[0].train(rank, size, range(2, 3))
        models = [run.model for run in runs]
        threading.Timer(0.1, go_on.set).start()
        runs[1].train(rank, size, range(2, 3))
        runs[1].optimizer.close()
        assert runs[0].optimizer._distribution.guards.flight is not None
        del runs
        assert torch.equal(*(ask(model) for model in models))
        assert torch.equal(flat(models[0]), flat(models[1]))
        output_of(models[0])
        assert not any(module._forward_pre_hooks or module._state_dict_pre_hooks for module in models[0].modules())


def replaced_gradients(bps: Any, rank: int, size: int) -> None:
    """A gradient that no step would see is told of, as without crossing."""
    run = Run(bps, True, OPTIMIZERS["SGD"], mlp(), **SHARDED)
    run.train(rank, size, range(2))
    plain_loss(run.model, 2, rank, size).backward()
    weight = run.model[0].weight
    weight.grad = torch.ones_like(weight)
    raises(bps.InvalidArgumentError, run.optimizer.step, "0.weight", "replaced")


def replaced_on_one_rank(bps: Any, rank: int, size: int) -> None:
    """The other ranks hear of it in the next forward, no rank updates anything, and all go on."""
    run = Run(bps, True, OPTIMIZERS["Adam"], mlp(), **SHARDED)
    run.train(rank, size, range(2))
    run.optimizer.synchronize()
    before = flat(run.model)
    plain_loss(run.model, 2, rank, size).backward()
    if rank == 0:
        run.model[0].weight.grad = torch.ones_like(run.model[0].weight)
        raises(bps.InvalidArgumentError, run.optimizer.step, "replaced")
    else:
        run.optimizer.step()
        raises(bps.MismatchError, lambda: run.model(batch(0)[0]), "changed in flight")
    assert torch.equal(flat(run.model), before)
    _goes_on(bps, run, rank, size)


def step_fails_on_one_rank(bps: Any, rank: int, size: int) -> None:
    """It is raised by the next forward there; the others have all that they wait for."""
    for spared in (0, 1):
        _step_fails_on_one_rank(bps, rank, size, spared)


def _step_fails_on_one_rank(bps: Any, rank: int, size: int, spared: int) -> None:
    run = Run(bps, True, Failing, mlp(), **SHARDED)
    run.train(rank, size, range(2))
    run.optimizer.synchronize()
    plain_loss(run.model, 2, rank, size).backward()
    if rank == 0:
        run.optimizer.__dict__["spare"] = [0] * spared
        run.optimizer.step()
        raises(ValueError, lambda: run.model(batch(0)[0]), "out of luck")
        run.optimizer.__dict__["spare"] = None
    else:
        run.optimizer.step()
        run.model(batch(0)[0])
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))
    _goes_on(bps, run, rank, size)


def _goes_on(bps: Any, run: Run, rank: int, size: int) -> None:
    before = flat(run.model)
    run.optimizer.zero_grad()
    run.train(rank, size, range(3, 5))
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))
    assert not torch.equal(flat(run.model), before)
    reducer = run.optimizer._distribution.reducer
    reducer.landed()
    assert len(set(bps.allgather_object(reducer.codecs.rounds))) == 1


SCENARIOS = [
    each_optimizer, counters, of_several_types, cast_and_encoded, tuned, clipped, ranks_go_different_ways,
    checkpoints_and_memory_in_flight, dropped_in_flight, replaced_gradients,
    *(as_sharded(body) for body in (
        updates.accumulation, updates.schedules, updates.shared_reused_and_read, updates.modules_of_torch,
        updates.two_optimizers, updates.unused, updates.beside_the_model, updates.states_in_flight, updates.evaluation,
        updates.with_backward_out_of_order, updates.gradients_of_step_are_taken, updates.thrown_away_before_step,
        updates.copies_of_the_model, updates.the_model_outlives_the_optimizer, updates.closed,
        misuse.refused_in_step, misuse.used_behind_its_modules_back,
    )),
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""

MANY = [as_sharded(misuse.cleared_against_step), replaced_on_one_rank, step_fails_on_one_rank]
"""For two ranks or more."""
