"""Parameters that come, go, freeze, are shared or get no gradient; models of a GAN. `body(bps, rank, size)`."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import matches, same_everywhere
from tests.scenarios.models import batch, distance, fill, flat, loss_of, mlp, share
from tests.scenarios.optimizers.updates import backward


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1)


class Branches(nn.Module):
    """Two branches of which a step uses either, both or none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = mlp(seed=1), mlp(seed=2)

    def forward(self, x: torch.Tensor, used: str) -> torch.Tensor:
        output = x.new_zeros(len(x), 5)
        output = output + self.first(x) if "1" in used else output
        return output + self.second(x) if "2" in used else output


def branch_loss(model: Branches, x: torch.Tensor, y: torch.Tensor, used: str) -> torch.Tensor:
    return (model(x, used) - y).square().mean()


def unused_everywhere(bps: Any, rank: int, size: int) -> None:
    model, reference = Branches(), Branches()
    optimizer, plain = bps.DistributedOptimizer(sgd(model.parameters())), sgd(reference.parameters())
    for step, used in enumerate(["1", "12", "2", "1"]):
        x, y = batch(step)
        optimizer.zero_grad()
        plain.zero_grad()
        branch_loss(model, share(x, rank, size), share(y, rank, size), used).backward()
        branch_loss(reference, x, y, used).backward()
        optimizer.step()
        plain.step()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None)
    matches(bps, model, reference)


def unused_on_some_ranks(bps: Any, rank: int, size: int) -> None:
    for options in ({}, {"compression": bps.Compression.bf16}):
        model, reference = Branches(), Branches()
        optimizer = bps.DistributedOptimizer(sgd(model.parameters()), **options)
        x, y = batch(0)
        branch_loss(model, share(x, rank, size), share(y, rank, size), "12" if rank == 0 else "1").backward()
        optimizer.synchronize()
        for other in range(size):
            part = branch_loss(reference, share(x, other, size), share(y, other, size), "12" if other == 0 else "1")
            (part / size).backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert distance(ours.grad, theirs.grad) < (1e-2 if options else 1e-12)
            same_everywhere(bps, ours.grad)


def no_gradient_at_all(bps: Any, rank: int, size: int) -> None:
    model = mlp()
    before = flat(model)
    optimizer = bps.DistributedOptimizer(sgd(model.parameters()))
    optimizer.step()
    assert torch.equal(flat(model), before)
    assert all(p.grad is None for p in model.parameters())


def shared(bps: Any, rank: int, size: int) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode = nn.Embedding(30, 8, dtype=torch.float64)
            self.decode = nn.Linear(8, 30, bias=False, dtype=torch.float64)
            self.decode.weight = self.encode.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.decode(self.encode(tokens))

    model, reference = fill(Tied()), fill(Tied())
    optimizer = bps.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    plain = sgd(reference.parameters())
    tokens = torch.arange(24).reshape(12, 2) % 30
    for _ in range(3):
        optimizer.zero_grad()
        plain.zero_grad()
        model(share(tokens, rank, size)).square().mean().backward()
        reference(tokens).square().mean().backward()
        optimizer.step()
        plain.step()
    matches(bps, model, reference)


