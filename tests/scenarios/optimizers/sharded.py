"""DistributedOptimizer(shard="optimizer") beside the unsharded one and a plain one. `body(bps, rank, size)`."""

from __future__ import annotations

import copy
import functools
import warnings
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from byteps_like.torch.gradients.freed import FreedGradient
from tests.scenarios.checks import matches, raises, same_everywhere
from tests.scenarios.models import batch, fill, flat, loss_of, mlp, share
from tests.scenarios.optimizers import membership
from tests.scenarios.optimizers import updates as optimizers
from tests.scenarios.optimizers.updates import CLASSES, backward, steps

SHARDED = {"shard": "optimizer"}


class Lion(torch.optim.Optimizer):
    """An elementwise optimizer of somebody's own, with a counter in its groups and one of its own."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "made": 0})
        self.total = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.total += 1
        for group in self.param_groups:
            group["made"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    p.sub_((0.9 * mean + 0.1 * p.grad).sign_(), alpha=group["lr"] / group["made"])
                    mean.lerp_(p.grad, 0.01)


class Failing(torch.optim.SGD):
    """Its step raises when it has updated as many slices as `spare` has elements."""

    def __init__(self, params: Any, spare: list[int] | None = None) -> None:
        super().__init__(params, lr=0.1, momentum=0.9)
        self.spare = spare

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for _ in group["params"] if self.spare is not None else ():
                if not self.spare:
                    raise ValueError("out of luck")
                self.spare.pop()
        super().step()


class Lamb(torch.optim.Optimizer):
    """Not elementwise."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * p.norm() / p.grad.norm())


class Derived(Lamb):
    """Known by the name of its base."""


class Ratio(torch.optim.Optimizer):
    """Known by nobody, so it has to be tried."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    step = Lamb.step


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    return mlp(dtype)


def two_groups(model: nn.Module, make: Any) -> Any:
    """Weights decay, biases don't."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return make([{"params": weights, "weight_decay": 0.1}, {"params": biases, "lr": 0.003}])


def train(bps: Any, rank: int, size: int, make: Any, options: dict[str, Any], numbers: range) -> tuple[nn.Module, Any]:
    model = make_model()
    inner = two_groups(model, make)
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)
    for step in numbers:
        optimizer.zero_grad()
        backward(model, step, rank, size)
        optimizer.step()
        scheduler.step()
    return model, optimizer


def same_state(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Two state_dicts are equal to the last bit, in their keys' order too."""
    assert list(ours) == list(theirs) and ours["param_groups"] == theirs["param_groups"]
    assert list(ours["state"]) == list(theirs["state"])
    for number, entries in theirs["state"].items():
        assert list(ours["state"][number]) == list(entries)
        for key, value in entries.items():
            found = ours["state"][number][key]
            assert type(found) is type(value), key
            assert not isinstance(value, torch.Tensor) or found.dtype == value.dtype
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(value)), key


def equal_to_the_unsharded(bps: Any, rank: int, size: int) -> None:
    """To the last bit in float32, where reductions add in the same order: parameters, state, hyper-parameters."""
    makers = {name: make for name, make in CLASSES.items() if name != "SGD"}
    makers["SGD"] = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)
    for make in makers.values():
        plain, sharded = (train(bps, rank, size, make, options, range(4)) for options in ({}, SHARDED))
        assert torch.equal(flat(plain[0]), flat(sharded[0]))
        same_everywhere(bps, flat(sharded[0]))
        same_state(sharded[1].state_dict(), plain[1].state_dict())
        assert isinstance(sharded[1], type(make([nn.Parameter(torch.zeros(1))])))


def custom_optimizer(bps: Any, rank: int, size: int) -> None:
    plain, sharded = [], []
    for options, found in (({}, plain), (SHARDED, sharded)):
        model = make_model()
        found += [model, bps.DistributedOptimizer(Lion(model.parameters()), **options)]
        for step in range(3):
            backward(model, step, rank, size)
            found[1].step()
            found[1].zero_grad()
    assert torch.equal(flat(plain[0]), flat(sharded[0]))
    assert sharded[1].total == 3 and sharded[1].param_groups[0]["made"] == 3
    same_state(sharded[1].state_dict(), plain[1].state_dict())


