"""A training script for Horovod Elastic: runs as it is but for its import line. Prints JSON, a line per event.

Passes over the data go on until `GOAL`, a list of sizes such as "3 2 3", are the last sizes that the world has had, and
a pass has ended. The first process that can create the file `VICTIM` kills itself in the middle of a step.
"""

import json
import os
import signal
import time
from pathlib import Path

import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader, TensorDataset

SAMPLES, BATCH = 120, 4


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


hvd.init()
torch.manual_seed(os.getpid())  # rank 0's weights count
data = TensorDataset(torch.arange(SAMPLES))
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(data, seed=7)
goal = [int(size) for size in os.environ["GOAL"].split()]


def features(numbers: torch.Tensor) -> torch.Tensor:
    scaled = numbers.float() / SAMPLES
    return torch.stack([scaled, scaled.square(), torch.ones_like(scaled)], 1)


def is_victim() -> bool:
    try:
        Path(os.environ.get("VICTIM", "/")).touch(exist_ok=False)
    except OSError:
        return False
    return True


def weights() -> str:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).numpy().tobytes().hex()


@hvd.elastic.run
def train(state):
    state.sizes = [*state.sizes, hvd.size()]
    say(event="began", rank=hvd.rank(), size=hvd.size(), step=state.step, weights=weights())
    while True:
        for number, (numbers,) in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
            optimizer.zero_grad()
            model(features(numbers)).square().mean().backward()
            if state.step == 3 and is_victim():
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.step()
            sampler.record_batch(number, BATCH)
            state.seen = state.seen + hvd.allgather(numbers).tolist()
            state.step += 1
            time.sleep(0.02)
            state.commit()
        say(event="pass", seen=sorted(state.seen), weights=weights(), step=state.step, size=hvd.size())
        if state.sizes[-len(goal) :] == goal:
            return
        state.seen, state.epoch = [], state.epoch + 1
        sampler.set_epoch(state.epoch)
        state.commit()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, seen=[], sizes=[])
state.register_reset_callbacks([lambda: say(event="reset", size=hvd.size())])
train(state)
say(event="end", sizes=state.sizes, weights=weights())
hvd.shutdown()
