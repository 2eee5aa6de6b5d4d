"""Sparse logistic regression by ranks that write to one array without locks (Hogwild!).

    byteps-like run -n 2 -s 0 -- python examples/hogwild.py
    byteps-like run -n 1 -s 0 -- python examples/hogwild.py

Tells lines of two packages of Python's standard library apart, by their words. A line has about ten of 65,536 words, so
ranks seldom write to the same weight at the same moment, and all of them together go through the lines as many times as
fast. All ranks must be on one host. See docs/how-to/consistency.md.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from _display import parser
from _texts import Line, lines

import byteps_like.torch as bps

WORDS = 1 << 16


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--packages", nargs=2, default=("asyncio", "email"), help="(default asyncio email)")
    known.add_argument("--epochs", type=int, default=5, help="times that each line is seen (default 5)")
    known.add_argument("--lr", type=float, default=0.2, help="learning rate of SGD (default 0.2)")
    return known.parse_args()


def train(weights: np.ndarray, own: list[Line], lr: float) -> None:
    """One epoch: each line changes the weights of its words at once, where all ranks see it."""
    for words, label in own:
        margin = weights[words].sum()
        weights[words] += lr * (label - 1 / (1 + np.exp(-margin)))


def main() -> None:
    args = arguments()
    bps.init()
    every = lines(tuple(args.packages), WORDS)
    held_out, training = every[: len(every) // 5], every[len(every) // 5 :]
    store = bps.Store("words", {"w": np.zeros(WORDS)}, consistency="hogwild")
    weights = store.view("w")
    own = training[bps.rank() :: bps.size()]
    for epoch in range(args.epochs):
        bps.barrier()
        began = time.monotonic()
        train(weights, own, args.lr)
        bps.barrier()
        took = time.monotonic() - began
        right = np.mean([(weights[words].sum() > 0) == label for words, label in held_out])
        if bps.rank() == 0:
            rate = len(training) / took
            print(f"epoch {epoch + 1}: {rate:,.0f} lines a second, accuracy on other lines {right:.1%}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
