"""Gradients that go to the shares of a sharded optimizer cast or encoded. `body(bps, rank, size)`."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn

from byteps_like.torch.compression.policy import Compress
from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import distance, fill, flat, mlp
from tests.scenarios.optimizers import compression
from tests.scenarios.optimizers.compression import Given, gradient
from tests.scenarios.optimizers.sharded import SHARDED, as_sharded, same_state
from tests.scenarios.optimizers.updates import CLASSES, backward

SHAPES = {"first.w": (33, 41), "first.b": (41,), "second.w": (17, 20), "third.w": (9, 70)}
"""Odd sizes, and chunks that several of them lie in."""

BY_NAME = {"first.w": "onebit:block=64", "first.b": "topk:ratio=0.2", "second.w": "int4", "*": "none"}
"""A codec of each kind that has sums in float32."""


class Named(Given):
    """Given, under names with dots in them."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__({}, dtype)
        for name, shape in SHAPES.items():
            owner, own = name.split(".")
            if not hasattr(self, owner):
                self.add_module(owner, nn.Module())
            getattr(self, owner).register_parameter(own, nn.Parameter(torch.zeros(shape, dtype=dtype)))
        fill(self)


def given(step: int, rank: int, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """The gradients of one rank in one step."""
    return {name: gradient(step, rank, shape, seed).to(dtype) for seed, (name, shape) in enumerate(SHAPES.items())}


def train(
    bps: Any, rank: int, size: int, way: Any, steps: range = range(4), state: Any = None, **options: Any
) -> tuple[nn.Module, Any]:  # fmt: skip
    """Steps of SGD from where `state` (of model and optimizer) ends."""
    model = Named()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=way, **options)
    if state is not None:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    for step in steps:
        optimizer.zero_grad()
        model(given(step, rank)).backward()
        optimizer.step()
    return model, optimizer


def casts_are_those_of_the_unsharded(bps: Any, rank: int, size: int) -> None:
    """To the last bit: parameters and state, by casts of two element types, also where averages are made in two."""
    for cast, dtype in ((bps.Compression.fp16, torch.float32), ("bf16", torch.float64), ("bf16", torch.float32)):
        found = []
        for options in ({}, SHARDED):
            model = mlp(dtype)
            inner = CLASSES["Adam"](model.parameters())
            optimizer = bps.DistributedOptimizer(
                inner, model.named_parameters(), cast, 2, gradient_predivide_factor=2.0, **options
            )
            for step in range(3):
                optimizer.zero_grad()
                backward(model, 2 * step, rank, size)
                backward(model, 2 * step + 1, rank, size)
                optimizer.step()
            found.append((flat(model), optimizer.state_dict()))
        assert torch.equal(found[0][0], found[1][0])
        same_state(found[1][1], found[0][1])
        same_everywhere(bps, found[1][0])


def what_is_left_out_comes_later(bps: Any, rank: int, size: int) -> None:
    """Codecs by names, in chunks of their own: what was applied and what is left add up to all gradients."""
    ways = [
        {name: way if way == "none" else Compress(way, feedback=True) for name, way in BY_NAME.items()},
        {"*w": Compress("thc4", feedback=True), "*b": Compress("natural", feedback=True)},
        {"first*": Compress("randomk:ratio=0.1", feedback=True), "*.*": Compress("blocksparse", feedback=True)},
        {"*.*": Compress("onebit:block=64", feedback=True, two_way=True)},
        {"*.*": Compress("onebit:block=64", feedback=True, warmup=((2, None), (2, "int8")))},
    ]
    rates = [0.1, 0.1, 0.05, 0.2, 0.2, 0.02]
    for number, way in enumerate(ways):
        model = Named()
        begin = [p.detach().clone() for p in model.parameters()]
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=way, **SHARDED
        )
        for step, rate in enumerate(rates):
            optimizer.param_groups[0]["lr"] = rate
            optimizer.zero_grad()
            model(given(step, rank)).backward()
            optimizer.step()
        memory = optimizer.state_dict()["byteps_like"]["parameters"]
        for (name, parameter), first in zip(model.named_parameters(), begin, strict=True):
            own = memory.get(name, {}).get("residual", torch.zeros_like(parameter))
            left = bps.allreduce(own.double(), name=f"left.{number}.{name}")
            wanted = sum(
                rate * given(step, other)[name].double() / size
                for step, rate in enumerate(rates) for other in range(size)
            )  # fmt: skip
            applied = first.double() - parameter.detach().double()
            assert distance(applied + rates[-1] * left, torch.as_tensor(wanted)) < 1e-5, (way, name)
        same_everywhere(bps, flat(model))
        optimizer.close()


