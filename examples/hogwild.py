"""Sparse logistic regression by ranks that write to one array without locks (Hogwild!).

    byteps-like run -n 2 -s 0 -- python examples/hogwild.py
    byteps-like run -n 1 -s 0 -- python examples/hogwild.py

Tells lines of two packages of Python's standard library apart, by their words. A line has a few of 65,536 words, so
ranks seldom write to the same weight at the same moment, and together they go through more lines than one does, as far
as the host's cores allow. All ranks must be on one host. See docs/how-to/consistency.md.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sysconfig
import time
import zlib
from typing import NamedTuple

import numpy as np
from _display import parser

import byteps_like.torch as bps

WORDS = 1 << 16
MOST = 0.01
"""Words of more lines than this part tell little, and all ranks would write to their weights all the time."""


class Line(NamedTuple):
    """A line of a program, and which of two packages it is from."""

    words: np.ndarray
    """Numbers of its words, each once, ascending: int64."""
    label: int
    """0 or 1."""


def lines(packages: tuple[str, str], words: int, least: int = 4) -> list[Line]:
    """All lines with `least` words and more of two packages, shuffled; equal ones once. Words are numbered from 0 to
    `words` - 1 by their checksums, so that no rank needs a dictionary."""
    home = pathlib.Path(sysconfig.get_path("stdlib"))
    found = {}
    for label, package in enumerate(packages):
        for path in sorted((home / package).rglob("*.py")):
            for text in path.read_text(encoding="utf-8", errors="ignore").splitlines():
                numbers = {zlib.crc32(word.encode()) % words for word in re.findall(r"\w+", text)}
                if len(numbers) >= least:
                    found[tuple(sorted(numbers))] = label
    every = [Line(np.array(numbers), label) for numbers, label in found.items()]
    counts = np.bincount(np.concatenate([line.words for line in every]), minlength=words)
    seldom = counts <= len(every) * MOST
    kept = [Line(line.words[seldom[line.words]], line.label) for line in every]
    return [kept[at] for at in np.random.default_rng(0).permutation(len(kept)) if kept[at].words.size]


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
