"""What DistributedOptimizer promises, as seen by one rank: `body(bps, rank, size)`. Sizes 1 to 4 divide the batch."""

from __future__ import annotations

import contextlib
import copy
import pickle
import warnings
from typing import Any

import torch
from torch import nn

from byteps_like.torch.ops.adasum import combined
from tests.scenarios.checks import matches, raises, same_everywhere
from tests.scenarios.models import batch, distance, fill, flat, loss_of, mlp, share

CLASSES: dict[str, Any] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
}


def backward(model: nn.Module, step: int, rank: int = 0, size: int = 1) -> torch.Tensor:
    """Loss and gradients of a rank's share of the batch; of all of it by default."""
    x, y = batch(step)
    loss = loss_of(model, share(x, rank, size), share(y, rank, size))
    loss.backward()
    return loss


def pair(bps: Any, make: Any = CLASSES["SGD"], **options: Any) -> tuple[nn.Module, Any, nn.Module, Any]:
    """A model with a distributed optimizer, and the same with a plain one as reference."""
    model, reference = mlp(), mlp()
    optimizer = bps.DistributedOptimizer(make(model.parameters()), model.named_parameters(), **options)
    return model, optimizer, reference, make(reference.parameters())


def steps(bps: Any, rank: int, size: int, items: tuple[nn.Module, Any, nn.Module, Any], numbers: range) -> None:
    """The same training steps on both of a `pair`."""
    model, optimizer, reference, plain = items
    for step in numbers:
        optimizer.zero_grad()
        plain.zero_grad()
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.step()
        plain.step()


def every_class(bps: Any, rank: int, size: int) -> None:
    for make in CLASSES.values():
        items = pair(bps, make)
        steps(bps, rank, size, items, range(4))
        matches(bps, items[0], items[2], 1e-9)
        assert isinstance(items[1], type(items[3])) and repr(items[1]) == repr(items[3])


def zeroed_in_place(bps: Any, rank: int, size: int) -> None:
    model, optimizer, reference, plain = pair(bps)
    for step in range(5):
        optimizer.zero_grad(set_to_none=False)
        plain.zero_grad(set_to_none=False)
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.step()
        plain.step()
    matches(bps, model, reference)


def gradients_never_cleared(bps: Any, rank: int, size: int) -> None:
    model, optimizer, reference, plain = pair(bps)
    for step in range(3):
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.step()
        plain.step()
    matches(bps, model, reference)


def accumulation(bps: Any, rank: int, size: int) -> None:
    model, optimizer, reference, plain = pair(bps, backward_passes_per_step=3)
    for step in range(4):
        passes = 3 if step < 2 else 2
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        plain.zero_grad()
        for micro in range(passes):
            backward(model, 10 * step + micro, rank, size)
            backward(reference, 10 * step + micro)
        optimizer.step()
        plain.step()
    matches(bps, model, reference)
    # Fewer passes than announced are sent by step().
    backward(model, 50, rank, size)
    backward(reference, 50)
    optimizer.step()
    plain.step()
    matches(bps, model, reference)


def closures(bps: Any, rank: int, size: int) -> None:
    model, optimizer, reference, plain = pair(bps)

    def closure_of(module: nn.Module, owner: Any, step: int, rank: int, size: int) -> Any:
        def closure() -> torch.Tensor:
            owner.zero_grad()
            return backward(module, step, rank, size)

        return closure

    for step in range(3):
        loss = optimizer.step(closure_of(model, optimizer, step, rank, size))
        expected = plain.step(closure_of(reference, plain, step, 0, 1))
        torch.testing.assert_close(loss.detach(), expected.detach(), rtol=1e-12, atol=0)
    matches(bps, model, reference)


def lbfgs(bps: Any, rank: int, size: int) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=5, line_search_fn="strong_wolfe")

    model, optimizer, reference, plain = pair(bps, make)

    def evaluate(module: nn.Module, owner: Any, rank: int = 0, size: int = 1) -> Any:
        owner.zero_grad()
        return backward(module, 0, rank, size)

    for _ in range(2):
        optimizer.step(lambda: evaluate(model, optimizer, rank, size))
        plain.step(lambda: evaluate(reference, plain))
    matches(bps, model, reference, 1e-8)


