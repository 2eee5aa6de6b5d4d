"""A BytePS script after its migration: the import line is changed, nothing else (see docs/how-to/migration.md).

byteps-like run -n 2 -s 1 -- python examples/from_byteps.py --epochs 3
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import byteps_like.torch as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--fp16-pushpull", action="store_true", help="halve the bytes on the wire")
args = parser.parse_args()

bps.init()
torch.manual_seed(42)
torch.set_num_threads(1)

# Which of four random directions a point lies nearest to.
points = torch.randn(2048, 16)
labels = (points @ torch.randn(16, 4)).argmax(1)
dataset = TensorDataset(points, labels)
sampler = DistributedSampler(dataset, num_replicas=bps.size(), rank=bps.rank())
loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * bps.size(), momentum=0.9)
compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), compression=compression)
bps.broadcast_parameters(model.state_dict(), root_rank=0)
bps.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    correct = torch.zeros(1)
    for batch, target in loader:
        optimizer.zero_grad()
        output = model(batch)
        functional.cross_entropy(output, target).backward()
        optimizer.step()
        correct += (output.argmax(1) == target).sum()
    accuracy = bps.push_pull(correct / len(sampler), average=True, name="accuracy")
    if bps.rank() == 0:
        print(f"epoch {epoch + 1}: training accuracy {accuracy.item():.1%}")
