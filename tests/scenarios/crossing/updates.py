"""Optimizers that cross the barrier, as seen by one rank: `body(bps, rank, size)`. The reference is the same optimizer
made to wait in step(); both must hold the same bits."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import time
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.crossing.models import (
    OPTIMIZERS,
    Mixing,
    Run,
    Tied,
    Zoo,
    both,
    output_of,
    plain_loss,
    same,
    state_of,
)  # fmt: skip
from tests.scenarios.models import batch, fill, flat, mlp, share
from tests.scenarios.optimizers.membership import Branches


def fifty_steps(bps: Any, rank: int, size: int) -> None:
    for make in OPTIMIZERS.values():
        both(bps, rank, size, make, lambda: mlp(torch.float32, (20, 12, 5)), 50)


def finer_towards_the_input(bps: Any, rank: int, size: int) -> None:
    """An arena that is large enough to be cut into several tensors."""
    run = both(bps, rank, size, OPTIMIZERS["Adam"], lambda: mlp(torch.float64, (20, 200, 60, 5)), 4)
    (arena,) = run.optimizer._distribution.reducer.parameters.buckets
    assert [piece.declared.spec.nbytes for piece in arena._parts.pieces[1:]] == [1 << 14] * (
        len(arena._parts.pieces) - 1
    )
    assert len(arena._parts.pieces) > 1


def compressed_scaled_and_routed(bps: Any, rank: int, size: int) -> None:
    options: list[dict[str, Any]] = [{"compression": bps.Compression.bf16}, {"gradient_predivide_factor": 3.0}]
    for each in [*options, {"op": bps.Sum}, *([{"route": "allreduce"}] if size > 1 else [])]:
        both(bps, rank, size, OPTIMIZERS["momentum"], mlp, 4, **each)


def accumulation(bps: Any, rank: int, size: int) -> None:
    both(bps, rank, size, OPTIMIZERS["Adam"], mlp, 4, passes=3, backward_passes_per_step=3)


def schedules(bps: Any, rank: int, size: int) -> None:
    """Hyperparameters are those at step(), though the scheduler changes them while updates are in flight."""
    runs = []
    for crosses in (True, False):
        run = Run(bps, crosses, lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01), capturable=False), mlp())
        scheduler = torch.optim.lr_scheduler.OneCycleLR(run.optimizer, max_lr=[0.1, 0.2], total_steps=9)
        for step in range(8):
            run.train(rank, size, range(step, step + 1))
            scheduler.step()
        runs.append(run)
    same(*runs)


def shared_reused_and_read(bps: Any, rank: int, size: int) -> None:
    for make in (OPTIMIZERS["Adam"], OPTIMIZERS["momentum"]):
        both(bps, rank, size, make, lambda: fill(Tied().double()), 6)


def modules_of_torch(bps: Any, rank: int, size: int) -> None:
    runs = [Run(bps, crosses, OPTIMIZERS["Adam"], fill(Zoo().double())) for crosses in (True, False)]
    outputs = []
    for run in runs:
        run.train(rank, size, range(4))
        with torch.no_grad():  # in eval mode the encoder may read its layers' parameters without calling them
            outputs.append(run.model.eval()(batch(0)[0]))
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-12)
    same(*runs)


def two_optimizers(bps: Any, rank: int, size: int) -> None:
    """Of one model, stepped in turn."""
    models = []
    for crosses in (True, False):
        model = mlp()
        owners = [
            bps.DistributedOptimizer(make(layer.parameters()), cross_barrier=crosses, model=model)
            for layer, make in ((model[0], OPTIMIZERS["Adam"]), (model[2:], OPTIMIZERS["momentum"]))
        ]
        for step in range(6):
            for owner in owners[: 1 + step % 2]:
                model.zero_grad()
                plain_loss(model, step, rank, size).backward()
                owner.step()
            for owner in owners[1 + step % 2 :]:
                owner.zero_grad()
        for owner in owners:
            owner.synchronize() if crosses else None
        models.append(model)
    assert torch.equal(flat(models[0]), flat(models[1]))
    same_everywhere(bps, flat(models[0]))


def unused(bps: Any, rank: int, size: int) -> None:
    """Unused on all ranks: not updated. On some: zeros there."""

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        x, y = (share(part, rank, size) for part in batch(step))
        used = ["12", "1", "12" if rank == 0 else "2", "2", "1"][step]
        return (model(x, used) - y).square().mean()

    both(bps, rank, size, OPTIMIZERS["momentum"], Branches, 5, loss)


def beside_the_model(bps: Any, rank: int, size: int) -> None:
    """A parameter that no module holds is updated when step() returns; one of a group that comes later, too."""
    runs, extra = [], []
    for crosses in (True, False):
        run = Run(bps, crosses, OPTIMIZERS["momentum"], mlp())
        extra.append(nn.Parameter(torch.ones(5, dtype=torch.float64)))
        run.train(rank, size, range(2))
        run.optimizer.add_param_group({"params": [extra[-1]]})
        run.train(rank, size, range(2, 6), lambda *of, scale=extra[-1]: plain_loss(*of) * scale.square().sum())
        runs.append(run)
    assert torch.equal(extra[0], extra[1]) and extra[0].grad is None
    same(*runs)


def states_in_flight(bps: Any, rank: int, size: int) -> None:
    """state_dict() of model and optimizer are complete whenever they are asked for, and may be loaded at any time."""
    runs = [Run(bps, crosses, OPTIMIZERS["Adam"], mlp()) for crosses in (True, False)]
    kept = []
    for run in runs:
        run.train(rank, size, range(3))
        kept.append(copy.deepcopy((run.model.state_dict(), run.model[2].state_dict(), run.optimizer.state_dict())))
        run.train(rank, size, range(3, 5))
        run.model.load_state_dict(kept[-1][0])
        run.optimizer.load_state_dict(copy.deepcopy(kept[-1][2]))
        run.train(rank, size, range(5, 7))
        bps.broadcast_parameters(list(run.model.named_parameters()))
        bps.broadcast_optimizer_state(run.optimizer)
        run.train(rank, size, range(7, 8))
    torch.testing.assert_close(kept[0], kept[1], rtol=0, atol=0)
    same(*runs)


def clipping(bps: Any, rank: int, size: int) -> None:
    """synchronize(), clip, step() without it: as without crossing. A step that does cross may follow."""
    runs = [Run(bps, crosses, OPTIMIZERS["momentum"], mlp()) for crosses in (True, False)]
    for run in runs:
        run.train(rank, size, range(2))
        run.optimizer.zero_grad()
        plain_loss(run.model, 2, rank, size).backward()
        run.optimizer.synchronize()
        nn.utils.clip_grad_norm_(run.model.parameters(), 0.05)
        with run.optimizer.skip_synchronize():
            run.optimizer.step()
        run.train(rank, size, range(3, 5))
    same(*runs)
    crossing = runs[0]
    plain_loss(crossing.model, 5, rank, size).backward()
    nn.utils.clip_grad_norm_(crossing.model.parameters(), 0.05)
    raises(bps.InvalidArgumentError, crossing.optimizer.step, "synchronize()", "skip_synchronize")


def evaluation(bps: Any, rank: int, size: int) -> None:
    """eval() and inference_mode, bfloat16 by autocast: what asks for updates doesn't change them."""
    runs = [Run(bps, crosses, OPTIMIZERS["Adam"], fill(Tied().double())) for crosses in (True, False)]
    outputs = []
    for run in runs:
        run.train(rank, size, range(3))
        for mode in (torch.inference_mode(), torch.no_grad(), torch.autocast("cpu", torch.bfloat16)):
            run.model.eval()
            with mode:
                outputs.append(run.model(batch(0)[0]).double())
            run.model.train()
            run.train(rank, size, range(3, 5))
    for ours, theirs in zip(outputs[:3], outputs[3:], strict=True):
        assert torch.equal(ours, theirs)
    same(*runs)


