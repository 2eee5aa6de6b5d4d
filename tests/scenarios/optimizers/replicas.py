"""Parameters and optimizer state from the root; DistributedDataParallel. `body(bps, rank, size)`."""

from __future__ import annotations

import copy
import pickle
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import matches, raises, same_everywhere
from tests.scenarios.models import batch, distance, fill, flat, loss_of, mlp, recomputed, share
from tests.scenarios.optimizers.membership import Branches, branch_loss, sgd
from tests.scenarios.optimizers.updates import backward


def parameters_in_every_form(bps: Any, rank: int, size: int) -> None:
    root = size - 1
    expected = flat(mlp(seed=root))
    forms: list[Any] = [
        lambda model: model.state_dict(), lambda model: model.named_parameters(),
        lambda model: list(model.named_parameters()), lambda model: list(model.parameters()),
        lambda model: dict(model.named_parameters()),
    ]  # fmt: skip
    for form in forms:
        model = mlp(seed=rank)
        bps.broadcast_parameters(form(model), root_rank=root)
        assert torch.equal(flat(model), expected)
    raises(bps.InvalidArgumentError, lambda: bps.broadcast_parameters([("a", 3)]), "'a'")
    raises(bps.InvalidArgumentError, lambda: bps.broadcast_parameters(3), "int", "state_dict()")


def odd_tensors(bps: Any, rank: int, size: int) -> None:
    tensors = {
        "scalar": torch.tensor(float(rank)),
        "empty": torch.empty(0, 3),
        "bool": torch.tensor([rank == 0, False]),
        "int16": torch.full((3,), rank, dtype=torch.int16),
        "complex": torch.full((2,), complex(rank, -rank)),
        "turned": torch.full((3, 5), float(rank)).t(),
        "gaps": torch.full((6, 6), float(rank))[::2, ::3],
        "extra": {"no": "tensor"},
    }
    bps.broadcast_parameters(tensors)
    assert tensors["scalar"].item() == 0 and tensors["bool"].tolist() == [True, False]
    assert all(not tensors[name].any() for name in ("int16", "complex", "turned", "gaps"))


def buffers_and_batch_norm(bps: Any, rank: int, size: int) -> None:
    model = nn.Sequential(nn.Linear(20, 6), nn.BatchNorm1d(6)).double()
    fill(model, seed=rank)
    model(batch(rank)[0])
    bps.broadcast_parameters(model.state_dict())
    for value in model.state_dict().values():
        same_everywhere(bps, value.reshape(-1))


def optimizer_state(bps: Any, rank: int, size: int) -> None:
    makers: list[Any] = [
        lambda p: torch.optim.SGD(p, lr=0.1 * (rank + 1), momentum=0.9),
        lambda p: torch.optim.Adam(p, lr=0.01 * (rank + 1), amsgrad=True),
        lambda p: torch.optim.Adam([{"params": list(p), "lr": torch.tensor(0.01 * (rank + 1))}]),
        lambda p: torch.optim.LBFGS(p, lr=0.1 * (rank + 1), history_size=3),
        lambda p: torch.optim.ASGD(p, lr=0.1 * (rank + 1)),
    ]
    for maker in makers:
        model = mlp()
        optimizer = maker(model.parameters())
        if rank == 0:
            for step in range(3):
                optimizer.step(partial(backward, model, step))
        bps.broadcast_parameters(model.state_dict())
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        optimizer.zero_grad()
        optimizer.step(partial(backward, model, 9))
        same_everywhere(bps, flat(model))


