"""A rank that is always slower than the others: equal batches beside batches by speed.

    byteps-like run -n 4 -s 1 -- python examples/batch_shares.py
    byteps-like run -n 4 -s 0 -- python examples/batch_shares.py --slow 3

An image takes --cost milliseconds, and on the last rank --slow times as long. Ranks sleep for it, so that this also
holds on a host with few cores. With equal batches all ranks wait for the last one; with bps.BatchShares it gets fewer
images, and gradients stay those of the global batch. See docs/how-to/consistency.md. The images are scikit-learn's
digits.
"""

from __future__ import annotations

import argparse
import itertools
import time
from statistics import median

import torch
from _digits import data
from _display import parser
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--slow", type=float, default=2, help="how many times as long the last rank takes (default 2)")
    known.add_argument("--cost", type=float, default=3, help="milliseconds that others take for an image (default 3)")
    known.add_argument("--batch", type=int, default=112, help="images per step, of all ranks together (default 112)")
    known.add_argument("--steps", type=int, default=40, help="in each training (default 40)")
    known.add_argument("--lr", type=float, default=0.5, help="learning rate of SGD (default 0.5)")
    return known.parse_args()


def train(model: nn.Module, shares: bps.BatchShares, args: argparse.Namespace) -> list[float]:
    """Seconds that each step took."""
    images, _, labels, _ = data()
    seconds = args.cost / 1000 * (args.slow if bps.rank() == bps.size() - 1 else 1)
    draw = torch.Generator().manual_seed(0)  # the same batches on all ranks
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=args.lr), model.named_parameters())
    began = [time.monotonic()]
    for _ in range(args.steps):
        rows = torch.randint(len(images), (args.batch,), generator=draw)
        optimizer.zero_grad()
        with shares.step() as own:
            time.sleep(own * seconds)
            mine = rows[shares.slice]
            (functional.cross_entropy(model(images[mine]), labels[mine]) * shares.scale).backward()
        optimizer.step()
        began.append(time.monotonic())
    optimizer.close()
    return [end - begin for begin, end in itertools.pairwise(began)]


def main() -> None:
    args = arguments()
    bps.init()
    torch.set_num_threads(1)
    _, images, _, labels = data()
    ideal = args.batch * args.cost / (bps.size() - 1 + 1 / args.slow)
    for name, every in (("equal", args.steps), ("by speed", 1)):  # the first never comes to change
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        shares = bps.BatchShares(args.batch, every=every)
        taken = median(train(model, shares, args)[args.steps // 2 :]) * 1000
        accuracy = (model(images).argmax(1) == labels).float().mean().item()
        if bps.rank() == 0:
            dealt = " + ".join(map(str, shares.by_rank))
            print(
                f"{name}: {dealt} images, {taken:.0f} ms a step, {taken / ideal:.2f} times the ideal, test accuracy"
                f" {accuracy:.1%}",
                flush=True,
            )
    bps.shutdown()


if __name__ == "__main__":
    main()
