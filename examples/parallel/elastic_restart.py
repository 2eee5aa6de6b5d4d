"""torchrun starts a job anew after a rank has died; the job goes on from its checkpoint to the same result.

    torchrun --nproc_per_node 2 --max-restarts 1 examples/parallel/elastic_restart.py

Rank 1 kills itself once, in step 7, while the others wait for its gradients: they get an error at once and end. The new
ranks make a new group under the same address and begin with step 6. Over several machines the checkpoint would lie on
a disk that all of them see.
"""

import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from _digits import alone, batches, network, optimizer_of
from _job import Result, mean_over_ranks, run
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

RESTARTS = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
CHECKPOINT = Path(tempfile.gettempdir()) / f"elastic_restart_{os.getppid()}.pt"  # torchrun, the parent, stays
DEATH, PERIOD = 7, 3


def save(state: dict) -> None:
    """Written beside it and moved there, so that a rank that dies leaves a whole file behind."""
    torch.save(state, CHECKPOINT.with_suffix(".new"))
    CHECKPOINT.with_suffix(".new").replace(CHECKPOINT)


def main() -> Result:
    rank, model, losses = dist.get_rank(), network(), []
    optimizer = optimizer_of(model)
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        losses = state["losses"]
        print(f"rank {rank}: restart {RESTARTS} goes on with step {len(losses)}", flush=True)
    wrapped, own = DistributedDataParallel(model), slice(rank, None, dist.get_world_size())
    for step, (pictures, labels) in enumerate(batches()):
        if step < len(losses):
            continue
        if step == DEATH and rank == 1 and RESTARTS == 0:
            print("rank 1: dies", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = functional.cross_entropy(wrapped(pictures[own]), labels[own])
        loss.backward()
        optimizer.step()
        losses.append(mean_over_ranks(loss))
        if rank == 0 and len(losses) % PERIOD == 0:
            save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses})
    dist.barrier()
    CHECKPOINT.unlink(missing_ok=True)
    return Result(losses, model.state_dict())


if __name__ == "__main__":
    run(main, alone)