def bytes_of_a_rank(bps: Any, rank: int, size: int) -> None:
    """Adam in float32 with shapes that divide: exactly a share of the state and of the reduced gradients."""
    unit = 64 * size  # elements: a UNIT for each rank
    model = fill(nn.Sequential(nn.Linear(unit, 32, bias=False), nn.Linear(32, unit, bias=False)))
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters()), **SHARDED)
    elements = 2 * 32 * unit
    model(torch.ones(2, unit)).square().mean().backward()
    assert all(isinstance(p.grad, FreedGradient) for p in model.parameters())
    optimizer.step()
    memory = optimizer.shard_memory()
    slices = len(optimizer._distribution.reducer.slices.state)
    assert memory.parameters == 4 * elements
    assert memory.gradients == 4 * elements // size
    assert memory.state == 8 * elements // size + 4 * slices  # one float32 `step` per slice
    assert all(p.grad is None for p in model.parameters())


def clipped(bps: Any, rank: int, size: int) -> None:
    for kind in (2.0, 1.0, float("inf")):
        model, reference = make_model(torch.float64), make_model(torch.float64)
        optimizer = bps.DistributedOptimizer(CLASSES["Adam"](model.parameters()), **SHARDED)
        plain = CLASSES["Adam"](reference.parameters())
        for step in range(3):
            plain.zero_grad()
            backward(model, step, rank, size)
            backward(reference, step)
            limit = 0.05 if step else 100.0
            norms = [
                optimizer.clip_grad_norm_(limit, kind),
                nn.utils.clip_grad_norm_(reference.parameters(), limit, kind),
            ]
            assert abs(norms[0] - norms[1]) < 1e-6 * norms[1]
            with optimizer.skip_synchronize():
                optimizer.step()
            plain.step()
        matches(bps, model, reference, 1e-6)
        same_everywhere(bps, flat(model))


def gradients_are_not_to_be_touched(bps: Any, rank: int, size: int) -> None:
    model = make_model()
    optimizer = bps.DistributedOptimizer(CLASSES["Adam"](model.parameters()), model.named_parameters(), **SHARDED)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(backward(model, 0, rank, size)).detach()
    touching: list[Any] = [
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0), lambda: scaler.step(optimizer),
        lambda: backward(model, 1, rank, size), lambda: next(model.parameters()).grad.sum(),
        lambda: scaler.unscale_(optimizer),
    ]  # fmt: skip
    for call in touching:
        raises(bps.InvalidArgumentError, call, "clip_grad_norm_")
    assert "0.weight" in repr(next(model.parameters()).grad)
    first = next(model.parameters())
    first.grad = torch.ones_like(first)
    raises(bps.InvalidArgumentError, optimizer.step, "0.weight", "replaced")


def replaced_on_one_rank(bps: Any, rank: int, size: int) -> None:
    """All are told in the same step, which none of them makes; then all go on."""
    for options in ({}, {"compression": {"*weight": "int8"}}):
        model = make_model()
        optimizer = bps.DistributedOptimizer(
            CLASSES["Adam"](model.parameters()), model.named_parameters(), **SHARDED, **options
        )
        for step in range(6):
            optimizer.zero_grad()
            backward(model, step, rank, size)
            before = flat(model)
            if step % 3 == 1:
                parameter = next(model.parameters())
                if rank == 0 and size > 1:
                    parameter.grad = torch.ones_like(parameter)
                    raises(bps.InvalidArgumentError, optimizer.step, "replaced")
                elif size > 1:
                    call = optimizer.step if step == 1 else functools.partial(optimizer.clip_grad_norm_, 1.0)
                    raises(bps.MismatchError, call, "threw their gradients away")
                assert torch.equal(flat(model), before)
            else:
                optimizer.step()
                assert not torch.equal(flat(model), before)
            same_everywhere(bps, flat(model))


def step_fails_on_one_rank(bps: Any, rank: int, size: int) -> None:
    """In the middle of its updates: the others have all that they wait for, and all go on with the same weights."""
    for spared in (0, 1, 2):
        for options in ({}, {"compression": {"*weight": "int8"}}):
            model = make_model()
            inner = Failing(model.parameters())
            optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), **SHARDED, **options)
            for step in range(5):
                optimizer.zero_grad()
                backward(model, step, rank, size)
                before = flat(model)
                if step == 2 and rank == 0:
                    inner.spare = [0] * spared
                    raises(ValueError, optimizer.step, "out of luck")
                    inner.spare = None
                else:
                    optimizer.step()
                assert step == 2 or not torch.equal(flat(model), before)
                same_everywhere(bps, flat(model))
            state = optimizer.state_dict()["state"]
            assert len(state) == len(list(model.parameters()))