class Mixed(nn.Module):
    """float64, float32 and bfloat16 parameters, a sparse embedding, and one parameter without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 6, sparse=True, dtype=torch.float64)
        self.wide = nn.Linear(6, 9, dtype=torch.float64)
        self.single = nn.Linear(9, 7)
        self.narrow = nn.Linear(7, 3, dtype=torch.bfloat16)
        self.nothing = nn.Parameter(torch.empty(0, dtype=torch.float64))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.single(self.wide(self.table(tokens)).float())
        return self.narrow(hidden.bfloat16()).float().square().mean() + self.nothing.sum().float()


def mixed_types_and_sparse(bps: Any, rank: int, size: int) -> None:
    model, reference = fill(Mixed()), fill(Mixed())
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    tokens = torch.arange(12) * 7 % 40
    for _ in range(2):
        optimizer.zero_grad()
        reference.zero_grad()
        model(share(tokens, rank, size)).backward()
        for other in range(size):
            (reference(share(tokens, other, size)) / size).backward()
        optimizer.synchronize()
        for (name, ours), theirs in zip(model.named_parameters(), reference.parameters(), strict=True):
            expected = theirs.grad.to_dense()
            sparse = name.startswith("table")
            assert ours.grad.dtype == ours.dtype and ours.grad.is_sparse == sparse
            found, scale = ours.grad.to_dense(), float(expected.abs().max() if expected.numel() else 0)
            torch.testing.assert_close(found, expected, rtol=0.05, atol=0.01 * scale, msg=name)
            same_everywhere(bps, found)


def sparse_gradients(bps: Any, rank: int, size: int) -> None:
    """As one process with all ranks' tokens, of which the last rank has none in the second step; as dense, if asked."""

    def make() -> tuple[nn.Embedding, nn.Linear, Any]:
        table, dense = fill(nn.Embedding(50, 4, sparse=True).double()), fill(nn.Linear(4, 3).double())
        return table, dense, torch.optim.SGD([*table.parameters(), *dense.parameters()], lr=0.1)  # type: ignore[return-value]

    def one(parts: Any, step: int, rank: int, size: int) -> None:
        table, dense = parts
        rows = table(share(torch.arange(12 * step, 12 * step + 12) * 5 % 50, rank, size))
        if step == 1 and rank == size - 1 and size > 1:
            rows = torch.ones(2, 4, dtype=torch.float64)
        (dense(rows).square().sum() / 12).backward()

    for options in ({}, {"route": "auto", "op": bps.Sum}, {"sparse_as_dense": True}):
        *ours, plain = make()
        *theirs, reference = make()
        optimizer = bps.DistributedOptimizer(plain, backward_passes_per_step=2, **options)
        factor = 1 if options.get("op") is bps.Sum else size
        for step in range(4):
            optimizer.zero_grad()
            reference.zero_grad()
            for number in (step, step + 4):
                one(ours, number, rank, size)
                for other in range(size):
                    one(theirs, number, other, size)
            for module in theirs:
                for parameter in module.parameters():
                    parameter.grad = parameter.grad / factor
            optimizer.step()
            reference.step()
            assert ours[0].weight.grad.is_sparse
        matches(bps, nn.ModuleList(ours), nn.ModuleList(theirs))
        optimizer.close()


def groups_come_and_go(bps: Any, rank: int, size: int) -> None:
    model, reference = Branches(), Branches()
    optimizer, plain = bps.DistributedOptimizer(sgd(model.first.parameters())), sgd(reference.first.parameters())

    def step(number: int) -> None:
        x, y = batch(number)
        optimizer.zero_grad()
        plain.zero_grad()
        branch_loss(model, share(x, rank, size), share(y, rank, size), "12").backward()
        branch_loss(reference, x, y, "12").backward()
        optimizer.step()
        plain.step()
        model.zero_grad()
        reference.zero_grad()

    step(0)
    optimizer.add_param_group({"params": list(model.second.parameters()), "lr": 0.05})
    plain.add_param_group({"params": list(reference.second.parameters()), "lr": 0.05})
    step(1)
    step(2)
    for owner in (optimizer, plain):
        del owner.param_groups[0]
    step(3)
    step(4)
    matches(bps, model, reference)


def freezing(bps: Any, rank: int, size: int) -> None:
    model, reference = mlp(), mlp()
    for module in (model, reference):
        module[0].requires_grad_(False)
    optimizer, plain = bps.DistributedOptimizer(sgd(model.parameters())), sgd(reference.parameters())
    for step in range(6):
        for module in (model, reference):
            module[0].requires_grad_(step in (2, 3, 5))
            module[2].requires_grad_(step != 4)
        # Cleared by the module, so that the optimizer first hears of a new parameter in step().
        model.zero_grad()
        reference.zero_grad()
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.step()
        plain.step()
    matches(bps, model, reference)