def uneven_batches(bps: Any, rank: int, size: int) -> None:
    """Ranks run out of batches one after the other, with updates in flight, and join()."""
    runs = [Run(bps, crosses, OPTIMIZERS["Adam"], mlp(torch.float64, (20, 200, 60, 5))) for crosses in (True, False)]
    for run in runs:
        run.train(rank, size, range(3 + rank))
        last = bps.join()
        bps.broadcast_parameters(list(run.model.named_parameters()), root_rank=last)
        bps.broadcast_optimizer_state(run.optimizer, root_rank=last)
        run.train(rank, size, range(6, 8))
    same(*runs)


def with_backward_out_of_order(bps: Any, rank: int, size: int) -> None:
    """Weight gradients of late layers are made last, in a model whose updates cross the barrier."""
    runs = [Run(bps, crosses, OPTIMIZERS["momentum"], mlp()) for crosses in (True, False)]
    with bps.DeferredBackward(runs[0].model, 1):
        for run in runs:
            run.train(rank, size, range(5))
        same(*runs)


def modes_of_the_asker(bps: Any, rank: int, size: int) -> None:
    """The second branch is used, and gets its state, in a step whose updates are asked for by an evaluation."""

    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        return model(share(batch(step)[0], rank, size).float(), "1" if step == 0 else "12").square().mean()

    for mode in (torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)):
        runs = [Run(bps, crosses, lambda p: Mixing(p, 0.01), Branches().float()) for crosses in (True, False)]
        for run in runs:
            run.train(rank, size, range(2), loss)
            with mode():
                run.model(batch(0)[0].float(), "12")
            run.train(rank, size, range(2, 4), loss)
        same(*runs)


def gradients_of_step_are_taken(bps: Any, rank: int, size: int) -> None:
    """p.grad is None after step(), so it makes no difference whether and how gradients are cleared."""
    runs = [Run(bps, crosses, OPTIMIZERS["momentum"], mlp()) for crosses in (True, True, True, False)]
    clear = [lambda: None, lambda: runs[1].optimizer.zero_grad(set_to_none=False), lambda: runs[2].model.zero_grad()]
    for run, cleared in zip(runs, [*clear, runs[3].optimizer.zero_grad], strict=True):
        for step in range(4):
            cleared()
            plain_loss(run.model, step, rank, size).backward()
            run.optimizer.step()
            if run is not runs[3]:
                assert all(parameter.grad is None for parameter in run.model.parameters())
                cleared()
    for run in runs[:3]:
        same(run, runs[3])