def refusals(bps: Any, rank: int, size: int) -> None:
    model = make_model()
    makers: list[tuple[str, Any]] = [
        ("line searches", torch.optim.LBFGS), ("rows and columns", torch.optim.Adafactor), ("norms", Lamb),
        ("sparse", torch.optim.SparseAdam), ("norms", Derived), ("come to the same", Ratio),
    ]  # fmt: skip
    for words, make in makers:
        inner = make(list(model.parameters()))
        raises(bps.InvalidArgumentError, functools.partial(bps.DistributedOptimizer, inner, **SHARDED), words)
    inner = CLASSES["Adam"](model.parameters())
    wrong: list[dict[str, Any]] = [
        {"shard": "all"}, {"op": bps.Adasum, **SHARDED}, {"compression": "powersgd", **SHARDED},
        {"route": "server", **SHARDED}, {"sufficient_factors": True, "model": model, **SHARDED},
    ]  # fmt: skip
    for options in wrong:
        raises(bps.InvalidArgumentError, functools.partial(bps.DistributedOptimizer, inner, **options), "shard")
    optimizer = bps.DistributedOptimizer(inner, **SHARDED)
    model[0].half()
    raises(bps.InvalidArgumentError, optimizer.step, "new memory")


def bfloat16(bps: Any, rank: int, size: int) -> None:
    found = []
    for options in ({}, SHARDED):
        model = mlp(torch.bfloat16)
        optimizer = bps.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.01), **options)
        for step in range(3):
            optimizer.zero_grad()
            backward(model, step, rank, size)
            optimizer.step()
        found.append((flat(model), optimizer.state_dict()))
    assert torch.equal(found[0][0], found[1][0])
    same_state(found[1][1], found[0][1])


def mixed_types_strides_and_sparse(bps: Any, rank: int, size: int) -> None:
    """float64, float32, bfloat16, a sparse embedding, a parameter without elements; then channels_last."""
    results = []
    tokens = torch.arange(12) * 7 % 40
    for options in ({}, SHARDED):
        model = fill(membership.Mixed())
        model.table.sparse = bool(options)  # Adam takes no sparse gradients; sharded, it sees dense ones
        images = fill(nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last))
        both = nn.ModuleList([model, images])
        optimizer = bps.DistributedOptimizer(torch.optim.Adam(both.parameters(), lr=0.1), **options)
        for _ in range(2):
            optimizer.zero_grad()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pixels = images(torch.ones(2, 4, 6, 6) * (rank + 1)).square().mean()
                (model(share(tokens, rank, size)) + pixels).backward()
            optimizer.step()
        state = optimizer.state_dict()["state"]
        moments = next(entry["exp_avg"] for entry in state.values() if entry["exp_avg"].dim() == 4)
        assert moments.stride() == images.weight.stride()
        results.append(torch.cat([p.detach().double().flatten() for p in both.parameters()]))
    assert torch.equal(*results)


def no_gradient_on_some(bps: Any, rank: int, size: int) -> None:
    """The first layer has none on rank 0, the second none anywhere; decay must leave the second alone."""
    results = []
    for options in ({}, SHARDED):
        model = nn.ModuleList([mlp(seed=1), mlp(seed=2)])
        optimizer = bps.DistributedOptimizer(membership.sgd(model.parameters()), op=bps.Sum, **options)
        x, y = batch(0)
        used = mlp(seed=3)
        target = model[0] if rank else used
        for _ in range(2):
            loss_of(target, share(x, rank, size), share(y, rank, size)).backward()
            optimizer.step()
            optimizer.zero_grad()
        results.append(flat(model))
        assert torch.equal(flat(model[1]), flat(mlp(seed=2)))
    assert torch.equal(*results)


def accumulation(bps: Any, rank: int, size: int) -> None:
    model, reference = make_model(torch.float64), make_model(torch.float64)
    optimizer = bps.DistributedOptimizer(
        CLASSES["Adam"](model.parameters()), backward_passes_per_step=3, **SHARDED
    )  # fmt: skip
    plain = CLASSES["Adam"](reference.parameters())
    for step, passes in enumerate((3, 2, 1)):
        optimizer.zero_grad()
        plain.zero_grad()
        for micro in range(passes):  # fewer than announced are sent by step()
            backward(model, 10 * step + micro, rank, size)
            backward(reference, 10 * step + micro)
        optimizer.step()
        plain.step()
    matches(bps, model, reference, 1e-9)


