"""Shares that are cut anew while training runs: `body(bps, rank, size)`. Weights and state are as without it."""

from __future__ import annotations

import gc
import tempfile
from typing import Any

import torch
from torch import nn

from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.compression.policy import Compress
from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Listed
from byteps_like.tuner.setting import Setting
from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import distance, flat, mlp
from tests.scenarios.optimizers.compression import Given, gradient
from tests.scenarios.optimizers.sharded import SHARDED, same_state
from tests.scenarios.optimizers.updates import CLASSES, backward

PACE = TrialPace(trials=4, discard=0, measure=2)


def grid(optimizer: Any, coded: bool = False) -> list[Setting]:
    """Chunks finer and coarser than a layer, and one of everything."""
    sizes = (512, 4096, 768, 1 << 20)
    return [
        Setting(optimizer.route, size, segment_bytes=size % 1024, algorithm="ring" if number % 2 else "",
                coded=not (coded and number % 2))
        for number, size in enumerate(sizes)
    ]  # fmt: skip


def tune(optimizer: Any, coded: bool = False) -> None:
    """Tries the settings of the grid, two steps each."""
    Tuning(optimizer._distribution.reducer, pace=PACE, search=Listed(grid(optimizer, coded)))


def mixed() -> nn.Module:
    """Layers of three element types, of odd sizes."""
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    return nn.ModuleList([mlp(dtype, seed=seed) for seed, dtype in enumerate(dtypes)])


def nothing_changes(bps: Any, rank: int, size: int) -> None:
    """To the last bit: weights and state of optimizers with much of it, and of slices that are shared out anew."""
    for kind in ("Adam", "SGD", "ASGD"):
        found = []
        for tuned in (False, True):
            model = mixed()
            optimizer = bps.DistributedOptimizer(CLASSES[kind](model.parameters()), **SHARDED)
            if tuned:
                tune(optimizer)
            cuts = set()
            for step in range(2 * PACE.trials + 3):
                optimizer.zero_grad()
                for layers in model:
                    backward(layers, step, rank, size)
                optimizer.step()
                cuts.add(tuple(arena.partitions for arena in optimizer._distribution.reducer.arenas))
            weights = torch.cat([p.detach().double().flatten() for p in model.parameters()])
            found.append((weights, optimizer.state_dict()))
            assert len(cuts) == (PACE.trials if tuned and size > 1 else 1)  # of one there is nothing to tune
            elements = sum(p.numel() * p.element_size() for p in model.parameters())
            assert size == 1 or optimizer.shard_memory().state < 3.5 * elements / size + 4096
            optimizer.close()
        assert torch.equal(found[0][0], found[1][0])
        same_state(found[1][1], found[0][1])


def who_comes_later_is_cut_alike(bps: Any, rank: int, size: int) -> None:
    """Parameters that are added after the shares were cut anew, and a checkpoint after that."""
    found = []
    for partition in (0, 600):
        model = mlp(torch.float32)
        layers = [module for module in model if isinstance(module, nn.Linear)]
        optimizer = bps.DistributedOptimizer(CLASSES["Adam"](layers[0].parameters()), **SHARDED)
        reducer = optimizer._distribution.reducer
        for step in range(4):
            if step == 1 and partition:
                reducer.recut(reducer.route, partition)
            if step == 2:
                optimizer.add_param_group({"params": [p for layer in layers[1:] for p in layer.parameters()]})
            if step == 3:
                optimizer.load_state_dict(optimizer.state_dict())
            optimizer.zero_grad()
            model.zero_grad()
            backward(model, step, rank, size)
            optimizer.step()
        if partition:
            assert all(chunk.end - chunk.begin <= 150 for a in reducer.arenas for chunk in a.layout.chunks)
        found.append((flat(model), optimizer.state_dict()))
    assert torch.equal(found[0][0], found[1][0])
    same_state(found[1][1], found[0][1])


def what_is_left_out_stays(bps: Any, rank: int, size: int) -> None:
    """Error feedback goes on over new cuts, and rounds without the codec: what was applied and is left adds up."""
    shape, steps = (32, 40), 11
    model = Given({"w": shape})
    begin, inner = model.w.detach().double(), torch.optim.SGD(model.parameters(), lr=0.5)
    rules = {"w": Compress("onebit:block=64", feedback=True)}
    optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules, **SHARDED)
    tune(optimizer, coded=True)
    for step in range(steps):
        optimizer.zero_grad()
        model({"w": gradient(step, rank, shape)}).backward()
        optimizer.step()
    (memory,) = optimizer.state_dict()["byteps_like"]["parameters"].values()
    left = bps.allreduce(memory["residual"].double(), name="left.by.cuts")
    gradients = [gradient(step, other, shape).double() for step in range(steps) for other in range(size)]
    assert distance(begin - model.w.detach().double() + 0.5 * left, 0.5 * sum(gradients) / size) < 1e-5
    same_everywhere(bps, model.w.detach())


