"""Sparse logistic regression: of many weights each step needs only those of the words in its batch.

    byteps-like run -n 2 -s 1 -- python examples/key_value.py

Tells pieces of Python's own library apart: are they about texts (email, html, json, xml), or about things that run at
once (asyncio, concurrent, multiprocessing)? Servers keep a weight for each word, as rows of a KV; ranks pull those of
their batch and push gradients, up to --delay steps ahead of the slowest. See docs/how-to/key-value.md.
"""

from __future__ import annotations

import argparse
import re
import sysconfig
from hashlib import blake2b
from pathlib import Path

import numpy as np
from _display import parser

import byteps_like.torch as bps

KINDS = (("email", "html", "json", "xml"), ("asyncio", "concurrent", "multiprocessing"))
LINES = 4  # of a piece


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--epochs", type=int, default=5, help="over all pieces (default 5)")
    known.add_argument("--batch", type=int, default=64, help="pieces per step and rank (default 64)")
    known.add_argument("--delay", type=int, default=8, help="steps that a rank may be ahead (default 8)")
    known.add_argument(
        "--codec", default="", help='of gradients on their way to servers, such as "int8" (default none)'
    )
    return known.parse_args()


def key_of(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=8).digest(), "little") % (2**64 - 1)


def pieces() -> tuple[list[np.ndarray], np.ndarray, dict[int, str]]:
    """Keys of the words of each piece, ascending; its kind; all words by key."""
    texts, kinds, words = [], [], {}
    modules = [(kind, name) for kind, names in enumerate(KINDS) for name in names]
    for kind, name in modules:
        for path in sorted(Path(sysconfig.get_path("stdlib"), name).rglob("*.py")):
            lines = [line for line in path.read_text().splitlines() if name not in line]  # which would tell
            for first in range(0, len(lines), LINES):
                own = {key_of(word): word for word in re.findall(r"[A-Za-z]\w+", " ".join(lines[first:][:LINES]))}
                if own:
                    words |= own
                    texts.append(np.array(sorted(own), np.uint64))
                    kinds.append(kind)
    return texts, np.array(kinds), words


def step(kv: bps.KV, texts: list[np.ndarray], kinds: np.ndarray, learns: bool = True) -> tuple[np.ndarray, int]:
    """Which of some pieces are told right, and how many weights that took."""
    keys, places = np.unique(np.concatenate(texts), return_inverse=True)
    owners = np.repeat(np.arange(len(texts)), [len(one) for one in texts])
    weights = kv.pull(keys).value[:, 0]
    likely = 1 / (1 + np.exp(-np.bincount(owners, weights[places], len(texts))))
    if learns:
        error = np.bincount(places, (likely - kinds)[owners], len(keys)) / len(texts)
        kv.push(keys, error.astype(np.float32))
    return (likely > 0.5) == kinds, len(keys)


def main() -> None:
    args = arguments()
    bps.init()
    texts, kinds, words = pieces()
    order = np.random.default_rng(0).permutation(len(texts))
    tested, rest = order[::5], np.delete(order, np.s_[::5])
    own = rest[bps.rank() :: bps.size()][: len(rest) // bps.size() // args.batch * args.batch]  # as many on all ranks
    kv = bps.KV("words", delay=args.delay, update="adagrad:lr=0.1", codec=args.codec)
    for epoch in range(args.epochs):
        batches = np.random.default_rng(epoch).permutation(own).reshape(-1, args.batch)
        used = np.mean([step(kv, [texts[one] for one in batch], kinds[batch])[1] for batch in batches])
        right, _ = step(kv, [texts[one] for one in tested], kinds[tested], learns=False)
        if bps.rank() == 0:
            print(f"epoch {epoch + 1}: {right.mean():.1%} of {len(tested)} new pieces told right;", end=" ")
            print(f"a step took {used / len(words):.1%} of {len(words)} weights", flush=True)
    bps.barrier()
    found = kv.pull_range(0, 2**64 - 1)
    ranked = [words[int(key)] for key in found.keys[np.argsort(found.value[:, 0])]]
    print(f"rank {bps.rank()}: texts: {' '.join(ranked[:5])}; at once: {' '.join(ranked[:-6:-1])}", flush=True)
    bps.shutdown()


if __name__ == "__main__":
    main()
