"""Trains a small GPT on the text of Python's standard library, while workers, servers and scheduler come and go.

    byteps-like run -n 4 -s 2 --max-workers 4 -- python examples/elastic/gpt.py
    byteps-like run -n 3 -s 1 --max-workers 4 -- python examples/elastic/gpt.py --save /data/gpt
    byteps-like chaos --minutes 10 --every 15 --calm 20 -n 4 -s 2 -- python examples/elastic/gpt.py --log 1

Each window of the text is used once in a pass, by whoever is there. At the end rank 0 says how well the model predicts
windows that it was not trained on, in nats per character, beside how many samples it took to learn that. With --save,
another job goes on where all of this one was killed, with as many workers and servers as it has.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import byteps_like.torch as bps

sys.path.append(str(Path(__file__).resolve().parents[1]))
from _gpt import CHARACTERS, GPT

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--steps", type=int, default=600)
arguments.add_argument("--batch", type=int, default=8, help="windows per step and worker")
arguments.add_argument("--window", type=int, default=64, help="characters")
arguments.add_argument("--width", type=int, default=128)
arguments.add_argument("--pace", type=float, default=0.0, help="seconds that a step takes at least, as on a slow GPU")
arguments.add_argument("--log", type=int, default=50, help="steps from one line of each rank to the next")
arguments.add_argument("--save", type=Path, metavar="DIR", help="go on from its newest cut, and write them there")
arguments.add_argument("--save-every", type=int, default=50, help="steps from one cut to the next")
arguments.add_argument("--json", type=Path, metavar="FILE", help="write the result there")
arguments = arguments.parse_args()

# All that takes long comes before train(): from then on the others may wait for this process.
torch.manual_seed(0)
modules = sorted(Path(os.__file__).parent.glob("*.py"))
text = torch.frombuffer(bytearray(b"".join(module.read_bytes() for module in modules)), dtype=torch.uint8) % CHARACTERS
windows = text[: len(text) // (arguments.window + 1) * (arguments.window + 1)].view(-1, arguments.window + 1)
unseen, data = windows[::50], TensorDataset(windows[torch.arange(len(windows)) % 50 != 0])
model = GPT(arguments.window, arguments.width)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)


def loss_of(batch):
    batch = batch.long()
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


loss_of(unseen[: arguments.batch]).backward()  # torch imports and allocates a lot in its first step
optimizer.zero_grad()
optimizer.step()  # without gradients

bps.init()
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = bps.elastic.ElasticSampler(data)
loader = DataLoader(data, batch_size=arguments.batch, sampler=sampler)


@bps.elastic.run(save_to=arguments.save, save_every=arguments.save_every)
def train(state):
    while state.step < arguments.steps:
        for number, (batch,) in enumerate(loader):
            began = time.monotonic()
            optimizer.zero_grad()
            loss = loss_of(batch)
            loss.backward()
            time.sleep(max(0.0, arguments.pace - (time.monotonic() - began)))
            optimizer.step()
            sampler.record_batch(number, arguments.batch)
            state.step += 1
            state.samples += len(batch) * bps.size()
            state.commit()
            if state.step % arguments.log == 0:
                print(f"step {state.step}: loss {loss.item():.3f} with {bps.size()} workers", flush=True)
            if state.step == arguments.steps:
                return
        sampler.set_epoch(sampler.epoch + 1)


state = bps.elastic.TorchState(model, optimizer, sampler=sampler, step=0, samples=0)
train(state)
if bps.rank() == 0:
    with torch.no_grad():
        loss = torch.stack([loss_of(batch) for batch in unseen.split(64)]).mean().item()
    print(f"loss {loss:.3f} of windows not seen, after {state.samples} samples in {state.step} steps")
    if arguments.json:
        arguments.json.write_text(json.dumps({"loss": loss, "samples": state.samples, "steps": state.step}))
bps.shutdown()
