"""What users of DistributedDataParallel do, one function each; run by the ranks of test_c10d_suite_like.py."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from contextlib import suppress

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

EXACT = {"rtol": 1e-11, "atol": 1e-13}
"""float64: the same sums in another order."""


def net(seed: int = 1) -> nn.Module:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 12), nn.GELU(), nn.Linear(12, 3))


def rows(rank: int, number: int = 0, count: int = 8) -> Tensor:
    """Batch `number` of a rank."""
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(100 * rank + number))


def loss_of(model: nn.Module, inputs: Tensor) -> Tensor:
    return model(inputs).square().mean()


def mean_gradients(losses: Callable[[nn.Module, int], Tensor], model: nn.Module) -> list[Tensor]:
    """What one process finds: the gradients of the mean over ranks of `losses(model, rank)`."""
    ranks = dist.get_world_size()
    one = copy.deepcopy(model)
    (sum(losses(one, rank) for rank in range(ranks)) / ranks).backward()  # type: ignore[union-attr]
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in one.parameters()]


def check_gradients(model: nn.Module, expected: Iterable[Tensor]) -> None:
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, **EXACT)


def no_sync_accumulates() -> None:
    model = DistributedDataParallel(net())
    expected = mean_gradients(lambda one, r: sum(loss_of(one, rows(r, n)) for n in range(3)), model.module)
    with model.no_sync():
        for number in range(2):
            loss_of(model, rows(dist.get_rank(), number)).backward()
    local = [parameter.grad.clone() for parameter in model.parameters()]
    assert any((a - b).abs().max() > 1e-3 for a, b in zip(local, expected, strict=True))
    loss_of(model, rows(dist.get_rank(), 2)).backward()
    check_gradients(model.module, expected)


def static_graph_with_reentrant_checkpoints() -> None:
    """Checkpoints run parts of forward within backward, which DDP allows with a static graph only."""
    model = DistributedDataParallel(net(), static_graph=True)
    expected = mean_gradients(lambda one, r: loss_of(one, rows(r)), model.module)
    layers = list(model.module)
    model.module.forward = lambda x: layers[4](
        checkpoint(nn.Sequential(*layers[1:4]), layers[0](x), use_reentrant=True)
    )
    for _ in range(3):
        model.zero_grad()
        loss_of(model, rows(dist.get_rank())).backward()
        check_gradients(model.module, expected)


class Branches(nn.Module):
    """Rank 0 uses one branch, the others both."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.never = net(1), net(2), nn.Linear(2, 2)

    def forward(self, inputs: Tensor, rank: int) -> Tensor:
        return self.left(inputs) if rank == 0 else self.left(inputs) + self.right(inputs)


def find_unused_parameters() -> None:
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    expected = mean_gradients(lambda one, r: one(rows(r), r).square().mean(), model.module)
    for _ in range(2):
        model.zero_grad()
        model(rows(dist.get_rank()), dist.get_rank()).square().mean().backward()
        used = [p for name, p in model.module.named_parameters() if not name.startswith("never")]
        for parameter, gradient in zip(used, expected, strict=False):
            torch.testing.assert_close(parameter.grad, gradient, **EXACT)
        assert model.module.never.weight.grad is None


def gradient_as_bucket_view() -> None:
    model = DistributedDataParallel(net(), gradient_as_bucket_view=True, bucket_cap_mb=1e-4)
    expected = mean_gradients(lambda one, r: loss_of(one, rows(r)), model.module)
    for _ in range(3):  # buckets are laid out anew after the first step
        model.zero_grad(set_to_none=True)
        loss_of(model, rows(dist.get_rank())).backward()
        check_gradients(model.module, expected)
    assert all(parameter.grad._is_view() for parameter in model.parameters())


def buffers_come_from_rank_0() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.BatchNorm1d(6), net()))
    for number in range(2):
        loss_of(model, rows(dist.get_rank(), number)).backward()
    model.module(rows(0, 9))  # a forward of the wrapper would begin with the broadcast
    one = nn.BatchNorm1d(6)
    for number in (0, 1):
        one(rows(0, number))
    with torch.no_grad():
        model(rows(0, 5))
    means = [torch.empty(6) for _ in range(dist.get_world_size())]
    dist.all_gather(means, model.module[0].running_mean)
    assert all(torch.equal(mean, means[0]) for mean in means)


