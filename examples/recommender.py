"""A recommender whose embeddings are on servers: clicks predicted from users, items and contexts.

    byteps-like run -n 2 -s 1 -- python examples/recommender.py

The log of clicks is made up: ids are drawn by Zipf's law, so a few come all the time and most hardly ever, and what is
clicked on follows from hidden numbers of each id. Servers keep a row for each id, and update the rows that a batch
names; the small dense network is averaged as in any other model. Prints the area under the ROC curve (0.5: guessed) of
clicks that were not trained on, and how many rows servers have memory for. See docs/how-to/tables.md.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from _display import parser
from torch import nn
from torch.nn import functional as F

import byteps_like.torch as bps
from byteps_like.store.tables.ids import mixed

FEATURES = 6  # kinds of ids: user, item, ...
SHOWN = 3  # ids of each kind in one event: a history, say
DENSE = 4  # plain numbers of an event


def arguments() -> argparse.Namespace:
    known = parser(__doc__)
    known.add_argument("--steps", type=int, default=300, help="of each rank (default 300)")
    known.add_argument("--batch", type=int, default=512, help="events per step and rank (default 512)")
    known.add_argument("--ids", type=int, default=10**9, help="of each kind that there may be (default 10^9)")
    known.add_argument("--dim", type=int, default=16, help="numbers in a row (default 16)")
    known.add_argument("--zipf", type=float, default=1.2, help="the law's exponent (default 1.2)")
    return known.parse_args()


class Log:
    """Made-up events."""

    def __init__(self, args: argparse.Namespace, seed: int) -> None:
        self._ids, self._zipf, self._draw = args.ids, args.zipf, np.random.default_rng(seed)

    def events(self, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids [count, FEATURES, SHOWN], numbers [count, DENSE], clicks [count]."""
        ids = self._draw.zipf(self._zipf, (count, FEATURES, SHOWN)).astype(np.uint64) % np.uint64(self._ids)
        ids += np.arange(FEATURES, dtype=np.uint64)[:, None] << np.uint64(40)  # each kind has numbers of its own
        numbers = self._draw.normal(size=(count, DENSE)).astype(np.float32)
        hidden = (mixed(ids ^ np.uint64(0xC11C)) >> np.uint64(11)).astype(np.float64) * 2.0**-53 - 0.5
        liking = 3 * hidden.mean(2).sum(1) + numbers @ np.linspace(-0.5, 0.5, DENSE)
        clicks = self._draw.random(count) < 1 / (1 + np.exp(-liking))
        return torch.from_numpy(ids.astype(np.int64)), torch.from_numpy(numbers), torch.from_numpy(clicks)


class Recommender(nn.Module):
    """Means of the rows of each kind, beside the numbers, through a small network."""

    def __init__(self, table: bps.Table) -> None:
        super().__init__()
        self.bag = bps.EmbeddingBag(table, "mean")
        inputs = FEATURES * table.dim + DENSE
        self.top = nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, ids: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        """The logit of a click, of each event."""
        rows = self.bag(ids.flatten(0, 1)).reshape(len(ids), -1)
        return self.top(torch.cat([rows, numbers], 1)).squeeze(1)


def area_under_curve(scores: np.ndarray, clicks: np.ndarray) -> float:
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    ones = int(clicks.sum())
    return float((ranks[clicks].sum() - ones * (ones + 1) / 2) / (ones * (len(clicks) - ones)))


def main() -> None:
    args = arguments()
    bps.init()
    torch.manual_seed(0)
    table = bps.Table("ids", args.dim, optimizer="row_adagrad:lr=0.1", init="uniform:bound=0.05")
    model = Recommender(table)
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=1e-3), model.named_parameters())
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    log, unseen = Log(args, seed=1 + bps.rank()), Log(args, seed=0).events(10_000)
    for step in range(args.steps):
        ids, numbers, clicks = log.events(args.batch)
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(model(ids, numbers), clicks.float()).backward()
        optimizer.step()
        if bps.rank() == 0 and (step + 1) % max(args.steps // 5, 1) == 0:
            with torch.no_grad():
                area = area_under_curve(model(*unseen[:2]).numpy(), unseen[2].numpy())
            print(f"step {step + 1}: area under the curve {area:.3f}", flush=True)
    table.finish()
    if bps.rank() == 0:
        rows = sum(len(ids) for ids, _ in table.all_rows())
        print(f"servers keep {rows} rows of {FEATURES * args.ids} that there may be", flush=True)
    bps.barrier()
    bps.shutdown()


if __name__ == "__main__":
    main()
