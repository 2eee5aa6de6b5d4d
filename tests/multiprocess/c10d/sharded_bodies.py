"""What users of FSDP, DTensor and distributed checkpoints do; run by the ranks of test_c10d_suite_like.py."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from tests.multiprocess.c10d.ddp_bodies import EXACT, loss_of, net, rows


def sharded(model: nn.Module, **options: Any) -> nn.Module:
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, **options)
    return fully_shard(model, **options)


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def batch_of_all() -> Tensor:
    return torch.cat([rows(rank) for rank in range(dist.get_world_size())])


def fsdp2_in_bfloat16() -> None:
    """Weights gathered and gradients summed in bf16: as near to one process in bf16 as that is to float32."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    one = net().to(torch.bfloat16)
    loss_of(one, batch_of_all().bfloat16()).backward()
    model = sharded(net().float(), mp_policy=policy)
    loss_of(model, rows(dist.get_rank()).float()).backward()
    for parameter, expected in zip(model.parameters(), one.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float32
        gradient = expected.grad.float()
        torch.testing.assert_close(whole(parameter.grad), gradient, rtol=0, atol=2**-6 * gradient.abs().max().item())


def fsdp2_accumulates_without_reduction() -> None:
    one, model = net(), sharded(net())
    model.set_requires_gradient_sync(False)
    loss_of(model, rows(dist.get_rank())).backward()
    model.set_requires_gradient_sync(True)
    loss_of(model, rows(dist.get_rank())).backward()
    (2 * loss_of(one, batch_of_all())).backward()
    for parameter, expected in zip(model.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(whole(parameter.grad), expected.grad, **EXACT)


def fsdp1() -> None:
    one = net()
    model = FullyShardedDataParallel(copy.deepcopy(one), device_id=torch.device("cpu"))
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9) for each in (one, model)]
    for _ in range(2):
        for each, optimizer, inputs in zip(
            (one, model), optimizers, (batch_of_all(), rows(dist.get_rank())), strict=True
        ):
            optimizer.zero_grad()
            loss_of(each, inputs).backward()
            optimizer.step()
    with FullyShardedDataParallel.summon_full_params(model):
        for own, expected in zip(model.parameters(), one.parameters(), strict=True):
            torch.testing.assert_close(own, expected, **EXACT)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A sharded model and its optimizer after two steps; every world size trains on the same batch."""
    model = sharded(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    for number in range(2):
        optimizer.zero_grad()
        loss_of(model, rows(0, number)).backward()
        optimizer.step()
    return model, optimizer


def checkpoint_is_saved(folder: str, in_background: bool) -> None:
    model, optimizer = trained()
    weights, state = get_state_dict(model, optimizer)
    if in_background:
        # Its exchange runs beside the training's, in a group of its own.
        own = dist.new_group()
        future = dcp.async_save({"model": weights, "optimizer": state}, checkpoint_id=folder, process_group=own)
        for _ in range(3):
            dist.all_reduce(torch.ones(1000))
        future.result(timeout=20)
    else:
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder)


def checkpoint_is_loaded(folder: str) -> None:
    """By another number of ranks than had saved it."""
    expected, expected_optimizer = trained()
    model = sharded(net(seed=5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)
    weights, state = get_state_dict(model, optimizer)
    dcp.load(loaded := {"model": weights, "optimizer": state}, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    for own, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(whole(own.detach()), whole(other.detach()), **EXACT)
        for name in ("exp_avg", "exp_avg_sq"):
            pair = (whole(optimizer.state[own][name]), whole(expected_optimizer.state[other][name]))
            torch.testing.assert_close(*pair, **EXACT)


def tensors_change_their_layout() -> None:
    """Every way from one layout to another, of a tensor that no number of ranks divides."""
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    full = torch.arange(7 * 5, dtype=torch.float64).view(7, 5)
    for first in (Shard(0), Shard(1), Replicate()):
        start = distribute_tensor(full, mesh, [first])
        for second in (Shard(0), Shard(1), Replicate()):
            assert torch.equal(start.redistribute(mesh, [second]).full_tensor(), full)
    for target in (Shard(0), Shard(1), Replicate()):
        part = DTensor.from_local(full * (dist.get_rank() + 1), mesh, [Partial()])
        assert torch.equal(part.redistribute(mesh, [target]).full_tensor(), full * ranks * (ranks + 1) / 2)


def meshes_of_two_dimensions() -> None:
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("outer", "inner"))
    full = torch.arange(24.0).view(6, 4)
    product = distribute_tensor(full, mesh, [Shard(0), Shard(1)]) @ distribute_tensor(
        full.T, mesh, [Replicate(), Shard(0)]
    )
    assert torch.equal(product.full_tensor(), full @ full.T)
    for name in ("outer", "inner"):
        dist.all_reduce(total := torch.tensor(float(dist.get_rank())), group=mesh.get_group(name))
        assert total.item() == sum(dist.get_process_group_ranks(mesh.get_group(name)))