def who_is_refused_keeps_its_state(bps: Any, rank: int, size: int) -> None:
    """Where it is the tuner that refuses, in the first step: rank 0 reads what was saved, and all are told."""
    if size == 1:
        return  # which has nothing to tune
    model = mlp(torch.float32)
    inner = torch.optim.Adam(model.parameters())
    backward(model, 0, rank, size)
    inner.step()
    kept = len(inner.state)
    with tempfile.NamedTemporaryFile() as empty:
        optimizer = bps.DistributedOptimizer(inner, tune="on" if rank else empty.name, **SHARDED)
    backward(model, 1, rank, size)
    raises(bps.ConfigError, optimizer.step, "not a setting")
    assert len(optimizer.state_dict()["state"]) == kept > 0
    optimizer.zero_grad()
    backward(model, 2, rank, size)
    optimizer.step()
    same_everywhere(bps, flat(model))


class CountingLane:
    """A lane that notes how many bytes of tensors there are in the process when an exchange starts."""

    def __init__(self, lane: Any) -> None:
        self._lane = lane
        self.found: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lane, name)

    def all_to_all(self, *args: Any) -> Any:
        self.found.append(bytes_of_tensors())
        return self._lane.all_to_all(*args)


def bytes_of_tensors() -> int:
    """Of all that Python knows, each memory once."""
    storages = [item.untyped_storage() for item in gc.get_objects() if type(item) in (torch.Tensor, nn.Parameter)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def one_kind_of_state_moves_at_a_time(bps: Any, rank: int, size: int) -> None:
    """In a world of one, of whose ranks' memory there is only one to count."""
    if size > 1:
        return
    model = Given({"w": (1 << 14,)})
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), amsgrad=True), **SHARDED)
    model({"w": gradient(0, rank, (1 << 14,))}).backward()
    optimizer.step()
    reducer = optimizer._distribution.reducer
    (arena,) = reducer.arenas
    gc.collect()
    usual, lane = bytes_of_tensors(), CountingLane(arena.control_lane)
    arena.control_lane = lane
    reducer.recut(reducer.route, 1 << 20)
    kind = model.w.nbytes
    assert len(lane.found) == 3
    assert max(lane.found) - usual < 3 * kind  # what is sent, what comes, and buffers for the gradients of new chunks


class ThreeNumbersEach(torch.optim.SGD):
    """Keeps a tensor for each parameter that is neither of its shape nor a number."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault("three", torch.ones(3))
        return super().step(closure)


def what_can_t_move_is_named_on_all_ranks(bps: Any, rank: int, size: int) -> None:
    """And stays where it is. Of so few elements, some ranks have none."""
    for count in (2, 600):
        model = Given({"w": (count,)})
        optimizer = bps.DistributedOptimizer(ThreeNumbersEach(model.parameters(), lr=0.1), **SHARDED)

        def step(number: int, model: Given = model, optimizer: Any = optimizer, count: int = count) -> torch.Tensor:
            optimizer.zero_grad()
            model({"w": gradient(number, rank, (count,))}).backward()
            optimizer.step()
            return model.w.detach().clone()

        step(0)
        reducer = optimizer._distribution.reducer
        shares, layouts = dict(reducer.slices.state), [arena.layout for arena in reducer.arenas]
        raises(bps.InvalidArgumentError, lambda reducer=reducer: reducer.recut(reducer.route, 64), "state 'three'")
        raises(bps.InvalidArgumentError, optimizer.state_dict, "state 'three'")
        assert reducer.slices.state == shares and [arena.layout for arena in reducer.arenas] == layouts
        same_everywhere(bps, step(1))
        optimizer.close()


SCENARIOS = [
    nothing_changes, who_comes_later_is_cut_alike, what_is_left_out_stays, who_is_refused_keeps_its_state,
    one_kind_of_state_moves_at_a_time, what_can_t_move_is_named_on_all_ranks,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
