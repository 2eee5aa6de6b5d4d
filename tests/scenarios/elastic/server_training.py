"""An elastic training whose every step is a sum by servers and a commit. Prints JSON, a line per event.

Passes over the data go on until `GOAL`, a list of sizes such as "3 2", are the last sizes that the world has had, and a
pass has ended. The process with `VICTIM` kills itself in the middle of a step. Rank 0 of the first world gives the
command `DRAIN`, such as "worker drain 1", to byteps-like.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import byteps_like.torch as bps

SAMPLES, BATCH = 120, 4


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


bps.init()
torch.manual_seed(os.getpid())  # rank 0's weights count
data = TensorDataset(torch.arange(SAMPLES))
model = torch.nn.Sequential(torch.nn.Linear(3, 500), torch.nn.Tanh(), torch.nn.Linear(500, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = bps.elastic.ElasticSampler(data, seed=7)
goal = [int(size) for size in os.environ["GOAL"].replace(",", " ").split()]


def features(numbers: torch.Tensor) -> torch.Tensor:
    scaled = numbers.float() / SAMPLES
    return torch.stack([scaled, scaled.square(), torch.ones_like(scaled)], 1)


def weights() -> str:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).numpy().tobytes().hex()[:64]


@bps.elastic.run
def train(state):
    state.sizes = [*state.sizes, bps.size()]
    say(event="began", rank=bps.rank(), size=bps.size(), step=state.step, weights=weights())
    while True:
        for number, (numbers,) in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
            optimizer.zero_grad()
            model(features(numbers)).square().mean().backward()
            if "VICTIM" in os.environ and state.step == 3:
                threading.Timer(0.002, os.kill, (os.getpid(), signal.SIGKILL)).start()
            if "DRAIN" in os.environ and bps.rank() == 0 and state.step == 3:
                subprocess.Popen([sys.executable, "-m", "byteps_like", *os.environ["DRAIN"].split()])
            optimizer.step()
            sampler.record_batch(number, BATCH)
            state.step += 1
            say(event="step", step=state.step, samples=numbers.tolist(), epoch=state.epoch)
            time.sleep(0.01)
            state.commit()
        if state.sizes[-len(goal) :] == goal:
            return
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()


state = bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0, sizes=[])
train(state)
say(event="end", sizes=state.sizes, weights=weights(), step=state.step)
bps.shutdown()
