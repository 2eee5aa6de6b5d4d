"""Deferred weight gradients: the same bits as plain backward, in the promised order."""

from __future__ import annotations

import copy
import gc
import io
import random
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.deferred.search import FirstKSearch
from byteps_like.torch.job import runtime
from tests.fakes.spying_worker import Spy
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, fill, loss_of, mlp, share


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def convolutions() -> nn.Module:
    layers = [nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(6, 4, 3), nn.ReLU(inplace=True)]
    return fill(nn.Sequential(*layers, nn.ConvTranspose2d(4, 5, 2), nn.Flatten(), nn.Linear(5 * 7 * 7, 3)))


class Text(nn.Module):
    """An embedding, a layer that is used three times, one that is not used, norms that are left alone."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, sparse=sparse)
        self.shared, self.unused = nn.Linear(8, 8), nn.Linear(8, 8)
        self.norm, self.conv = nn.LayerNorm(8), nn.Conv1d(5, 4, 3)
        self.head = nn.Linear(6, 2, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        for _ in range(3):
            x = x + self.norm(self.shared(x)).tanh()
        return self.head(self.conv(x))


def tokens() -> torch.Tensor:
    return torch.arange(15).remainder(11).reshape(3, 5)


CASES = {
    "linear": (lambda: mlp(torch.float32, (20, 33, 17, 5)), lambda: torch.ones(4, 20)),
    "linear with sequences": (lambda: mlp(torch.float32, (20, 33, 5)), lambda: torch.ones(4, 3, 20)),
    "input with gradient": (lambda: mlp(torch.float32), lambda: torch.ones(4, 20, requires_grad=True)),
    "convolutions": (convolutions, lambda: torch.linspace(-1, 1, 2 * 3 * 64).reshape(2, 3, 8, 8)),
    "text": (lambda: fill(Text()), tokens),
    "sparse": (lambda: fill(Text(sparse=True)), tokens),
}


def gradients(model: nn.Module, *inputs: torch.Tensor, passes: int = 1) -> list[torch.Tensor | None]:
    model.zero_grad()
    for _ in range(passes):
        for x in inputs:
            model(x).square().sum().backward()
    return [None if p.grad is None else p.grad.to_dense().clone() for p in model.parameters()]


def same(found: list, expected: list) -> None:
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None and b is None) or torch.equal(a, b)


def deferring(model: nn.Module, x: torch.Tensor, first_k: int = 0) -> bps.DeferredBackward:
    """Attached, and past the forward that finds the order of the layers."""
    deferred = bps.DeferredBackward(model, first_k)
    model(x)
    return deferred


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("first_k", [0, 1, 2])
def test_gradients_are_those_of_plain_backward_to_the_bit(case: str, first_k: int) -> None:
    make, data = CASES[case]
    x, y = data(), data()
    expected = gradients(make(), x, passes=2)
    model = make()
    with deferring(model, y, first_k) as deferred:
        for _ in range(3):
            y.grad = None
            same(gradients(model, y, passes=2), expected)
            same([y.grad], [x.grad])
        used = [layer for layer in deferred._layers if layer.turn is not None]
        assert [layer.deferred for layer in used] == [place >= first_k for place in range(len(used))]
    assert all("forward" not in module.__dict__ for module in model.modules())
    same(gradients(model, data(), passes=2), expected)


def test_deferred_gradients_come_last_and_the_most_urgent_first() -> None:
    model, order = mlp(torch.float32, (20, 9, 9, 9, 9, 5)), []
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter in names:
        parameter.register_post_accumulate_grad_hook(lambda p: order.append(names[p]))
    with deferring(model, torch.ones(4, 20), 2) as deferred:
        assert deferred.layers == ["0", "2", "4", "6", "8"]
        gradients(model, torch.ones(4, 20))
        assert [name for name in order if "weight" in name] == [f"{n}.weight" for n in (2, 0, 4, 6, 8)]
        order.clear()
        deferred.first_k = 5
        gradients(model, torch.ones(4, 20))
        assert [name for name in order if "weight" in name] == [f"{n}.weight" for n in (8, 6, 4, 2, 0)]


def test_accumulation_frozen_layers_and_retained_graphs() -> None:
    plain, model, x = mlp(torch.float32), mlp(torch.float32), torch.ones(4, 20)
    with deferring(model, x):
        for made in (plain, model):
            made[2].weight.requires_grad_(False)
            made[4].requires_grad_(False)
            loss = made(x).square().sum()
            loss.backward(retain_graph=True)
            loss.backward()
        same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        with torch.no_grad():
            assert not model(x).requires_grad


def test_gradients_by_name_and_of_some() -> None:
    plain, model, x = mlp(torch.float32), mlp(torch.float32), torch.ones(4, 20, requires_grad=True)
    with deferring(model, x):
        found = []
        for made in (plain, model):
            loss = made(x).square().sum()
            every = torch.autograd.grad(loss, list(made.parameters()), retain_graph=True)
            one = torch.autograd.grad(loss, [x], retain_graph=True)
            assert all(p.grad is None for p in made.parameters())
            loss.backward(inputs=[made[2].weight])
            found.append([*every, *one, *(p.grad for p in made.parameters())])
        same(found[1], found[0])


def test_hooks_of_parameters_see_each_gradient_once() -> None:
    plain, model, x = fill(Text()), fill(Text()), tokens()
    seen: list[torch.Tensor] = []
    with deferring(model, x):
        for made in (plain, model):
            made.shared.weight.register_hook(lambda g: seen.append(g.clone()) or g * 2)
            gradients(made, x)
        assert len(seen) == 2 and torch.equal(*seen)
        assert torch.equal(model.shared.weight.grad, plain.shared.weight.grad)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    class Checkpointed(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self:
                x = checkpoint(layer, x, use_reentrant=reentrant)
            return x

    def made() -> nn.Module:
        return fill(Checkpointed(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))))

    x = torch.ones(2, 8, requires_grad=True)
    expected, model = gradients(made(), x), made()
    with deferring(model, x):
        same(gradients(model, x), expected)
        same(gradients(model, x), expected)


def test_autocast() -> None:
    plain, model, x = mlp(torch.float32), mlp(torch.float32), torch.ones(4, 20)
    with deferring(model, x), torch.autocast("cpu", torch.bfloat16):
        same(gradients(model, x), gradients(plain, x))


def test_functional_calls_and_transforms_go_the_plain_way() -> None:
    model, x = mlp(torch.float32), torch.ones(4, 20)

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).square().sum()

    others = {name: parameter.detach() * 2 for name, parameter in model.named_parameters()}
    expected = torch.func.grad(loss)(others)
    with deferring(model, x):
        leaves = {name: tensor.clone().requires_grad_() for name, tensor in others.items()}
        loss(leaves).backward()
        for found in (torch.func.grad(loss)(others), {name: leaf.grad for name, leaf in leaves.items()}):
            same(list(found.values()), list(expected.values()))
        assert all(parameter.grad is None for parameter in model.parameters())


def test_copies_and_files_hold_plain_models() -> None:
    model, x = mlp(torch.float32), torch.ones(4, 20)
    with deferring(model, x):
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
            with torch.no_grad():
                other[0].weight.zero_()
            assert not torch.equal(other(x), model(x))
            other(x).sum().backward()
            assert other[2].weight.grad is not None and model[2].weight.grad is None


def test_models_are_freed() -> None:
    model, x = mlp(torch.float32), torch.ones(4, 20)
    deferred = deferring(model, x)
    gradients(model, x)
    model(x).sum().backward(inputs=[model[4].weight])
    dying = [weakref.ref(item) for item in (deferred, model, model[2].weight)]
    del deferred, model
    gc.collect()
    assert [item() for item in dying] == [None, None, None]


@pytest.mark.filterwarnings("ignore:Using backward")
def test_what_is_refused() -> None:
    model, x = mlp(torch.float32), torch.ones(4, 20)
    with deferring(model, x):
        with pytest.raises(InvalidArgumentError, match="create_graph"):
            model(x).sum().backward(create_graph=True)
        with pytest.raises(InvalidArgumentError, match="'0' has a DeferredBackward"):
            bps.DeferredBackward(model)
    with pytest.raises(InvalidArgumentError, match="0 to 3"):
        bps.DeferredBackward(model, 4)
    with pytest.raises(InvalidArgumentError, match="no layer"):
        bps.DeferredBackward(nn.Tanh())
    assert bps.DeferredBackward(model, 3).layers == ["0", "2", "4"]


def test_tied_weights_and_normed_ones_stay_plain() -> None:
    model = Text()
    model.unused.weight = model.shared.weight
    model.conv = nn.utils.parametrizations.weight_norm(model.conv)
    assert bps.DeferredBackward(model).layers == ["table", "head"]


def test_the_arena_keeps_the_order_of_layers_and_sends_in_that_of_gradients() -> None:
    worker = Spy(partition_bytes=1024)
    with runtime.bound(worker):
        model = mlp(torch.float32, (20, 30, 30, 30, 30, 5))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        deferred = deferring(model, torch.ones(4, 20), 2)
        for step in range(3):
            optimizer.zero_grad()
            worker.sent.clear()
            loss_of(model, *batch(step)).backward()
            early = [part for parts in worker.sent for part in parts]
            optimizer.step()
            addresses = [model[index].weight.grad.data_ptr() for index in (8, 6, 4, 2, 0)]
            assert addresses == sorted(addresses)
        deferred.detach()
    # Layers 1 and 0, the third, the fourth; then the last, in one partition with the end of the fourth.
    assert early == [9, 10, 11, 12, 13, 5, 6, 7, 8, 1, 2, 3, 4, 0]


def train(bps, rank: int, size: int, first_k: object, way: str) -> list[torch.Tensor]:
    model = mlp(torch.float32, (20, 30, 30, 30, 5))
    if way == "ddp":
        model = bps.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    passes = 2 if way == "accumulating" else 1
    if way != "ddp":
        options = {"crossing": {"cross_barrier": True, "model": model}, "sharded": {"shard": "optimizer"}}
        optimizer = bps.DistributedOptimizer(
            optimizer, model.named_parameters(), backward_passes_per_step=passes, **options.get(way, {})
        )
    deferred = None if first_k is None else bps.DeferredBackward(model, first_k, steps=2)
    ks = []
    for step in range(24):
        optimizer.zero_grad()
        for part in range(passes):
            x, y = batch(2 * step + part)
            loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
        optimizer.step()
        ks.append(deferred.first_k if deferred else 0)
    if first_k == "auto":
        assert not deferred.searching and len(set(ks)) >= 4 and len(deferred.table) == 5
        assert len({tuple(seen) for seen in bps.allgather_object(ks)}) == 1
    if way == "crossing":
        optimizer.synchronize()
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("way", ["accumulating", "ddp", "crossing", "sharded"])
@pytest.mark.parametrize("servers", [False, True])
def test_training_is_the_same_on_all_ranks(way: str, servers: bool) -> None:
    def world(first_k: object) -> list:
        return run_world(2, train, first_k, way, world=ThreadWorld(2, partition_bytes=1024), servers=servers)

    expected = world(None)
    for first_k in (1, "auto"):
        for found in world(first_k):
            same(found, expected[0])


def search(cost: list[float], noise: random.Random | None = None) -> tuple[int, int]:
    """The k that is found for these costs of k = 0, 1, ..., and after how many steps."""
    found, steps = FirstKSearch(len(cost) - 1), 0
    while not found.done:
        steps += 1
        disturbed = 1.0 if noise is None else 1.0 + abs(noise.gauss(0.0, 0.01)) + 3.0 * (noise.random() < 0.05)
        if found.record(cost[found.first_k] * disturbed):
            found.decide(found.times())
    return found.first_k, steps


def pipeline(forward: list[float], sent: list[float], first_k: int, barrier: bool) -> float:
    """One step by the clock: chain, then deferred weight gradients; a link that sends by priority, piece by piece."""
    layers = len(forward)
    now, ready = sum(forward), [0.0] * layers
    for layer in reversed(range(layers)):
        now += forward[layer] * (1 if layer >= first_k else 2)
        ready[layer] = now
    for layer in range(first_k, layers):
        now += forward[layer]
        ready[layer] = now
    left, landed, clock = list(sent), [0.0] * layers, 0.0
    while any(left):
        waiting = [layer for layer in range(layers) if left[layer] and ready[layer] <= clock]
        if not waiting:
            clock = min(ready[layer] for layer in range(layers) if left[layer])
            continue
        piece = min(left[waiting[0]], 0.01)
        clock, left[waiting[0]] = clock + piece, left[waiting[0]] - piece
        landed[waiting[0]] = clock
    start = max(now, *landed) if barrier else now
    for layer in range(layers):
        start = max(start, landed[layer]) + forward[layer]
    return start - sum(forward)


@pytest.mark.parametrize("seed", range(12))
def test_the_search_comes_within_five_percent_of_the_best(seed: int) -> None:
    chance = random.Random(seed)
    layers = chance.choice([3, 8, 16, 32])
    forward = [chance.expovariate(layers) for _ in range(layers)]
    sent = [chance.expovariate(layers / 2) * (8 if layer == chance.randrange(layers) else 1) for layer in range(layers)]
    cost = [pipeline(forward, sent, k, barrier=seed % 2 == 0) for k in range(layers + 1)]
    for noise in (None, random.Random(seed)):
        first_k, steps = search(cost, noise)
        assert cost[first_k] <= 1.05 * min(cost), (first_k, cost)
        assert steps <= 6 * 15
        assert cost[first_k] <= cost[-1]