def float_loss_closure(bps: Any, rank: int, size: int) -> None:
    model, optimizer, _, _ = pair(bps)
    losses = bps.allgather_object(backward(model, 0, rank, size).item())
    optimizer.zero_grad()
    loss = optimizer.step(lambda: backward(model, 0, rank, size).item())
    assert abs(loss - sum(losses) / size) < 1e-12
    assert optimizer.step(lambda: None) is None


def state_dict_both_ways(bps: Any, rank: int, size: int) -> None:
    items = pair(bps, CLASSES["Adam"])
    steps(bps, rank, size, items, range(2))
    model, optimizer, reference, plain = items
    state = copy.deepcopy(plain.state_dict())
    assert state.keys() == optimizer.state_dict().keys()
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    optimizer.load_state_dict(state)
    steps(bps, rank, size, items, range(2, 4))
    matches(bps, model, reference, 1e-9)


def schedulers(bps: Any, rank: int, size: int) -> None:
    for before in (True, False):
        model, reference = mlp(), mlp()
        inner, plain = CLASSES["SGD"](model.parameters()), CLASSES["SGD"](reference.parameters())
        expected = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(inner, 1, 0.5) if before else None
        optimizer = bps.DistributedOptimizer(inner)
        scheduler = scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        for step in range(4):
            steps(bps, rank, size, (model, optimizer, reference, plain), range(step, step + 1))
            expected.step()
            scheduler.step()
        assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state
        assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"] < 0.01
        matches(bps, model, reference)


def compression(bps: Any, rank: int, size: int) -> None:
    for kind, tolerance in ((bps.Compression.fp16, 1e-3), (bps.Compression.bf16, 1e-2)):
        for dtype in (torch.float32, torch.float64):
            model, reference = mlp(dtype), mlp(dtype)
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=kind)
            plain = torch.optim.SGD(reference.parameters(), lr=0.1)
            for none in (True, False, True):
                optimizer.zero_grad(set_to_none=none)
                steps(bps, rank, size, (model, optimizer, reference, plain), range(3))
            assert next(model.parameters()).grad.dtype == dtype
            matches(bps, model, reference, tolerance)


def sums_and_predivision(bps: Any, rank: int, size: int) -> None:
    model, optimizer, reference, plain = pair(bps, gradient_predivide_factor=3.0)
    steps(bps, rank, size, (model, optimizer, reference, plain), range(3))
    matches(bps, model, reference)
    model, optimizer, reference, _ = pair(bps, op=bps.Sum)
    backward(model, 0, rank, size)
    optimizer.synchronize()
    backward(reference, 0)
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * size, rtol=1e-12, atol=1e-14)


def synchronize_clip_step(bps: Any, rank: int, size: int) -> None:
    model, optimizer, reference, plain = pair(bps)
    for step in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.synchronize()
        norms = [nn.utils.clip_grad_norm_(module.parameters(), 0.05) for module in (model, reference)]
        assert abs(norms[0] - norms[1]) < 1e-12 * norms[1]
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
    matches(bps, model, reference)


def grad_scaler(bps: Any, rank: int, size: int) -> None:
    for clipped in (True, False):
        scaled_steps(bps, rank, size, clipped)


def scaled_steps(bps: Any, rank: int, size: int, clipped: bool) -> None:
    """Five steps with a GradScaler each; `clipped`: in between unscale_ and step, else step alone."""
    model, optimizer, reference, plain = pair(bps)
    scalers = [torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=2) for _ in range(2)]
    for step in range(5):
        x, y = batch(step)
        if step == 2:
            # One rank alone overflows: all ranks must skip the step.
            x[0] = float("inf")
        optimizer.zero_grad()
        plain.zero_grad()
        scalers[0].scale(loss_of(model, share(x, rank, size), share(y, rank, size))).backward()
        scalers[1].scale(loss_of(reference, x, y)).backward()
        if clipped:
            optimizer.synchronize()
            for scaler, owner, module in zip(scalers, (optimizer, plain), (model, reference), strict=True):
                scaler.unscale_(owner)
                nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        with optimizer.skip_synchronize() if clipped else contextlib.nullcontext():
            scalers[0].step(optimizer)
        scalers[1].step(plain)
        scalers[0].update()
        scalers[1].update()
    assert scalers[0].get_scale() == scalers[1].get_scale()
    matches(bps, model, reference)


