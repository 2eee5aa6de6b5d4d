"""Training with a rank that is slow now and then: who waits for whom, under any consistency.

    byteps-like run -n 3 -s 1 -- python examples/slow_rank.py --consistency bsp
    byteps-like run -n 3 -s 1 -- python examples/slow_rank.py --consistency ssp:s=3
    byteps-like run -n 3 -s 1 -- python examples/slow_rank.py --consistency backup:b=1
    byteps-like run -n 3 -s 1 -- python examples/slow_rank.py --consistency asp

The last rank takes --delay milliseconds longer for one of five steps. With bsp everybody waits for it; with backup its
late gradients are dropped; with ssp fast ranks go at most s steps ahead; with asp nobody waits. See
docs/how-to/consistency.md. Every rank trains on its own share of scikit-learn's digits.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import torch
from _digits import data
from _display import console, parser
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps

BY_VERSIONS = ("backup", "k_of_n")
"""Whose rounds some ranks miss: there it is versions that are counted, not a rank's own steps."""


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--consistency", default="ssp:s=3", help="bsp, backup:b=1, ssp:s=3, asp, ... (default ssp:s=3)")
    known.add_argument("--steps", type=int, default=200, help="of each rank (default 200)")
    known.add_argument("--delay", type=float, default=50, help="milliseconds that a slow step takes (default 50)")
    known.add_argument("--batch", type=int, default=32, help="images per step and rank (default 32)")
    known.add_argument("--lr", type=float, default=0.1, help="learning rate of SGD (default 0.1)")
    return known.parse_args()


def train(optimizer: Any, model: nn.Module, args: argparse.Namespace) -> float:
    """Seconds that it took."""
    images, _, labels, _ = data()
    own = range(bps.rank(), len(images), bps.size())
    draw = random.Random(bps.rank())
    slow = bps.rank() == bps.size() - 1
    by_versions = args.consistency.startswith(BY_VERSIONS)
    began, step = time.monotonic(), 0
    while (optimizer.version if by_versions else step) < args.steps:
        rows = draw.sample(own, args.batch)
        optimizer.zero_grad()
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        if slow and draw.random() < 0.2:
            time.sleep(args.delay / 1000)
        optimizer.step()
        step += 1
    return time.monotonic() - began


def main() -> None:
    args = arguments()
    bps.init()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    plain = torch.optim.SGD(model.parameters(), lr=args.lr)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), consistency=args.consistency)
    seconds = train(optimizer, model, args)
    if args.consistency != "bsp":
        optimizer.finish()
        told = optimizer.contributed
        print(
            f"rank {bps.rank()}: {seconds:.1f} s; of {told.made} gradients of its parameters {told.left_out} came too"
            f" late, and the oldest was {told.oldest} versions old",
            flush=True,
        )
    _, images, _, labels = data()
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    if bps.rank() == 0:
        console().print(f"{args.consistency}: {seconds:.1f} s, test accuracy {accuracy:.1%} · workers: {bps.size()}")
    bps.shutdown()


if __name__ == "__main__":
    main()
