"""An elastic training whose every fourth commit becomes a cut in `CUTS`, for `PASSES` passes over the data.

Prints JSON. `VICTIM` is a rank and a number: that rank kills itself while it writes its part of that cut. After the
step `LAST` all finish the cut that they write, and wait to be killed.
"""

import json
import os
import signal
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

import byteps_like.torch as bps
from byteps_like.torch.elastic.cuts.writing import CutPart

SAMPLES, BATCH, EVERY = 240, 4, 4


def say(**what: object) -> None:
    print(json.dumps({"pid": os.getpid(), **what}), flush=True)


write = CutPart._write_own


def write_or_die(part: CutPart) -> str:
    """What has been written of the cut by then is all that there is of this rank."""
    if os.environ.get("VICTIM") == f"{part.rank} {part.number}":
        os.kill(os.getpid(), signal.SIGKILL)
    return write(part)


CutPart._write_own = write_or_die
bps.init()
torch.manual_seed(os.getpid())  # rank 0's weights count
data = TensorDataset(torch.arange(SAMPLES))
model = torch.nn.Linear(3, 40)
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = bps.elastic.ElasticSampler(data, seed=7)


def weights() -> str:
    return torch.cat([one.detach().flatten() for one in model.parameters()]).numpy().tobytes().hex()[:64]


@bps.elastic.run(save_to=os.environ["CUTS"], save_every=EVERY, keep=3)
def train(state):
    say(event="began", rank=bps.rank(), size=bps.size(), step=state.step, weights=weights())
    while state.epoch < int(os.environ["PASSES"]):
        for number, (numbers,) in enumerate(DataLoader(data, batch_size=BATCH, sampler=sampler)):
            optimizer.zero_grad()
            model(torch.randn(len(numbers), 3)).square().mean().backward()
            optimizer.step()
            sampler.record_batch(number, BATCH)
            state.step += 1
            say(event="step", step=state.step, samples=numbers.tolist(), epoch=state.epoch, weights=weights())
            time.sleep(0.02)
            state.commit()
            if state.step == int(os.environ.get("LAST", "0")):
                state.finish_cut()
                time.sleep(600)
        state.epoch += 1
        sampler.set_epoch(state.epoch)


state = bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0)
train(state)
say(event="end", weights=weights(), step=state.step, latest=str(bps.elastic.latest(os.environ["CUTS"])))
bps.shutdown()