def goes_on_from_a_checkpoint(bps: Any, rank: int, size: int) -> None:
    """To the last bit, with what error feedback and momentum remember; by codecs that draw no random numbers."""
    for way in ({"*.*": Compress("onebit:block=64", feedback=True, momentum=0.5)}, BY_NAME | {"second.w": "int8"}):
        whole, _ = train(bps, rank, size, way, range(6), **SHARDED)
        model, optimizer = train(bps, rank, size, way, range(3), **SHARDED)
        state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
        optimizer.close()
        assert set(state[1]["byteps_like"]["parameters"]) <= set(SHAPES)
        again, _ = train(bps, rank, size, way, range(3, 6), state, **SHARDED)
        assert torch.equal(flat(again), flat(whole))


def thrown_away_rounds_leave_nothing(bps: Any, rank: int, size: int) -> None:
    found = []
    for disturbed in (False, True):
        model = Named()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=BY_NAME, **SHARDED)
        if disturbed:
            loss = model(given(9, rank))
            (1e6 * loss).backward()
            optimizer.zero_grad()
            residuals = optimizer.state_dict()["byteps_like"]["parameters"].values()
            assert not any(bool(memory["residual"].any()) for memory in residuals)
        model(given(0, rank)).backward()
        optimizer.step()
        found.append([p.detach().clone() for name, p in model.named_parameters() if name != "second.w"])
    assert all(torch.equal(*two) for two in zip(*found, strict=True))  # but int4, which draws another number


def halves_are_encoded_as_floats(bps: Any, rank: int, size: int) -> None:
    """Shares of bfloat16, by a codec whose errors are far below theirs; and gradients that are clipped before."""
    found = []
    for clip in (0.0, 0.01):
        way = Compress("fixed:bits=32", clip=clip)
        model = Named(torch.bfloat16)
        begin = flat(model).double()
        inner = torch.optim.SGD(model.parameters(), lr=1.0)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression={"*.*": way}, **SHARDED)
        model(given(0, rank, torch.bfloat16)).backward()
        optimizer.step()
        found.append(begin - flat(model).double())
        gradients = [given(0, other, torch.bfloat16) for other in range(size)]
        limit = clip / size**0.5 or float("inf")
        mean = [
            sum(own[name].double() * min(1.0, limit / float(own[name].double().norm())) for own in gradients) / size
            for name in SHAPES
        ]
        wanted = torch.cat([torch.as_tensor(item).flatten() for item in mean])
        torch.testing.assert_close(found[-1], wanted, rtol=0.02, atol=0.01)
        same_everywhere(bps, flat(model))
    assert float(found[1].norm()) < 0.2 * float(found[0].norm())


def no_draw_comes_twice(bps: Any, rank: int, size: int) -> None:
    """Of a codec that is left out and comes back, over shares that are cut anew."""
    model = Given({"w": (320,)})
    rules = {"w": Compress("randomk:ratio=0.1", feedback=False)}
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules, **SHARDED)
    reducer, chosen = optimizer._distribution.reducer, set()
    for step in range(6):
        before = model.w.detach().clone()
        optimizer.zero_grad()
        model({"w": torch.ones(320)}).backward()
        optimizer.step()
        chosen.add(tuple((model.w.detach() != before).nonzero().flatten().tolist()))
        if step == 1:
            reducer.codecs.switch(False)
            reducer.codecs.switch(True)
        if step == 3:
            reducer.recut(reducer.route, 1 << 20)
    assert len(chosen) == 6


def what_is_kept_is_told(bps: Any, rank: int, size: int) -> None:
    """Residual and momentum are of all gradients that this rank encodes; landing buffers are of a share."""
    unit = 64 * size
    model = fill(nn.Sequential(nn.Linear(unit, 32, bias=False)))
    elements = 32 * unit
    for way, remembered in (("bf16", 0), (Compress("onebit", feedback=True, momentum=0.5), 8)):
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression={"*.*": way}, **SHARDED)
        model(torch.ones(2, unit)).square().mean().backward()
        optimizer.step()
        memory = optimizer.shard_memory()
        assert memory.remembered == remembered * elements
        assert memory.gradients == 4 * elements // size
        optimizer.close()


def what_shares_can_t_take(bps: Any, rank: int, size: int) -> None:
    model = mlp()
    for way, words in (("powersgd", "factors"), ("rows", "rows")):
        make = functools.partial(bps.DistributedOptimizer, compression=way, **SHARDED)
        raises(bps.InvalidArgumentError, functools.partial(make, CLASSES["SGD"](model.parameters())), "shard", words)
    onebit = bps.OnebitAdam(model.parameters())
    make = functools.partial(bps.DistributedOptimizer, onebit, **SHARDED)
    raises(bps.InvalidArgumentError, make, "momentum of the whole")
    auto = bps.DistributedOptimizer(CLASSES["SGD"](model.parameters()), compression="auto", **SHARDED)
    assert not auto.compression_report()  # in a world within one host nothing is encoded


SCENARIOS = [
    casts_are_those_of_the_unsharded, what_is_left_out_comes_later, goes_on_from_a_checkpoint,
    thrown_away_rounds_leave_nothing, halves_are_encoded_as_floats, no_draw_comes_twice, what_is_kept_is_told,
    what_shares_can_t_take, as_sharded(compression.trains_by), as_sharded(compression.left_out_at_times),
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
