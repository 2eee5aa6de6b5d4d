"""torch's DistributedDataParallel with our hook, its own books kept by gloo. `body(bps, rank, size)`, for processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.scenarios.checks import matches
from tests.scenarios.models import batch, distance, flat, loss_of, mlp, share


@contextmanager
def gloo(bps: Any, rank: int, size: int) -> Iterator[None]:
    """torch.distributed over a file."""
    path = bps.broadcast_object(tempfile.mkdtemp())
    dist.init_process_group("gloo", init_method=f"file://{Path(path) / 'store'}", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def hooked(bps: Any, rank: int, size: int) -> None:
    """As one process on the whole batch; several buckets, which DDP builds anew after the first step."""
    with gloo(bps, rank, size):
        for view, options in ((False, {}), (True, {}), (False, {"compression": bps.Compression.bf16})):
            model, reference = mlp(widths=(20, 64, 64, 5)), mlp(widths=(20, 64, 64, 5))
            ddp = torch.nn.parallel.DistributedDataParallel(
                model, bucket_cap_mb=0.02, gradient_as_bucket_view=view
            )  # fmt: skip
            state = bps.DDPHookState(**options)
            ddp.register_comm_hook(state, bps.ddp_hook)
            optimizers = [torch.optim.SGD(item.parameters(), lr=0.1, momentum=0.9) for item in (model, reference)]
            for step in range(3):
                x, y = batch(step)
                for optimizer in optimizers:
                    optimizer.zero_grad()
                loss_of(ddp, share(x, rank, size), share(y, rank, size)).backward()
                loss_of(reference, x, y).backward()
                for optimizer in optimizers:
                    optimizer.step()
            matches(bps, model, reference, 1e-2 if options else 1e-12)
            assert state.error is None and state.route in ("server", "allreduce", "none")


def without_state(bps: Any, rank: int, size: int) -> None:
    with gloo(bps, rank, size):
        model, reference = mlp(), mlp()
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        ddp.register_comm_hook(None, bps.ddp_hook)
        x, y = batch(0)
        loss_of(ddp, share(x, rank, size), share(y, rank, size)).backward()
        loss_of(reference, x, y).backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            assert distance(ours.grad, theirs.grad) < 1e-12
        assert flat(model).isfinite().all()


def failing(bps: Any, rank: int, size: int) -> str:
    """What backward raises when the job fails: an error, with its text, not a crash."""
    with gloo(bps, rank, size):
        model = mlp()
        ddp = torch.nn.parallel.DistributedDataParallel(model)
        state = bps.DDPHookState()
        ddp.register_comm_hook(state, bps.ddp_hook)
        loss = loss_of(ddp, *batch(0))
        bps.barrier()
        if rank == size - 1:
            bps.shutdown()
        try:
            loss.backward()
        except RuntimeError as error:
            return f"{type(state.error).__name__}: {error}"
        return "nothing was raised"


SCENARIOS = [hooked, without_state]
"""Bodies that need nothing but (bps, rank, size)."""