def optimizer_state_of_any_kind(bps: Any, rank: int, size: int) -> None:
    """None and numbers among tensors; shapes that change from one call to the next."""
    for turn in range(2):
        model = mlp(widths=(4 + turn, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5 if rank == 0 else 0.1, momentum=0.9, foreach=None)
        if rank == 0:
            backward_of(model, 4 + turn)
            optimizer.step()
            for number, parameter in enumerate(model.parameters()):
                own = optimizer.state[parameter]
                own.update({"none": None, "count": number, "rate": 0.25, "flag": True, "pair": (1, None)})
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        states = [optimizer.state[parameter] for parameter in model.parameters()]
        assert [state["count"] for state in states] == list(range(len(states)))
        for state in states:
            found = [state[key] for key in ("none", "rate", "flag", "pair")]
            assert found == [None, 0.25, True, (1, None)] and state["momentum_buffer"] is not None
        assert optimizer.param_groups[0]["lr"] == 0.5 and optimizer.param_groups[0]["foreach"] is None
        bps.broadcast_parameters(model.state_dict(), root_rank=0)


def backward_of(model: nn.Module, width: int) -> None:
    model(torch.ones(2, width, dtype=torch.float64)).square().sum().backward()


def optimizer_state_is_dropped(bps: Any, rank: int, size: int) -> None:
    model = mlp()
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters()))
    if rank > 0:
        backward(model, 0)
        for parameter in model.parameters():
            optimizer.state[parameter] = {"step": torch.tensor(5.0)}
    bps.broadcast_optimizer_state(optimizer, 0)
    assert not any(optimizer.state.values())


def fresh_optimizer_state_gives_gradients(bps: Any, rank: int, size: int) -> None:
    """Of zeros, where there was none: scripts look at them, and the first step may go without zero_grad()."""
    model, reference = Branches(), Branches()
    frozen, used = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False), nn.Parameter(torch.ones(3))
    used.grad = torch.ones(3)
    for wrap in (lambda optimizer: optimizer, bps.DistributedOptimizer):
        plain = torch.optim.SGD([*model.parameters(), frozen, used], lr=0.1)
        optimizer = wrap(plain)
        for parameter in model.parameters():
            parameter.grad = None
        bps.broadcast_optimizer_state(optimizer, root_rank=0)
        assert frozen.grad is None and used.grad.eq(1).all()
        assert all(not parameter.grad.any() for parameter in model.parameters())
    x, y = batch(0)
    branch_loss(model, share(x, rank, size), share(y, rank, size), "12").backward()
    optimizer.step()
    for other in range(size):
        (branch_loss(reference, share(x, other, size), share(y, other, size), "12") / size).backward()
    torch.optim.SGD(reference.parameters(), lr=0.1).step()
    matches(bps, model, reference, 1e-12)


def fresh_optimizer_state_of_embeddings(bps: Any, rank: int, size: int) -> None:
    """Horovod's `model`, by name or as third argument, tells whose gradients are sparse."""
    for kind, call in (
        (torch.optim.SparseAdam, lambda optimizer, model: bps.broadcast_optimizer_state(optimizer, 0)),
        (torch.optim.SGD, lambda optimizer, model: bps.broadcast_optimizer_state(optimizer, 0, model)),
        (torch.optim.SGD, lambda optimizer, model: bps.broadcast_optimizer_state(optimizer, root_rank=0, model=model)),
    ):
        model = fill(nn.Embedding(5, 2, sparse=True))
        call(kind(list(model.parameters()), lr=0.5), model)
        assert model.weight.grad.is_sparse and model.weight.grad._nnz() == 0
        model(torch.tensor([1, 3])).sum().backward()
        assert model.weight.grad.to_dense().sum(1).tolist() == [0, 2, 0, 2, 0]


def wrapped_training(bps: Any, rank: int, size: int) -> None:
    for options in ({}, {"compression": bps.Compression.bf16}):
        reference = mlp()
        model = bps.DistributedDataParallel(mlp(seed=1 + rank), find_unused_parameters=True, **options)
        optimizer, plain = sgd(model.parameters()), sgd(reference.parameters())
        for step in range(4):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            plain.zero_grad()
            if step == 2:
                with model.no_sync():
                    backward(model, 40, rank, size)
                backward(reference, 40)
            backward(model, step, rank, size)
            backward(reference, step)
            model.synchronize()
            optimizer.step()
            plain.step()
        matches(bps, model, reference, 1e-2 if options else 1e-12)


