"""Training with few synchronizations: accuracy and bytes of local SGD, DiLoCo and SparseLoCo, beside synchronous ones.

    byteps-like run -n 2 -s 1 -- python examples/diloco.py
    byteps-like run -n 4 -s 2 -- python examples/diloco.py --every 50

In synchronous training every step sends all gradients. In the others each rank makes --every steps by itself; what
ranks send is how far their weights have come meanwhile. See docs/how-to/consistency.md. Every rank trains on its own
share of scikit-learn's digits.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from _digits import data
from _display import parser
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps

SYNCHRONOUS = "synchronous"


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--every", type=int, default=20, help="steps between synchronizations (default 20)")
    known.add_argument("--steps", type=int, default=400, help="of each rank, in each training (default 400)")
    known.add_argument("--batch", type=int, default=32, help="images per step and rank (default 32)")
    known.add_argument("--lr", type=float, default=0.1, help="learning rate of the inner SGD (default 0.1)")
    return known.parse_args()


def ways(every: int) -> dict[str, dict[str, Any]]:
    """Name -> arguments of LowComm."""
    parts = min(4, every)
    return {
        "local SGD": {"every": every, "outer": bps.AveragedWeights()},
        "DiLoCo": {"every": every},
        "SparseLoCo": {"every": every, "outer": bps.AveragedWeights(), "codec": "sparseloco"},
        f"streaming DiLoCo, {parts} parts": {"every": every, "fragments": parts, "delay": min(2, every - 1)},
    }


def train(model: nn.Module, optimizer: torch.optim.Optimizer, args: argparse.Namespace) -> None:
    """An ordinary loop: whose optimizer it is makes the difference."""
    images, _, labels, _ = data()
    own = torch.arange(bps.rank(), len(images), bps.size())
    draw = torch.Generator().manual_seed(bps.rank())
    for _ in range(args.steps):
        rows = own[torch.randint(len(own), (args.batch,), generator=draw)]
        optimizer.zero_grad()
        functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()


def accuracy_and_bytes(way: dict[str, Any] | None, args: argparse.Namespace) -> tuple[float, int]:
    """On the test images, and what this rank has sent for it. None: synchronous."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    plain = torch.optim.SGD(model.parameters(), lr=args.lr)
    before = bps.stats()["payload_sent"]
    if way is None:
        optimizer = bps.DistributedOptimizer(plain, model.named_parameters())
        train(model, optimizer, args)
        optimizer.close()
    else:
        with bps.LowComm(model, plain, **way):
            train(model, plain, args)
    _, images, _, labels = data()
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    return accuracy, int(bps.stats()["payload_sent"] - before)


def main() -> None:
    args = arguments()
    bps.init(transport="tcp")  # else ranks of one host share memory, and nothing is sent
    torch.set_num_threads(1)
    found = {SYNCHRONOUS: accuracy_and_bytes(None, args)}
    found |= {name: accuracy_and_bytes(way, args) for name, way in ways(args.every).items()}
    for name, (accuracy, sent) in found.items():
        share = sent / max(found[SYNCHRONOUS][1], 1)
        print(f"rank {bps.rank()}: {name}: {share:.3f} of the bytes, test accuracy {accuracy:.1%}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