def names_of_parameters(bps: Any, rank: int, size: int) -> None:
    """`_parameter_names`, which scripts of Horovod's read, for every optimizer that takes any device."""
    model = mlp()
    wanted = {name for name, _ in model.named_parameters()}
    for options in ({}, {"op": bps.Adasum}, {"cross_barrier": True, "model": model}):
        if size & (size - 1) and "op" in options:
            continue
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), **options
        )
        assert set(optimizer._parameter_names.values()) == wanted
        assert all(optimizer._parameter_names[parameter] == name for name, parameter in model.named_parameters())
        optimizer.close()
    layers = [layer for layer in model if list(layer.parameters())][:2]
    groups = [{"params": layer.parameters()} for layer in layers]
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    expected = [f"allreduce.noname.{group}.{place}" for group in range(2) for place in range(2)]
    assert sorted(optimizer._parameter_names.values()) == expected


def attributes_of_horovods(bps: Any, rank: int, size: int) -> None:
    """What scripts of Horovod's read from the optimizer, whatever kind it is."""
    model = mlp()
    kinds: list[dict[str, Any]] = [
        {}, {"op": bps.Sum, "sparse_as_dense": True}, {"gradient_predivide_factor": 2.0, "backward_passes_per_step": 3},
        {"cross_barrier": True, "model": model}, {"shard": "optimizer"},
    ]  # fmt: skip
    for options in [*kinds, {"op": bps.Adasum}] if size & (size - 1) == 0 else kinds:
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)
        assert optimizer.op is options.get("op", bps.Average)
        assert optimizer.gradient_predivide_factor == options.get("gradient_predivide_factor", 1.0)
        assert optimizer.sparse_as_dense is options.get("sparse_as_dense", False)
        assert optimizer.process_set is None
        assert optimizer.backward_passes_per_step == options.get("backward_passes_per_step", 1)
        optimizer.set_backward_passes_per_step(2)
        assert optimizer.backward_passes_per_step == 2
        raises(
            bps.InvalidArgumentError, lambda one=optimizer: setattr(one, "backward_passes_per_step", 0), "at least 1"
        )
        optimizer.close()


def attributes_that_scripts_set(bps: Any, rank: int, size: int) -> None:
    """`backward_passes_per_step` is a method's twin, `_should_synchronize` a block's."""
    model, optimizer, reference, plain = pair(bps)
    optimizer.backward_passes_per_step = 2
    for part in range(2):
        backward(model, part, rank, size)
        backward(reference, part)
    optimizer.synchronize()
    assert optimizer._should_synchronize
    optimizer._should_synchronize = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.step()
    optimizer._should_synchronize = True
    plain.step()
    matches(bps, model, reference)


def step_after_synchronize_warns(bps: Any, rank: int, size: int) -> None:
    model, optimizer, _, _ = pair(bps, op=bps.Sum)
    backward(model, 0, rank, size)
    optimizer.synchronize()
    before = [p.grad.clone() for p in model.parameters()]
    with warnings.catch_warnings(record=size == 1) as caught:
        warnings.simplefilter("always" if size == 1 else "ignore")
        optimizer.step()
    words = "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize()"
    assert size > 1 or [item for item in caught or [] if str(item.message).startswith(words)]
    assert all(torch.equal(p.grad, old) for p, old in zip(model.parameters(), before, strict=True))
    same_everywhere(bps, flat(model))


