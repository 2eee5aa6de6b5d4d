"""A script for torchrun: in its first life rank 1 fails in the middle of training, in the second all goes well."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import byteps_like.torch
from tests.scenarios.c10d import users as c10d_users


def main() -> None:
    assert byteps_like.torch
    torch.set_num_threads(1)
    life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for _ in range(2):  # one store serves two worlds, one after the other
        dist.init_process_group("byteps")
        rank, size = dist.get_rank(), dist.get_world_size()
        c10d_users.ddp(None, rank, size)
        if life == 0 and rank == 1:
            os._exit(3)
        dist.barrier()
        dist.destroy_process_group()
    Path(sys.argv[1], f"{life}.{rank}").write_text("done")


if __name__ == "__main__":
    main()
