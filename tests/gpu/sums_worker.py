"""One rank of a process group of torch.distributed whose ranks share a GPU: sums by CUDA IPC, and through this host.

Its arguments: the device, and a file to meet by.
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import byteps_like.torch as bps

DEVICE, MEETING = sys.argv[1:]
rank, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
device = torch.device(DEVICE, rank % torch.cuda.device_count()) if DEVICE == "cuda" else torch.device("cpu")

dist.init_process_group("byteps", init_method=f"file://{MEETING}", rank=rank, world_size=size)
ways = {"host": None, "ipc": bps.GroupOptions(local={"cuda": "ipc"})}
for name, options in ways.items():
    if name == "ipc" and device.type != "cuda":
        continue
    group = dist.new_group(pg_options=options)
    for dtype in (torch.float32, torch.bfloat16):
        for numel in (7, 1 << 20, (1 << 20) + 3):
            tensor = (torch.arange(numel, device=device) % 17).to(dtype) * (rank + 1)
            for _ in range(3):  # one behind the other: streams wait, and results are used at once
                dist.all_reduce(tensor, op=dist.ReduceOp.AVG, group=group)
            expected = (torch.arange(numel) % 17).to(dtype) * ((size + 1) / 2)
            torch.testing.assert_close(tensor.cpu(), expected.to(dtype), rtol=0, atol=0)
    dist.barrier()
print("sums are right")
dist.destroy_process_group()
