"""Training of which some steps are recorded."""

from __future__ import annotations

import threading
from typing import Any

import torch


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
