"""Training of which some steps are recorded."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import torch


def from_start_to_stop(bps: Any, rank: int, size: int, folder: str) -> None:
    """Horovod's calls: two timelines, one after the other, each with what was done meanwhile."""
    for name in ("first", "second"):
        path = Path(folder) / name
        bps.start_timeline(str(path), mark_cycles=True)
        bps.start_timeline(str(path))  # changes nothing
        bps.allreduce(torch.ones(3), name=f"within.{name}")
        bps.barrier()
        bps.stop_timeline()
        bps.stop_timeline()
        bps.allreduce(torch.ones(3), name=f"after.{name}")
        if rank == 0:
            text = path.read_text()
            assert json.loads(text)["traceEvents"] and f"within.{name}" in text
            assert "after." not in text and ("within.first" in text) == (name == "first")


def by_rank_0(bps: Any, rank: int, size: int, folder: str, steps: int) -> list[int]:
    """Rank 0 alone asks for `steps` steps; trains until all ranks have recorded theirs. The numbers recorded here."""
    from byteps_like.timeline.recorder import recorder

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    recorded, finished = [], torch.zeros(1)
    for step in range(2000):
        if step == 2 and rank == 0:
            bps.trace(folder, steps=steps)
        number = recorder.steps
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        whole = recorder.active
        optimizer.step()
        if whole:
            recorded.append(number)
        finished.fill_(float(step > 2 and not recorder.active and bool(recorded)))
        if bps.push_pull(finished, average=True, name="finished").item() == 1.0:
            break
        threading.Event().wait(0.002)
    optimizer.close()
    return recorded