def groups_are_added(bps: Any, rank: int, size: int) -> None:
    results = []
    for options in ({"gradient_predivide_factor": 2.0}, {"gradient_predivide_factor": 2.0, **SHARDED}):
        model = make_model()
        layers = [module for module in model if isinstance(module, nn.Linear)]
        optimizer = bps.DistributedOptimizer(CLASSES["Adam"](layers[0].parameters()), **options)
        for step in range(4):
            if step == 2:
                later = [p for layer in layers[1:] for p in layer.parameters()]
                optimizer.add_param_group({"params": later, "lr": 0.02})
            optimizer.zero_grad()
            model.zero_grad()
            backward(model, step, rank, size)
            optimizer.step()
        results.append((flat(model), optimizer.state_dict()))
    assert torch.equal(results[0][0], results[1][0])
    same_state(results[1][1], results[0][1])


def saved_by_others(bps: Any, rank: int, size: int) -> None:
    """State of a plain optimizer is taken over; what is saved goes on in a plain one, and the hooks are called once."""
    model, reference = make_model(torch.float64), make_model(torch.float64)
    inner, plain = CLASSES["Adam"](model.parameters()), CLASSES["Adam"](reference.parameters())
    for owner, module in ((inner, model), (plain, reference)):
        backward(module, 0)
        owner.step()
    optimizer = bps.DistributedOptimizer(inner, **SHARDED)
    same_state(optimizer.state_dict(), plain.state_dict())
    calls: list[str] = []
    optimizer.register_step_post_hook(lambda *_: calls.append("step"))
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    steps(bps, rank, size, (model, optimizer, reference, plain), range(1, 3))
    assert calls == ["step", "step"]
    again = CLASSES["Adam"](model.parameters())
    again.load_state_dict(optimizer.state_dict())
    optimizer.close()
    bps.broadcast_parameters(dict(model.named_parameters()), 0)
    for owner, module in ((again, model), (plain, reference)):
        owner.zero_grad()
        backward(module, 5)
        owner.step()
    matches(bps, model, reference, 1e-9)


def state_is_broadcast(bps: Any, rank: int, size: int) -> None:
    model = make_model()
    optimizer = bps.DistributedOptimizer(
        CLASSES["Adam"](
            model.parameters(),
        ),
        **SHARDED,
    )
    backward(model, 0, rank, size)
    optimizer.step()
    before = optimizer.state_dict()
    bps.broadcast_optimizer_state(optimizer, 0)
    same_state(optimizer.state_dict(), before)


def as_sharded(body: Any) -> Any:
    """A scenario of the unsharded optimizer, with every optimizer sharded."""

    def run(bps: Any, rank: int, size: int) -> None:
        names = {name: getattr(bps, name) for name in bps.__all__}
        names["DistributedOptimizer"] = functools.partial(bps.DistributedOptimizer, **SHARDED)
        body(SimpleNamespace(**names), rank, size)

    run.__name__ = f"sharded_{body.__name__}"
    return run


def names_of_parameters(bps: Any, rank: int, size: int) -> None:
    """`_parameter_names`, as those of optimizers whose state is whole."""
    model = mlp()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = bps.DistributedOptimizer(sgd, model.named_parameters(), shard="optimizer")
    assert {name: parameter for parameter, name in optimizer._parameter_names.items()} == dict(model.named_parameters())


SCENARIOS = [
    equal_to_the_unsharded, custom_optimizer, bytes_of_a_rank, clipped, gradients_are_not_to_be_touched, refusals,
    replaced_on_one_rank, step_fails_on_one_rank,
    bfloat16, mixed_types_strides_and_sparse, no_gradient_on_some, accumulation, groups_are_added, saved_by_others,
    state_is_broadcast, names_of_parameters,
    *(as_sharded(body) for body in (
        optimizers.closures, optimizers.float_loss_closure, optimizers.state_dict_both_ways,
        optimizers.schedulers, optimizers.zeroed_in_place, membership.no_gradient_at_all, membership.shared,
        membership.groups_come_and_go, membership.freezing, membership.two_optimizers, membership.cleared_before_step,
        membership.closing,
    )),
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