def sync_batch_norm_is_refused_on_cpu() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(6))
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        DistributedDataParallel(model)(rows(0))
    dist.all_reduce(total := torch.ones(1))
    assert total.item() == dist.get_world_size(), "the group goes on"


def hooks() -> None:
    rank, expected = dist.get_rank(), mean_gradients(lambda one, r: loss_of(one, rows(r)), net())
    exact, halved, factored = (DistributedDataParallel(net()) for _ in range(3))
    exact.register_comm_hook(None, default_hooks.allreduce_hook)
    halved.register_comm_hook(None, default_hooks.fp16_compress_hook)
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=12, start_powerSGD_iter=2, min_compression_rate=0
    )
    factored.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(4):
        for model in (exact, halved, factored):
            model.zero_grad()
            loss_of(model, rows(rank)).backward()
    check_gradients(exact.module, expected)
    for model, tolerance in ((halved, 2e-3), (factored, 1e-6)):  # float16; all twelve columns kept
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=tolerance, atol=tolerance)


def built_in_hooks() -> None:
    """Those that torch has in C++."""
    rank, expected = dist.get_rank(), mean_gradients(lambda one, r: loss_of(one, rows(r)), net())
    for kind, tolerance in (
        (dist.BuiltinCommHookType.ALLREDUCE, 1e-11),
        (dist.BuiltinCommHookType.FP16_COMPRESS, 2e-3),
    ):
        model = DistributedDataParallel(net(), bucket_cap_mb=1e-4)
        model._register_builtin_comm_hook(kind)
        for _ in range(3):
            model.zero_grad()
            loss_of(model, rows(rank)).backward()
        assert model._get_ddp_logging_data()["comm_hook"] == str(kind)
        for parameter, gradient in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=tolerance, atol=tolerance)


def uneven_inputs_join() -> None:
    """Rank r has 2 + r batches; who has none left contributes zeros, and the mean is still over all ranks."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    one = net()
    alone = torch.optim.SGD(one.parameters(), lr=0.1)
    with model.join():
        for number in range(2 + rank):
            optimizer.zero_grad()
            loss_of(model, rows(rank, number)).backward()
            optimizer.step()
    for number in range(1 + ranks):
        alone.zero_grad()
        (sum(loss_of(one, rows(r, number)) for r in range(ranks) if number < 2 + r) / ranks).backward()
        alone.step()
    for own, expected in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(own, expected, **EXACT)


def uneven_inputs_can_raise_on_all_ranks() -> None:
    model, rank = DistributedDataParallel(net()), dist.get_rank()
    with pytest.raises(RuntimeError, match="exhausted"), model.join(throw_on_early_termination=True):
        for number in range(2 + rank):
            loss_of(model, rows(rank, number)).backward()


def models_that_differ_are_refused() -> None:
    """DDP compares with rank 0's shapes, which rank 0 itself can't find wrong: it may get as far as its broadcast."""
    wrong = pytest.raises(RuntimeError, match="appears not to match")
    refused = suppress(RuntimeError) if dist.get_rank() == 0 else wrong
    with refused:
        DistributedDataParallel(nn.Linear(3, 4 + dist.get_rank()))


def zero1_state_is_consolidated() -> None:
    rank, model = dist.get_rank(), DistributedDataParallel(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=0.01, eps=1e-3)
    one = net()
    alone = torch.optim.AdamW(one.parameters(), lr=0.01, eps=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        alone.zero_grad()
        loss_of(model, rows(rank)).backward()
        for parameter, gradient in zip(
            one.parameters(), mean_gradients(lambda m, r: loss_of(m, rows(r)), one), strict=True
        ):
            parameter.grad = gradient
        optimizer.step()
        alone.step()
    optimizer.consolidate_state_dict(to=0)
    if rank == 0:
        states = optimizer.state_dict()["state"]
        for number, expected in alone.state_dict()["state"].items():
            torch.testing.assert_close(states[number]["exp_avg_sq"], expected["exp_avg_sq"], **EXACT)


def compiled_model() -> None:
    model = DistributedDataParallel(net())
    expected = mean_gradients(lambda one, r: loss_of(one, rows(r)), model.module)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(2):
        model.zero_grad()
        loss_of(compiled, rows(dist.get_rank())).backward()
        check_gradients(model.module, expected)
