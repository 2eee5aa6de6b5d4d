"""Trains on handwritten digits while workers come and go.

    byteps-like run -n 2 --min-workers 1 --max-workers 3 -- python examples/elastic/digits.py

Kill one of the workers, by `kill -9`, and see the others go on.
"""

import argparse
import os

import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

import byteps_like.torch as bps

arguments = argparse.ArgumentParser(description=__doc__)
arguments.add_argument("--epochs", type=int, default=5)
arguments.add_argument("--batch", type=int, default=32)
arguments = arguments.parse_args()

bps.init()
digits = load_digits()
data = TensorDataset(torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target))
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = bps.elastic.ElasticSampler(data)
loader = DataLoader(data, batch_size=arguments.batch, sampler=sampler)


@bps.elastic.run
def train(state):
    print(f"process {os.getpid()} is rank {bps.rank()} of {bps.size()}, at step {state.step}", flush=True)
    while state.epoch < arguments.epochs:
        for number, (images, labels) in enumerate(loader):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            sampler.record_batch(number, arguments.batch)
            state.step += 1
            state.commit()
        state.epoch += 1
        sampler.set_epoch(state.epoch)
        state.commit()
        if bps.rank() == 0:
            print(f"epoch {state.epoch}: loss {loss.item():.3f} with {bps.size()} workers", flush=True)


train(bps.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, step=0))
accuracy = (model(data.tensors[0]).argmax(1) == data.tensors[1]).float().mean().item()
if bps.rank() == 0:
    print(f"accuracy {accuracy:.3f}")
bps.shutdown()
