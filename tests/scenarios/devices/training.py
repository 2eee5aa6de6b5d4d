"""What training on a device promises, as seen by one rank: `body(bps, rank, size, device)`.

`device` is a GPU's in tests/gpu; in tests/unit it is the CPU, which a software device plays. Models have their own
generators, and are made on the CPU: ranks may be threads of one process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.models import batch, distance, flat, loss_of, mlp, share

STEPS = 4
BFLOAT = 2e-2
"""Relative norm, where products are made in bfloat16, of 8 bits, and batches are cut in other ways."""


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def plainly(model: nn.Module, device: torch.device) -> torch.Tensor:
    """The parameters after as many steps of one process."""
    model = copy.deepcopy(model).to(device)
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = (part.to(device) for part in batch(step))
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    return flat(model).cpu()


def on_rank(step: int, rank: int, size: int, device: torch.device) -> list[torch.Tensor]:
    return [share(part, rank, size).to(device) for part in batch(step)]


def equals_one_process(
    bps: Any, rank: int, size: int, device: torch.device, change: Callable[[Any], Any] = lambda model: model
) -> None:
    """In float64, where devices differ by the order of sums alone. `change`: of the model that is called."""
    model = mlp().to(device)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    forward = change(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(forward, *on_rank(step, rank, size, device)).backward()
        optimizer.step()
    assert distance(flat(model).cpu(), plainly(mlp(), torch.device("cpu"))) < 1e-12
    same_everywhere(bps, flat(model).cpu())


def compiled(bps: Any, rank: int, size: int, device: torch.device, backend: str = "aot_eager") -> None:
    """A model that torch.compile has made: hooks see its gradients as any others."""
    equals_one_process(bps, rank, size, device, lambda model: torch.compile(model, backend=backend))


def scaled(bps: Any, rank: int, size: int, device: torch.device) -> None:
    """autocast, GradScaler and clipping: as one process but for bfloat16's rounding, and alike on all ranks."""
    model, reference = (mlp(torch.float32).to(device) for _ in range(2))
    optimizer, plain = bps.DistributedOptimizer(sgd(model), model.named_parameters()), sgd(reference)
    scalers = [torch.amp.GradScaler(device.type, init_scale=256.0) for _ in range(2)]
    for step in range(STEPS):
        for module, owner, scaler, place in ((model, optimizer, scalers[0], rank), (reference, plain, scalers[1], -1)):
            x, y = on_rank(step, place, size, device) if place >= 0 else on_rank(step, 0, 1, device)
            owner.zero_grad()
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.mse_loss(module(x.float()).float(), y.float())
            scaler.scale(loss).backward()
            if place >= 0:
                owner.synchronize()
            scaler.unscale_(owner)
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            with optimizer.skip_synchronize():
                scaler.step(owner)
            scaler.update()
    assert distance(flat(model).cpu(), flat(reference).cpu()) < BFLOAT
    same_everywhere(bps, flat(model).cpu())


def skipped(bps: Any, rank: int, size: int, device: torch.device, **options: Any) -> None:
    """What overflows on the last rank alone is seen by all: none makes the step, all halve the scale."""
    model = mlp(torch.float32).to(device)
    before = flat(model).clone()
    plain = torch.optim.Adam(model.parameters(), lr=0.1, **options)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    x, y = on_rank(0, rank, size, device)
    factor = float("inf") if rank == size - 1 else 1.0
    scaler.scale(loss_of(model, x, y) * factor).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(flat(model), before) and scaler.get_scale() == 2.0
    optimizer.zero_grad()
    scaler.scale(loss_of(model, x, y)).backward()
    scaler.step(optimizer)
    assert not torch.equal(flat(model), before) and bool(flat(model).isfinite().all())
    same_everywhere(bps, flat(model).cpu())


@contextmanager
def alone_in_gloo() -> Any:
    """torch's process group of one rank, for DistributedDataParallel, whose hook does the rest."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def hooked(bps: Any, rank: int, size: int, device: torch.device, backend: str = "aot_eager") -> None:
    """torch's DistributedDataParallel, compiled, with our hook: in a world of one."""
    with alone_in_gloo():
        model = mlp().to(device)
        ddp = nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(bps.DDPHookState(), bps.ddp_hook)
        optimizer, forward = sgd(model), torch.compile(ddp, backend=backend)
        for step in range(STEPS):
            x, y = on_rank(step, rank, size, device)
            optimizer.zero_grad()
            nn.functional.mse_loss(forward(x), y).backward()
            optimizer.step()
        assert distance(flat(model).cpu(), plainly(mlp(), torch.device("cpu"))) < 1e-12


class Bucket:
    """A GradBucket of one gradient, which the hook is called with."""

    def __init__(self, device: torch.device) -> None:
        self._parameter, self._buffer = torch.zeros(4, device=device), torch.ones(4, device=device)

    def index(self) -> int:
        return 0

    def is_last(self) -> bool:
        return True

    def buffer(self) -> torch.Tensor:
        return self._buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def parameters(self) -> list[torch.Tensor]:
        return [self._parameter]

    def gradients(self) -> list[torch.Tensor]:
        return [self._buffer]


def graphs_refused(bps: Any, rank: int, size: int, device: torch.device, capturing: Callable[[], Any]) -> None:
    """By operations, by DDP's hook and by optimizers; each says why and what to do instead. All go on afterwards."""
    model, tensor = mlp(torch.float32).to(device), torch.ones(4, device=device)
    optimizer = bps.DistributedOptimizer(sgd(model), model.named_parameters())
    state, bucket = bps.DDPHookState(), Bucket(device)

    x, y = on_rank(0, rank, size, device)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()

    calls = [lambda: bps.push_pull(tensor, name="one"), lambda: bps.ddp_hook(state, bucket).wait(), step]
    for call in calls:
        call()  # what is declared, and loaded, in the first round
    optimizer.zero_grad()
    for call in [*calls[:2], lambda: loss_of(model, x, y).backward()]:
        with capturing():
            raises(bps.InvalidArgumentError, call, "while a CUDA graph is captured on", "reduce between replays")
    for call in calls:
        call()
