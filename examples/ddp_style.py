"""DistributedDataParallel with gradient accumulation: no network in `no_sync`, averages after the last backward.

    byteps-like run -n 2 -s 1 -- python examples/ddp_style.py

The training loop is torch's own, for its DistributedDataParallel, with a plain optimizer.
"""

import argparse
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps (default 60)")
    parser.add_argument("--accumulate", type=int, default=4, help="backward passes per step (default 4)")
    args = parser.parse_args()

    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(bps.rank())  # each rank its own data; the wrapper hands out rank 0's weights
    truth = torch.linspace(-1, 1, 8)
    model = bps.DistributedDataParallel(
        nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 1))
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for step in range(args.steps):
        optimizer.zero_grad()
        for number in range(args.accumulate):
            last = number == args.accumulate - 1
            inputs = torch.randn(32, 8)
            with nullcontext() if last else model.no_sync():
                loss = functional.mse_loss(model(inputs).squeeze(1), inputs @ truth)
                (loss / args.accumulate).backward()
        optimizer.step()
        if bps.rank() == 0 and (step + 1) % 20 == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    weights = [parameter.detach().sum().item() for parameter in model.parameters()]
    assert all(other == weights for other in bps.allgather_object(weights)), "the ranks have drifted apart"
    print(f"rank {bps.rank()}: same weights on all {bps.size()} ranks")
    bps.shutdown()


if __name__ == "__main__":
    main()
