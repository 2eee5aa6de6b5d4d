"""Sums of sparse tensors, against dense ones made by torch; what travels, counted."""

from __future__ import annotations

import pytest
import torch

from byteps_like.torch.sparse_rows import SUMMED
from tests.fakes.native_world import run_native_world
from tests.fakes.thread_world import run_world

WHOLE = [dtype for dtype in SUMMED if not dtype.is_floating_point and not dtype.is_complex]


def entries(rank: int, dtype: torch.dtype, sparse: tuple[int, ...], dense: tuple[int, ...], most: int = 9):
    """Whole numbers, so that sums are exact in any order: some indices twice, and none at all on every third rank."""
    seed = torch.Generator().manual_seed(100 * rank + len(sparse))
    count = 0 if rank % 3 == 1 else int(torch.randint(1, most, (), generator=seed))
    indices = torch.stack([torch.randint(extent, (count,), generator=seed) for extent in sparse])
    low = 0 if dtype is torch.uint8 else -8
    values = torch.randint(low, 8, (count, *dense), generator=seed).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (*sparse, *dense), check_invariants=True)


SHAPES = [((7,), ()), ((5, 3), ()), ((40,), (6,)), ((6, 4), (2, 3)), ((1 << 40, 3), (2,)), ((9,), (0,))]


def exact(bps, rank, size):
    for number, (sparse, dense) in enumerate(SHAPES):
        for dtype in (torch.float32, torch.float64) if number else SUMMED:
            everyone = [entries(other, dtype, sparse, dense) for other in range(size)]
            parts = (torch.cat([one._indices() for one in everyone], 1), torch.cat([one._values() for one in everyone]))
            expected = torch.sparse_coo_tensor(*parts, everyone[0].shape).coalesce()
            for op in (bps.Sum, bps.Average):
                total = bps.push_pull(everyone[rank], op=op, name="named" if number == 1 else None)
                assert total.is_sparse and total.is_coalesced()
                assert total.dtype is dtype and total.shape == everyone[rank].shape
                values = expected.values()
                if op is bps.Average:
                    values = values // size if dtype in WHOLE else values / size
                assert torch.equal(total.indices(), expected.indices()) and torch.equal(total.values(), values)
            unchanged = entries(rank, dtype, sparse, dense)
            assert torch.equal(unchanged._indices(), everyone[rank]._indices())


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "workers"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_equal_dense_ones(size, servers):
    run_world(size, exact, servers=servers)


def moved(bps, rank, size, words, width, rounds):
    """Bytes of payload this rank sends for a dense sum, an all-gather of indices and values, and sums by rows."""
    everyone = [words(other) for other in range(size)]
    values = torch.ones(len(everyone[rank]), width)
    sparse = torch.sparse_coo_tensor(everyone[rank][None], values, (PLACES, width))
    ways = [
        lambda: bps.push_pull(sparse.to_dense(), name="dense"),
        lambda: bps.grouped_allgather([everyone[rank], values], name="all"),
        *[lambda: bps.push_pull(sparse, name="rows")] * rounds,
    ]
    found = []
    for way in ways:
        before = bps.stats()["payload_sent"]
        way()
        found.append(bps.stats()["payload_sent"] - before)
    return found, sum(map(len, everyone)), len(torch.cat(everyone).unique())


PLACES = 2000


def same_words(rank):
    return torch.arange(100) * 20


def other_words(rank):
    return torch.randperm(PLACES, generator=torch.Generator().manual_seed(rank))[:100]


@pytest.mark.parametrize(("size", "of_gathering"), [(4, 0.55), (8, 0.3)])
def test_bytes_are_those_of_parallax(size, of_gathering):
    """A twentieth of an embedding's rows, the same on all ranks: 4 a w (N - 1)/N in and out of each machine."""
    ranks = run_native_world(size, moved, same_words, 64, 1)
    dense, gathered, rows = (sum(sent[way] for sent, _, _ in ranks) for way in range(3))
    entries, union = ranks[0][1:]
    entry, shapes = 4 + 4 * 64, size * (size - 1) * 8 * (2 + 14 + size + 1)
    by_rows = (size - 1) * (entries // size + union) * entry
    assert rows == by_rows + shapes + size * AGREEMENT
    assert rows - shapes <= 0.06 * dense and rows - shapes <= of_gathering * gathered


def test_rounds_go_as_is_cheapest_by_the_one_before():
    """Other rows on each rank: 371 of 2000 in the union, so that two hops cost more than to gather them."""
    ranks = run_native_world(4, moved, other_words, 64, 2)
    first, second = (sum(sent[way] for sent, _, _ in ranks) for way in (2, 3))
    entries, union = ranks[0][1:]
    assert second == 3 * entries * 260 + 12 * 8 * (16 + 4) < first
