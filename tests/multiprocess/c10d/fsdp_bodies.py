"""What the ranks of test_fsdp_compression.py run: FSDP2 on two hosts, as far as our groups can tell."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import byteps_like.torch as bps
from byteps_like.collectives import communicator
from byteps_like.errors import InvalidArgumentError
from tests.fakes.native_groups import sent_across


@contextmanager
def hosts_of(each: int) -> Iterator[Any]:
    """The world anew, with `each` ranks on every host: what they send one another goes by TCP."""
    rank, size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore("hosts", dist.distributed_c10d._get_default_group().get_group_store())
    dist.destroy_process_group()
    kept = communicator.host_id
    communicator.host_id = lambda: f"host {rank // each}"
    try:
        dist.init_process_group("byteps", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=15))
        yield dist.group.WORLD
    finally:
        communicator.host_id = kept


def example() -> dict[str, Any]:
    """examples/parallel/fsdp2_compressed.py on two hosts, in float32."""
    torch.set_default_dtype(torch.float32)
    module = importlib.import_module("fsdp2_compressed")
    with hosts_of(2):
        result, one = module.main(), module.alone()
        return {
            "difference": result.difference(one),
            "allowed": module.ALLOWED,
            "losses": result.losses,
            "alone": one.losses,
            "fingerprint": {name: weight.double().sum().item() for name, weight in result.weights.items()},
        }


class Primes(nn.Module):
    """Sizes that no number of ranks divides, and parameters of one dimension."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(37, 41), nn.GELU(), nn.Linear(41, 37)) for _ in range(2)])
        self.scale, self.head = nn.Parameter(torch.ones(37)), nn.Linear(37, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(x * self.scale)


def sharded(policy: MixedPrecisionPolicy, within: int | bool | None, **options: Any) -> nn.Module:
    model = Primes()
    for block in model.blocks:
        fully_shard(block, reshard_after_forward=within, mp_policy=policy)
    fully_shard(model, mp_policy=policy)
    return bps.compress_fsdp(model, smallest=0, **options)


def step(model: nn.Module, whole: bool = False) -> Tensor:
    x = torch.randn(64, 37, generator=torch.Generator().manual_seed(5))
    own = slice(None) if whole else slice(dist.get_rank(), None, dist.get_world_size())
    loss = model(x[own]).float().square().mean()
    loss.backward()
    return loss.detach()


def shards(model: nn.Module) -> list[int]:
    """Elements per rank of each FSDP module's own parameters, padded as FSDP2 pads them."""
    found: dict[str, int] = {}
    names = [name for name, each in model.named_modules() if isinstance(each, FSDPModule)]
    for name, parameter in model.named_parameters():
        owner = max((each for each in names if not each or name.startswith(each + ".")), key=len)
        rows = -(-parameter.shape[0] // dist.get_world_size())
        found[owner] = found.get(owner, 0) + rows * parameter[0].numel()
    return list(found.values())


def counted(dtype: str) -> dict[str, Any]:
    """Bytes between hosts of one step, of all ranks together, and how far its gradients are from one process's."""
    torch.set_default_dtype(torch.float32)
    reduced = getattr(torch, dtype)
    policy = MixedPrecisionPolicy(param_dtype=reduced, reduce_dtype=reduced) if dtype != "float32" else None
    with hosts_of(2) as group:
        model = sharded(policy or MixedPrecisionPolicy(), bps.ranks_per_host(), secondary=True)
        sizes = shards(model)
        before = sent_across(group)
        step(model)
        sent = torch.tensor(float(sent_across(group) - before))
        dist.all_reduce(sent)
        step(one := Primes(), whole=True)
        own, expected = _gradient(model), _gradient(one)
        error = ((own - expected).norm() / expected.norm()).item()
        return {"sent": int(sent), "shards": sizes, "error": error}


def _gradient(model: nn.Module) -> Tensor:
    found = [parameter.grad for parameter in model.parameters()]
    return torch.cat([(one.full_tensor() if isinstance(one, DTensor) else one).flatten() for one in found])


def refused() -> list[str]:
    """The texts of what a user may do wrong."""
    torch.set_default_dtype(torch.float32)
    with hosts_of(2):
        return [
            _text(lambda: bps.compress_fsdp(Primes())),
            _text(lambda: sharded(MixedPrecisionPolicy(), None, weights="int:scale=shared")),
            _text(lambda: step(sharded(MixedPrecisionPolicy(), True, secondary=True))),
        ]


def _text(call: Callable[[], object]) -> str:
    try:
        call()
    except InvalidArgumentError as error:
        return str(error)
    return ""
