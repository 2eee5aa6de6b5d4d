"""step() that doesn't wait: each layer of the next forward waits for its own parameters only.

    byteps-like run -n 2 -s 1 -- python examples/cross_barrier.py

Trains the same network on scikit-learn's digits twice, with step() waiting for all gradients and with cross_barrier,
and compares: the weights are the same, bit for bit. What differs is where the waiting is done. On one host there is
little to wait for; where the network is what training waits for, forward goes on while gradients of late layers are on
their way (docs/explanation/scheduler.md).
"""

import argparse
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps


def network() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(256, 10))


def train(crosses: bool, steps: int) -> tuple[nn.Module, float, float]:
    """The trained network, its last loss, and the share of the time that was spent in step()."""
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16, torch.tensor(digits.target)
    model = network()
    plain = torch.optim.AdamW(model.parameters(), lr=0.003)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), cross_barrier=crosses, model=model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    rows, in_step, start = torch.Generator().manual_seed(2), 0.0, time.perf_counter()
    for _ in range(steps):
        own = torch.randint(len(labels), (64,), generator=rows)[bps.rank() :: bps.size()]
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(images[own]), labels[own])
        loss.backward()
        before = time.perf_counter()
        optimizer.step()
        in_step += time.perf_counter() - before
        schedule.step()
    share = in_step / (time.perf_counter() - start)
    optimizer.synchronize()  # the weights are read below; state_dict() would wait by itself
    optimizer.close()
    return model, loss.item(), share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps (default 100)")
    args = parser.parse_args()
    bps.init()
    torch.set_num_threads(1)
    waiting, loss, share = train(False, args.steps)
    crossing, _, crossing_share = train(True, args.steps)
    for one, other in zip(waiting.parameters(), crossing.parameters(), strict=True):
        assert torch.equal(one, other), "crossing the barrier has changed the weights"
    print(
        f"rank {bps.rank()}: same weights with and without the barrier, loss {loss:.3f};"
        f" step() took {share:.0%} of the time with it, {crossing_share:.0%} without"
    )
    bps.shutdown()


if __name__ == "__main__":
    main()