def not_to_be_copied(bps: Any, rank: int, size: int) -> None:
    model, optimizer, _, _ = pair(bps)
    for call in (lambda: copy.deepcopy(optimizer), lambda: copy.copy(optimizer), lambda: pickle.dumps(optimizer)):
        raises(bps.InvalidArgumentError, call, "state_dict")
    wrong: list[Any] = [
        lambda: bps.DistributedOptimizer(optimizer),
        lambda: bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0)),
        lambda: bps.DistributedOptimizer(model),
    ]
    fresh = mlp()
    names = list(fresh.named_parameters())
    options: list[dict[str, Any]] = [
        {"named_parameters": names[:-1]}, {"named_parameters": [*names[:-1], (names[0][0], names[-1][1])]},
        {"named_parameters": list(fresh.parameters())}, {"op": bps.Max}, {"compression": 7},
        {"op": bps.Adasum, "gradient_predivide_factor": 2.0}, {"op": bps.Adasum, "route": "server"},
        {"backward_passes_per_step": 0}, {"process_set": 2}, {"op": bps.Sum, "gradient_predivide_factor": 2.0},
    ]  # fmt: skip
    inner = torch.optim.SGD(fresh.parameters(), lr=1.0)
    for call in [*wrong, *(lambda item=item: bps.DistributedOptimizer(inner, **item) for item in options)]:
        raises(bps.InvalidArgumentError, call)
    bps.DistributedOptimizer(inner, fresh.named_parameters(), num_groups=2, sparse_as_dense=True)


def adasum(bps: Any, rank: int, size: int) -> None:
    """As a model per rank, each with a step of its own from the same place; joined in pairs."""
    model, make = mlp(), CLASSES["SGD"]

    def distributed(**options: Any) -> Any:
        return bps.DistributedOptimizer(make(model.parameters()), model.named_parameters(), op=bps.Adasum, **options)

    if size & (size - 1):
        raises(bps.InvalidArgumentError, distributed, "power of two")
        return
    optimizer = distributed(backward_passes_per_step=2)
    replicas = [mlp() for _ in range(size)]
    plain = [make(replica.parameters()) for replica in replicas]
    for step in range(3):
        optimizer.zero_grad()
        for number in range(2):
            backward(model, 10 * step + number, rank, size)
        assert optimizer.step() is None
        starts = [parameter.detach().clone() for parameter in replicas[0].parameters()]
        moves = []
        for other in range(size):
            plain[other].zero_grad()
            for number in range(2):
                backward(replicas[other], 10 * step + number, other, size)
            plain[other].step()
            moves.append([p.detach() - start for p, start in zip(replicas[other].parameters(), starts, strict=True)])
        while len(moves) > 1:
            pairs = zip(moves[::2], moves[1::2], strict=True)
            moves = [[combined(*both) for both in zip(*pair, strict=True)] for pair in pairs]
        for replica in replicas:
            for parameter, start, move in zip(replica.parameters(), starts, moves[0], strict=True):
                parameter.data.copy_(start + move)
    matches(bps, model, replicas[0])
    assert isinstance(optimizer, torch.optim.SGD)
    raises(bps.InvalidArgumentError, optimizer.skip_synchronize, "Adasum")


def convolutions(bps: Any, rank: int, size: int) -> None:
    def make() -> nn.Module:
        layers = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3), nn.Flatten())
        return fill(layers.double().to(memory_format=torch.channels_last))

    model, reference = make(), make()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    images = torch.randn(12, 4, 6, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    model(share(images, rank, size)).square().mean().backward()
    reference(images).square().mean().backward()
    optimizer.synchronize()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        assert ours.grad.stride() == ours.stride()
        assert distance(ours.grad, theirs.grad) < 1e-12


def step_hooks_run_once(bps: Any, rank: int, size: int) -> None:
    """Also after load_state_dict(), in which torch looks whether the class's step runs them."""
    kinds: list[Any] = [bps.Average] if size & (size - 1) else [bps.Average, bps.Adasum]
    for op in kinds:
        model, calls = mlp(), []
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), op=op)
        optimizer.register_step_pre_hook(lambda *_, calls=calls: calls.append("before"))
        optimizer.register_step_post_hook(lambda *_, calls=calls: calls.append("after"))
        for step in range(2):
            backward(model, step, rank, size)
            optimizer.step()
            optimizer.load_state_dict(optimizer.state_dict())
        assert calls == ["before", "after"] * 2, calls
        optimizer.close()


SCENARIOS = [
    every_class, zeroed_in_place, gradients_never_cleared, accumulation, closures, lbfgs, float_loss_closure,
    state_dict_both_ways, schedulers, compression, sums_and_predivision, synchronize_clip_step, grad_scaler,
    step_after_synchronize_warns, names_of_parameters, attributes_of_horovods, attributes_that_scripts_set,
    not_to_be_copied, adasum, convolutions, step_hooks_run_once,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
