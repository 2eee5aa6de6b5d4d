"""Mini-batches in blocks, in real processes of which some step is slow now and then: every sample counts once, in so
many bytes; and where ranks have different data, training loses nothing by not waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import pytest

from byteps_like.wire.note import NOTE_BYTES
from tests.multiprocess.real_world import Pool, job

RANKS, STEPS, BLOCKS = 4, 200, 8
SECONDS = 0.0004
"""That a block takes; in a slow step four times as long."""
LGC = "k_of_n:k=3,grace=0.005,late=next"


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


def mini_batch(optimizer: Any, loss: Callable[[int], Any], slow: bool) -> None:
    optimizer.zero_grad()
    for block in range(BLOCKS):
        time.sleep(SECONDS * (4 if slow else 1))
        loss(block).backward()
        optimizer.block()
    optimizer.step()


def sample_by_sample(bps: Any, rank: int, size: int) -> tuple[np.ndarray, int, float]:
    """Each sample's gradient is 1 at its own place. The last rank is always slow."""
    import torch

    weights = torch.nn.Parameter(torch.zeros(size * STEPS * BLOCKS))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weights], lr=1.0), [("w", weights)], op=bps.Sum,
                                         consistency=LGC, backward_passes_per_step=BLOCKS)  # fmt: skip
    optimizer.weight = float(BLOCKS)
    optimizer.pull()
    sent = bps.stats()["payload_sent"]
    for step in range(STEPS):
        first = (rank * STEPS + step) * BLOCKS
        mini_batch(optimizer, lambda block, first=first: -weights[first + block] / BLOCKS, slow=rank == size - 1)
    sent = bps.stats()["payload_sent"] - sent
    optimizer.finish()
    return weights.detach().numpy(), optimizer.contributed.made, sent


def test_every_sample_counts_once_and_a_step_costs_its_bytes_once_or_twice(pool: Pool) -> None:
    with job(RANKS, 1, partition_bytes=4096) as cluster:
        found = pool.run(cluster, sample_by_sample, together=True)
    nbytes, parts = RANKS * STEPS * BLOCKS * 4, -(-RANKS * STEPS * BLOCKS * 4 // 4096)
    for weights, made, sent in found:
        np.testing.assert_allclose(weights, 1.0, rtol=1e-5)
        assert STEPS * (nbytes + parts * NOTE_BYTES) <= sent <= 2 * STEPS * (nbytes + parts * NOTE_BYTES)
        assert made >= STEPS
    made, sent = found[-1][1:]
    assert made > 1.5 * STEPS, "the slow rank is cut off"
    fastest = min(found[:-1], key=lambda one: one[2])
    assert fastest[2] < 1.2 * STEPS * nbytes < sent


def different_data(bps: Any, rank: int, size: int, slow: tuple[float, ...], terms: dict[str, Any]) -> float:
    """The loss on all data, of which each rank has a part that is unlike the others', of the mean of the weights that a
    hundred versions have had. `slow`: of each rank how often it is."""
    import torch

    draw = torch.Generator().manual_seed(rank)
    inputs = torch.randn(32 * BLOCKS, 12, generator=draw)
    targets = inputs @ torch.full((12, 1), float(rank)) + torch.randn(len(inputs), 1, generator=draw)
    weights = torch.nn.Parameter(torch.zeros(12, 1))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([weights], lr=0.03), [("w", weights)],
                                         backward_passes_per_step=BLOCKS, **terms)  # fmt: skip
    random, seen = Random(rank), []
    while len(seen) < STEPS and (not terms or optimizer.version < STEPS):
        rows = torch.randint(len(inputs), (4 * BLOCKS,), generator=draw).view(BLOCKS, 4)

        def loss(block: int, rows: Any = rows) -> Any:
            return ((inputs[rows[block]] @ weights - targets[rows[block]]) ** 2).mean() / BLOCKS

        mini_batch(optimizer, loss, random.random() < slow[rank])
        seen.append(weights.detach().clone())
    if terms:
        optimizer.finish()
    mean = bps.push_pull(torch.stack(seen[-100:]).mean(0), name="mean weights")
    return float(bps.push_pull(((inputs @ mean - targets) ** 2).mean().reshape(1), name="loss"))


def test_where_ranks_have_different_data_no_rank_is_lost(pool: Pool) -> None:
    """Steps that are slow now and then. The last way shows what it is to lose a rank."""
    now_and_then = (0.1,) * RANKS
    ways = {
        "bsp": (now_and_then, {}),
        "blocks": (now_and_then, {"consistency": LGC}),
        "a rank lost": ((1.0, 0.0, 0.0, 0.0), {"consistency": "backup:b=1"}),
    }
    losses = {}
    for name, way in ways.items():
        with job(RANKS, 1) as cluster:
            losses[name] = pool.run(cluster, different_data, *way, together=True)[0]
    assert losses["blocks"] <= 1.1 * losses["bsp"], losses
    # How far a rank is lost depends on how slow the machine is besides, for all ranks.
    assert losses["blocks"] - losses["bsp"] < (losses["a rank lost"] - losses["bsp"]) / 2, losses
