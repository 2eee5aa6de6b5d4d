"""Sums of sparse tensors, against dense ones made by torch; what travels, counted."""

from __future__ import annotations

import copy

import pytest
import torch

from byteps_like.torch.job import runtime
from byteps_like.torch.sparse.choice import SparseMethod
from byteps_like.torch.sparse.rows import SUMMED, Rows
from byteps_like.torch.sparse.sums import SparseHistory
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


PLACES, WIDTHS = 2000, (64, 128)
SMALL = 0.01  # what the links themselves send varies by some bytes


def moved(bps, rank, size, words, width):
    """Bytes of payload this rank sends for a dense sum, an all-gather of indices and values, and two sums by rows."""
    everyone = [words(other) for other in range(size)]
    values = torch.ones(len(everyone[rank]), width)
    sparse = torch.sparse_coo_tensor(everyone[rank][None], values, (PLACES, width))
    ways = [
        lambda: bps.push_pull(sparse.to_dense(), name="dense"),
        lambda: bps.grouped_allgather([everyone[rank], values], name="all"),
        *[lambda: bps.push_pull(sparse, name="rows")] * 2,
    ]
    found = []
    for way in ways:
        before = bps.stats()["payload_sent"]
        way()
        found.append(bps.stats()["payload_sent"] - before)
    return found


def all_moved(size, words):
    """Of all ranks: for the first width, and what the second adds, which is without headers and numbers."""
    narrow, wide = (torch.tensor(run_native_world(size, moved, words, width)).sum(0) for width in WIDTHS)
    return narrow.tolist(), (wide - narrow).tolist()


def same_words(rank):
    return torch.arange(100) * 20


def other_words(rank):
    return torch.randperm(PLACES, generator=torch.Generator().manual_seed(rank))[:100]


@pytest.mark.parametrize(("size", "of_gathering"), [(4, 0.55), (8, 0.3)])
def test_bytes_are_those_of_parallax(size, of_gathering):
    """A twentieth of an embedding's rows, the same on all ranks: 4 a w (N - 1)/N in and out of each machine."""
    (dense, gathered, rows, _), more = all_moved(size, same_words)
    row = 4 * (WIDTHS[1] - WIDTHS[0])
    by_rows = (size - 1) * (100 + 100) * row
    assert more[2:] == [pytest.approx(by_rows, rel=SMALL)] * 2
    assert more[1] == pytest.approx(size * (size - 1) * 100 * row, rel=SMALL)
    assert rows <= 0.06 * dense and rows <= of_gathering * gathered


def test_rounds_go_as_is_cheapest_by_the_one_before():
    """Other rows on each rank: a union too large for two hops to cost less than to gather."""
    union = len(torch.cat([other_words(rank) for rank in range(4)]).unique())
    _, (_, _, first, second) = all_moved(4, other_words)
    row, apart = 4 * (WIDTHS[1] - WIDTHS[0]), 400 - held(other_words, 4)
    assert first == pytest.approx((apart + 3 * union) * row, rel=SMALL)
    assert second == pytest.approx(3 * 400 * row, rel=SMALL)
    assert second < first


def held(words, size):
    """Entries that are their own rank's to sum."""
    count = 0
    for rank in range(size):
        numbers = words(rank).sort().values
        rows = Rows(numbers, torch.ones(len(numbers)), torch.Size([PLACES]), 1)
        count += rows.dealt(size)[1][rank]
    return count


def drifting(bps, rank, size):
    """From 1 % of the rows to all of them, and back: the weights follow one process's that has all ranks' words."""
    weights = torch.arange(800.0, dtype=torch.float64).sin().view(200, 4)
    table = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False, sparse=True)
    plain = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False)
    ours = bps.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=0.01), table.named_parameters())
    theirs = torch.optim.SGD(plain.parameters(), lr=0.01)
    ways = []
    for step, count in enumerate([2, 2, 200, 200, 200, 40, 2, 2]):
        everyone = [(torch.arange(count) * 7 + 3 * step + other) % 200 for other in range(size)]
        for optimizer, model, words in ((ours, table, everyone[rank]), (theirs, plain, torch.cat(everyone))):
            optimizer.zero_grad()
            (model(words) * torch.arange(1.0, 5.0)).square().sum().div(1 if model is table else size).backward()
            optimizer.step()
        assert step == 0 or table.weight.grad.is_sparse
        ways.append([seen.way for seen in runtime.current().of(SparseHistory).seen.values()])
        torch.testing.assert_close(table.weight, plain.weight, rtol=0, atol=1e-12)
    return ways


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "workers"])
def test_gradients_change_their_way_without_losing_updates(servers):
    ranks = run_world(4, drifting, servers=servers)
    assert ranks.count(ranks[0]) == 4
    ways = [way for step in ranks[0] for way in step]
    assert (
        ways[1] is not SparseMethod.DENSE
        and ways[3] is ways[4] is SparseMethod.DENSE
        and ways[-1] is not SparseMethod.DENSE
    )


def drifting_dense(bps, rank, size):
    """The same with dense gradients, beside another layer: each step, whether the table's rows travel."""
    weights = torch.arange(800.0, dtype=torch.float64).sin().view(200, 4)
    table, layer = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False), torch.nn.Linear(4, 3).double()
    with torch.no_grad():
        layer.weight.copy_(weights[:3]), layer.bias.zero_()
    plain = copy.deepcopy(torch.nn.Sequential(table, layer))
    model = torch.nn.Sequential(table, layer)
    inner = torch.optim.SGD(model.parameters(), lr=0.01)
    ours = bps.DistributedOptimizer(inner, model.named_parameters(), compression={"0.*": "rows"})
    theirs = torch.optim.SGD(plain.parameters(), lr=0.01)
    by_rows = []
    for step in range(24):
        count = 2 if step < 4 or step > 13 else 200
        everyone = [(torch.arange(count) * 7 + 3 * step + other) % 200 for other in range(size)]
        for optimizer, net, words in ((ours, model, everyone[rank]), (theirs, plain, torch.cat(everyone))):
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            net(words).square().sum().div(count if net is model else count * size).backward()
            optimizer.step()
        assert not table.weight.grad.is_sparse
        torch.testing.assert_close(table.weight.grad, plain[0].weight.grad, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(table.weight, plain[0].weight, rtol=1e-10, atol=1e-10)
        by_rows.append(bool(ours._distribution.reducer.sparse))
    return by_rows


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "workers"])
def test_dense_gradients_go_by_rows_while_these_are_few(servers):
    ranks = run_world(3, drifting_dense, servers=servers)
    assert ranks.count(ranks[0]) == 3
    assert ranks[0] == [True] * 5 + [False] * 11 + [True] * 8
