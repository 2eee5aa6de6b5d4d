"""A Horovod script after its migration: the import line is changed, nothing else (see docs/how-to/migration.md).

byteps-like run -n 2 -s 1 -- python examples/from_horovod.py --epochs 3
"""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import byteps_like.torch as hvd

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--batches-per-allreduce", type=int, default=2, help="batches added up locally before a step")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--lr", type=float, default=0.02)
args = parser.parse_args()

hvd.init()
torch.manual_seed(42)
torch.set_num_threads(1)

# Which of four random directions a point lies nearest to.
points = torch.randn(2048, 16)
labels = (points @ torch.randn(16, 4)).argmax(1)
dataset = TensorDataset(points, labels)
sampler = DistributedSampler(dataset, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(dataset, batch_size=args.batch_size * args.batches_per_allreduce, sampler=sampler)

model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * args.batches_per_allreduce * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(
    optimizer,
    named_parameters=model.named_parameters(),
    compression=hvd.Compression.none,
    backward_passes_per_step=args.batches_per_allreduce,
    op=hvd.Average,
)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    correct = torch.zeros(1)
    for batch, target in loader:
        optimizer.zero_grad()
        for part in range(args.batches_per_allreduce):
            rows = slice(part * args.batch_size, (part + 1) * args.batch_size)
            output = model(batch[rows])
            loss = functional.cross_entropy(output, target[rows])
            (loss / args.batches_per_allreduce).backward()
            correct += (output.argmax(1) == target[rows]).sum()
        optimizer.step()
    accuracy = hvd.allreduce(correct / len(sampler), name="accuracy")
    if hvd.rank() == 0:
        print(f"epoch {epoch + 1}: training accuracy {accuracy.item():.1%}")

# Every rank looks at another share of the points, and hands each to the rank of its class; none may be left over.
own = points[hvd.rank() :: hvd.size()]
with torch.no_grad():
    owner = model(own).argmax(1) % hvd.size()
splits = torch.bincount(owner, minlength=hvd.size())
dealt, received = hvd.alltoall(own[owner.argsort()], splits=splits, name="by class")
counts = hvd.allgather(torch.tensor([len(dealt)]), name="counts")
assert int(received.sum()) == len(dealt) and int(counts.sum()) == len(points)

# Ranks now have different numbers of batches: who has none left joins, and the others go on.
for batch in dealt[: 256 * (hvd.rank() + 1)].split(64):
    optimizer.zero_grad()
    for part in batch.chunk(args.batches_per_allreduce):
        model(part).square().mean().mul(1e-3).backward()
    optimizer.step()
last = hvd.join()
hvd.broadcast_parameters(model.state_dict(), root_rank=last)
if hvd.rank() == 0:
    print(f"{counts.tolist()} points per rank; rank {last} was the last to run out of batches")
