"""A worker of the job that `bench.elastic.timelines` records: it trains in worlds of 3, 2 and 3, and says when each has
begun. A line of JSON per event, with nanoseconds of the monotonic clock, as in the timeline."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch

import byteps_like.torch as bps

STEPS = 40
"""Of the last world."""


def say(event: str, **what: Any) -> None:
    """To whoever has started the job."""
    print(json.dumps({"event": event, "pid": os.getpid(), "at": time.monotonic_ns(), **what}), flush=True)


def main() -> None:
    """Until the third world has made its steps."""
    model = torch.nn.Sequential(torch.nn.Linear(256, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 256))
    inputs = torch.randn(64, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    model(inputs).square().mean().backward()
    optimizer.step()  # torch imports and allocates most of what it needs: others would wait for that
    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

    @bps.elastic.run
    def train(state: Any) -> None:
        state.sizes = [*state.sizes, bps.size()]
        say("world", rank=bps.rank(), size=bps.size(), number=len(state.sizes))
        for step in range(1_000_000):
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            say("step", size=bps.size())
            if state.sizes[-2:] == [2, 3] and step == STEPS:
                return
            state.commit()

    train(bps.elastic.TorchState(model, optimizer, sizes=[]))
    bps.shutdown()


if __name__ == "__main__":
    main()