def replaced_gradients(bps: Any, rank: int, size: int) -> None:
    model, reference = mlp(), mlp()
    optimizer, plain = bps.DistributedOptimizer(sgd(model.parameters())), sgd(reference.parameters())
    for step in range(3):
        for module in (model, reference):
            for parameter in module.parameters():
                parameter.grad = torch.full_like(parameter, 0.5)
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.synchronize()
        for module in (model, reference):
            for parameter in module.parameters():
                parameter.grad = parameter.grad * 2
        with optimizer.skip_synchronize():
            optimizer.step()
        plain.step()
        # Gradients made by hand, without a backward.
        for parameter, other in zip(model.parameters(), reference.parameters(), strict=True):
            parameter.grad = torch.full_like(parameter, float(rank))
            other.grad = torch.full_like(other, (size - 1) / 2)
        optimizer.step()
        plain.step()
    matches(bps, model, reference)


def adversaries(bps: Any, rank: int, size: int, cleared_by_optimizer: bool, separate: bool) -> None:
    """A GAN: the generator's backward leaves gradients in the discriminator, which are cleared before they count."""

    def play(step: int, rank: int, size: int, models: Any, owners: Any) -> None:
        (maker, judge), (makers, judges) = models, owners
        x, _ = batch(step, inputs=8, outputs=1)
        noise, real = share(x, rank, size), share(x, rank, size).sin()
        judges.zero_grad() if cleared_by_optimizer else judge.zero_grad()
        losses = [judge(real).square().mean(), (judge(maker(noise).detach()) - 1).square().mean()]
        for loss in losses if separate else [sum(losses)]:
            loss.backward()
        judges.step()
        makers.zero_grad() if cleared_by_optimizer else maker.zero_grad()
        judge(maker(noise)).square().mean().backward()
        makers.step()

    def make() -> tuple[nn.Module, nn.Module]:
        return mlp(widths=(8, 12, 8), seed=3), mlp(widths=(8, 10, 1), seed=4)

    ours, theirs = make(), make()
    wrapped = [
        bps.DistributedOptimizer(sgd(ours[0].parameters())),
        bps.DistributedOptimizer(sgd(ours[1].parameters()), backward_passes_per_step=2 if separate else 1),
    ]
    plain = [sgd(module.parameters()) for module in theirs]
    for step in range(4):
        play(step, rank, size, ours, wrapped)
        play(step, 0, 1, theirs, plain)
    for module, reference in zip(ours, theirs, strict=True):
        matches(bps, module, reference)


def two_optimizers(bps: Any, rank: int, size: int) -> None:
    for cleared_by_optimizer in (True, False):
        for separate in (True, False):
            adversaries(bps, rank, size, cleared_by_optimizer, separate)


def cleared_before_step(bps: Any, rank: int, size: int) -> None:
    model, reference = mlp(), mlp()
    optimizer, plain = bps.DistributedOptimizer(sgd(model.parameters())), sgd(reference.parameters())
    for step in range(4):
        backward(model, 90, rank, size)
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        plain.zero_grad(set_to_none=step % 2 == 0)
        backward(model, step, rank, size)
        backward(reference, step)
        optimizer.step()
        plain.step()
    matches(bps, model, reference)
    # Cleared, and then no backward: nothing to apply.
    backward(model, 91, rank, size)
    model.zero_grad()
    before = flat(model)
    optimizer.step()
    assert torch.equal(flat(model), before)


def closing(bps: Any, rank: int, size: int) -> None:
    model = mlp()
    for way in ("close", "delete"):
        optimizer = bps.DistributedOptimizer(sgd(model.parameters()))
        reducer = weakref.ref(optimizer._distribution.reducer)
        optimizer.zero_grad()
        backward(model, 0, rank, size)
        if way == "close":
            optimizer.close()
            optimizer.close()
        del optimizer
        assert reducer() is None
        model.zero_grad()
        loss_of(model, *batch(rank)).backward()
        local = next(model.parameters()).grad.clone()
        assert size == 1 or bps.allgather_object(local.tolist())[rank - 1] != local.tolist()


SCENARIOS = [
    unused_everywhere, unused_on_some_ranks, no_gradient_at_all, shared, mixed_types_and_sparse, sparse_gradients,
    groups_come_and_go, freezing, replaced_gradients, two_optimizers, cleared_before_step, closing,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