def thrown_away_before_step(bps: Any, rank: int, size: int) -> None:
    """zero_grad() in place of step(), on all ranks."""
    runs = [Run(bps, crosses, OPTIMIZERS["momentum"], mlp()) for crosses in (True, False)]
    for run in runs:
        run.train(rank, size, range(2))
        plain_loss(run.model, 9, rank, size).backward()
        run.train(rank, size, range(2, 4))
    same(*runs)


def copies_of_the_model(bps: Any, rank: int, size: int) -> None:
    run = Run(bps, True, OPTIMIZERS["momentum"], mlp())
    run.train(rank, size, range(3))
    run.optimizer.synchronize()
    file = io.BytesIO()
    torch.save(run.model, file)
    file.seek(0)
    twins = [copy.deepcopy(run.model), pickle.loads(pickle.dumps(run.model)), torch.load(file, weights_only=False)]
    run.train(rank, size, range(3, 4))
    for twin in twins:
        before = flat(twin).clone()
        twin(batch(0)[0])
        assert torch.equal(flat(twin), before)
    for call in (lambda: copy.deepcopy(run.optimizer), lambda: pickle.dumps(run.optimizer)):
        raises(bps.InvalidArgumentError, call, "state_dict")


def the_model_outlives_the_optimizer(bps: Any, rank: int, size: int) -> None:
    """Whoever asks for its weights gets those of the last step; then no hook is left."""
    for ask in (output_of, state_of):
        models = []
        for crosses in (True, False):
            run = Run(bps, crosses, OPTIMIZERS["momentum"], mlp())
            run.train(rank, size, range(3))
            models.append(run.model)
            del run
        assert torch.equal(*(ask(model) for model in models))
        assert torch.equal(flat(models[0]), flat(models[1]))
        output_of(models[0])
        assert not any(module._forward_pre_hooks or module._state_dict_pre_hooks for module in models[0].modules())


def closed(bps: Any, rank: int, size: int) -> None:
    """close() makes the last updates; after it the optimizer is a plain one."""
    runs = [Run(bps, crosses, OPTIMIZERS["momentum"], mlp()) for crosses in (True, False)]
    for run in runs:
        run.train(rank, size, range(3))
        run.optimizer.close()
        run.optimizer.close()
    assert torch.equal(flat(runs[0].model), flat(runs[1].model))
    assert not any(module._forward_pre_hooks for module in runs[0].model.modules())


def leaves_at_once(bps: Any, rank: int, size: int) -> None:
    """shutdown() right after step(): no rank takes away what another still waits for. Not for threads."""
    runs = [Run(bps, crosses, OPTIMIZERS["Adam"], mlp()) for crosses in (False, True)]
    for run in runs:
        run.train(rank, size, range(4))
    bps.shutdown()
    assert torch.equal(flat(runs[0].model), flat(runs[1].model))


def drops_at_once(bps: Any, rank: int, size: int, options: dict[str, Any]) -> None:
    """All but rank 0 drop model and optimizer right after step(), and leave: rank 0, which comes to that step late,
    still gets it. Not for threads."""
    run = Run(bps, True, OPTIMIZERS["SGD"], mlp(), **options)
    run.train(rank, size, range(3))
    run.optimizer.synchronize()
    if rank == 0:
        time.sleep(0.3)
    run.train(rank, size, range(3, 4))
    if rank == 0:
        run.optimizer.synchronize()
    else:
        del run
        gc.collect()
    bps.shutdown()


def spelled_as_byteps_does(bps: Any, rank: int, size: int) -> None:
    models = [mlp(), mlp()]
    optimizers = [bps.CrossBarrier(models[0], torch.optim.SGD(models[0].parameters(), lr=0.1), num_steps=5)]
    optimizers.append(bps.CrossBarrier(models[1], torch.optim.SGD(models[1].parameters(), lr=0.1), 5))
    for model, optimizer in zip(models, optimizers, strict=True):
        for step in range(5):
            optimizer.zero_grad()
            plain_loss(model, step, rank, size).backward()
            optimizer.step()
        optimizer.synchronize()
    assert torch.equal(flat(models[0]), flat(models[1]))
    same_everywhere(bps, flat(models[0]))


SCENARIOS = [
    finer_towards_the_input, compressed_scaled_and_routed, accumulation, schedules, shared_reused_and_read,
    modules_of_torch, two_optimizers, unused, beside_the_model, states_in_flight, clipping, evaluation,
    modes_of_the_asker, uneven_batches, with_backward_out_of_order, gradients_of_step_are_taken,
    thrown_away_before_step, copies_of_the_model, the_model_outlives_the_optimizer, closed, spelled_as_byteps_does,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size). `fifty_steps`, `leaves_at_once` and `drops_at_once` are run by
themselves."""
