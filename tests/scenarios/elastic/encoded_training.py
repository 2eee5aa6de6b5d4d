"""An elastic training whose gradients are encoded: what a codec has left out is each worker's own, and differs.

Prints JSON. `OWN` is the worker's number; `GOAL` are the sizes of the worlds to come, after the last of which it makes
five more steps.
"""

import json
import os
import time

import torch

import byteps_like.torch as bps

OWN = float(os.environ["OWN"])
GOAL = [int(size) for size in os.environ["GOAL"].split()]


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


bps.init()
torch.manual_seed(0)
model = torch.nn.Linear(1024, 512)
gradients = {name: torch.randn_like(one) * (1 + OWN) for name, one in model.named_parameters()}
plain = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), compression="topk:ratio=0.05")


def residual() -> list[float]:
    """Some of what the codec has left out."""
    (memory,) = optimizer.state_dict()["byteps_like"]["parameters"].values()
    left: list[float] = memory["residual"].flatten()[:2000:50].tolist()
    return left


@bps.elastic.run
def train(state):
    state.sizes = [*state.sizes, bps.size()]
    begun = state.step
    say(event="began", rank=bps.rank(), sizes=state.sizes, residual=residual())
    while state.sizes != GOAL or state.step < begun + 5:
        optimizer.zero_grad()
        sum((one * gradients[name]).sum() for name, one in model.named_parameters()).backward()
        optimizer.step()
        state.step += 1
        say(event="step", sizes=state.sizes, residual=residual())
        time.sleep(0.05)
        state.commit()


train(bps.elastic.TorchState(model, optimizer, step=0, sizes=[]))
bps.barrier()
bps.shutdown()