def wrapped_unused(bps: Any, rank: int, size: int) -> None:
    model, reference = bps.DistributedDataParallel(Branches()), Branches()
    x, y = batch(0)
    for step, used in enumerate(["12", "1"]):
        mine = used if step == 0 or rank != size - 1 else ""
        model.zero_grad()
        reference.zero_grad()
        loss = (model(share(x, rank, size), mine) - share(y, rank, size)).square().mean()
        if loss.requires_grad:
            loss.backward()
        else:
            model.module.first[0].bias.sum().mul(0.0).backward()
        for other in range(size):
            if step == 0 or other != size - 1:
                (branch_loss(reference, share(x, other, size), share(y, other, size), used) / size).backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert size == 1 or (ours.grad is None) == (theirs.grad is None)
            assert ours.grad is None or theirs.grad is None or distance(ours.grad, theirs.grad) < 1e-12


def wrapped_checkpointing(bps: Any, rank: int, size: int) -> None:
    class Segments(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            self.first, self.second, self.reentrant = mlp(seed=1), mlp(widths=(5, 8, 5), seed=2), reentrant

        def forward(self, x: torch.Tensor) -> dict[str, list[torch.Tensor]]:
            hidden = recomputed(self.first, x.requires_grad_(), self.reentrant)
            return {"outputs": [recomputed(self.second, hidden, self.reentrant)]}

    x, y = batch(0)
    for reentrant in (True, False):
        reference, model = Segments(reentrant), bps.DistributedDataParallel(Segments(reentrant))
        for step in range(2):
            for module, part in ((model, (rank, size)), (reference, (0, 1))):
                module.zero_grad()
                output = module(share(x + step, *part))["outputs"][0]
                (output - share(y, *part)).square().mean().backward()
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                assert distance(ours.grad, theirs.grad) < 1e-12


def wrapped_buffers(bps: Any, rank: int, size: int) -> None:
    layers = nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5)).double()
    model = bps.DistributedDataParallel(fill(layers, seed=rank))
    for step in range(3):
        x, y = batch(step)
        loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
        model.zero_grad()
    model(share(batch(5)[0], 0, size))
    same_everywhere(bps, model.module[1].running_mean)
    model.eval()
    if rank == 0:
        model(x)
    assert {name.split(".")[0] for name in model.state_dict()} == {"module"}


def wrapped_misuse(bps: Any, rank: int, size: int) -> None:
    model = bps.DistributedDataParallel(mlp())
    for call in (lambda: copy.deepcopy(model), lambda: pickle.dumps(model)):
        raises(bps.InvalidArgumentError, call, "state_dict")
    raises(bps.InvalidArgumentError, lambda: bps.DistributedDataParallel(mlp(), device_ids=[0]), "device_ids")
    raises(bps.InvalidArgumentError, lambda: bps.DistributedDataParallel(mlp(), process_group=1), "process_group")
    raises(bps.InvalidArgumentError, lambda: bps.DistributedOptimizer(sgd(model.parameters())), "another")
    model.close()
    bps.DistributedOptimizer(sgd(model.parameters()))
    bps.DistributedDataParallel(mlp(), None, True, bps.Compression.none, bucket_cap_mb=25, static_graph=True)


SCENARIOS = [
    parameters_in_every_form, odd_tensors, buffers_and_batch_norm, optimizer_state,
    optimizer_state_of_any_kind, optimizer_state_is_dropped, fresh_optimizer_state_gives_gradients,
    fresh_optimizer_state_of_embeddings,
    wrapped_training, wrapped_unused, wrapped_checkpointing, wrapped_buffers, wrapped_misuse,
]  # fmt: skip
"""Bodies that need nothing but (bps, rank, size)."""
