"""Sparse tensors through summation servers on hosts of their own: exact, by the byte, and re-routed while it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.torch.job import runtime
from byteps_like.torch.sparse.choice import SparseMethod
from byteps_like.torch.sparse.sums import SparseHistory
from tests.contract.mixed_job import MixedJob, in_threads, native_worker

RANKS, PART = 4, 64 << 10
HEADER, HEAD = 16, 4  # of a payload, and of what blocksparse puts behind it


@pytest.fixture(scope="module")
def everybody() -> Iterator[Callable[..., list[Any]]]:
    """Runs a body on all ranks, threads of this process that keep their runtime from test to test."""
    hosts = [f"server-host-{number}" for number in range(RANKS)]
    job = MixedJob([native_worker] * RANKS, hosts=hosts, partition_bytes=PART, link_gbps=0.1)
    runtimes = [runtime.Runtime(worker, PART) for worker in job.workers]

    def one(number: int, body: Callable[[int], Any]) -> Any:
        torch.set_num_threads(1)
        token = runtime._bound.set(runtimes[number])
        try:
            return body(number)
        finally:
            runtime._bound.reset(token)

    yield lambda body: in_threads([lambda number=number: one(number, body) for number in range(RANKS)])
    in_threads([each.close for each in runtimes])
    job.close()


def entries(rank: int, dtype: torch.dtype, sparse: tuple[int, ...], dense: tuple[int, ...]) -> torch.Tensor:
    """Whole numbers above zero: all ranks but the second have mostly the same rows, some of them twice."""
    seed = torch.Generator().manual_seed(len(sparse))
    count = 0 if rank == 1 else 40
    indices = torch.stack([torch.randint(extent, (count,), generator=seed) for extent in sparse])
    values = torch.randint(1, 8, (count, *dense), generator=seed).to(dtype) + rank
    return torch.sparse_coo_tensor(indices, values, (*sparse, *dense), check_invariants=False)


def way_of(name: str) -> SparseMethod:
    return runtime.current().of(SparseHistory).seen[f"sparse_push_pull.{name}"].way


SHAPES = [((500,), (24,)), ((30, 20), (3, 5)), ((4000,), ()), ((300,), (100,))]


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_those_of_torch(everybody: Any, shape: Any) -> None:
    def body(rank: int) -> None:
        everyone = [entries(other, torch.float32, *shape) for other in range(RANKS)]
        parts = (torch.cat([one._indices() for one in everyone], 1), torch.cat([one._values() for one in everyone]))
        expected = torch.sparse_coo_tensor(*parts, everyone[0].shape, check_invariants=False).coalesce()
        for turn in range(4):
            op = bps.Average if turn == 3 else bps.Sum
            total = bps.push_pull(everyone[rank], op=op, name=f"exact.{shape}", average=None)
            values = expected.values() / RANKS if op is bps.Average else expected.values()
            assert total.is_coalesced() and total.shape == expected.shape
            assert torch.equal(total.indices(), expected.indices()) and torch.equal(total.values(), values)
            seen = runtime.current().of(SparseHistory).seen[f"sparse_push_pull.exact.{shape}"]
            assert (seen.way is SparseMethod.SERVERS) == (turn > 0)
            assert seen.entries == sum(one.coalesce()._nnz() for one in everyone)

    everybody(body)


def test_a_name_may_carry_another_shape_later(everybody: Any) -> None:
    def body(rank: int) -> None:
        for width in (24, 24, 32, 32):
            tensor = entries(0, torch.float32, (500,), (width,))
            assert bps.push_pull(tensor, name="shape").shape == tensor.shape

    everybody(body)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_other_types_go_among_the_workers(everybody: Any, dtype: torch.dtype) -> None:
    def body(rank: int) -> SparseMethod:
        for _ in range(2):
            bps.push_pull(entries(rank, dtype, (500,), (24,)), op=bps.Sum, name=f"{dtype}")
        return way_of(f"{dtype}")

    assert set(everybody(body)) == {SparseMethod.TWO_HOPS}


def test_bytes_are_rows_and_a_bit_for_each_there_may_be(everybody: Any) -> None:
    """Other rows on each rank but a common part: a goes out, the union comes back, whatever partitions they lie in."""
    places, width = 4000, 24
    words = [torch.cat([torch.arange(150), 200 + 50 * rank + torch.arange(50)]) for rank in range(RANKS)]

    def body(rank: int) -> tuple[int, int, Any]:
        tensor = torch.sparse_coo_tensor(
            words[rank][None], torch.ones(200, width), (places, width), check_invariants=False
        )
        bps.push_pull(tensor, op=bps.Sum, name="bytes")
        bps.push_pull(tensor, op=bps.Sum, name="bytes")
        assert way_of("bytes") is SparseMethod.SERVERS
        before = bps.stats()
        bps.push_pull(tensor, op=bps.Sum, name="bytes")
        moved = [bps.stats()[kind] - before[kind] for kind in ("payload_sent", "payload_received")]
        return *moved, runtime.current().of(SparseHistory).twins["sparse_push_pull.bytes"]._declared.partitions

    found = everybody(body)
    row, parts = 4 * width, found[0][2]
    assert len(parts) > 4 and all(part.offset % row == 0 for part in parts)
    blocks = [-(-part.nbytes // row) for part in parts]
    heads = sum(HEADER + HEAD + 4 * -(-count // 32) for count in blocks)
    union, tail = len(torch.cat(words).unique()), 8
    assert {(sent, received) for sent, received, _ in found} == {(heads + 200 * row + tail, heads + union * row + tail)}


def test_gradients_are_rerouted_while_the_touched_share_drifts(everybody: Any) -> None:
    """From few rows to all and back, dense layers by all-reduce meanwhile: weights follow one process's."""

    def body(rank: int) -> list[SparseMethod]:
        weights = torch.arange(400.0 * 64).sin().view(400, 64)
        table = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False, sparse=True)
        plain = torch.nn.Embedding.from_pretrained(weights.clone(), freeze=False)
        inner = torch.optim.SGD(table.parameters(), lr=0.5)
        ours = bps.DistributedOptimizer(inner, table.named_parameters(), route="allreduce")
        theirs = torch.optim.SGD(plain.parameters(), lr=0.5)
        ways = []
        for step, count in enumerate([16, 16, 16, 400, 400, 400, 16, 16, 16]):
            everyone = [(torch.arange(count) + step + other) % 400 for other in range(RANKS)]
            for optimizer, model, words in ((ours, table, everyone[rank]), (theirs, plain, torch.cat(everyone))):
                optimizer.zero_grad()
                model(words).sum().div(1 if model is table else RANKS).backward()
                optimizer.step()
            torch.testing.assert_close(table.weight, plain.weight, rtol=0, atol=1e-6)
            ways.append(
                [seen.way for name, seen in runtime.current().of(SparseHistory).seen.items() if "gradients" in name]
            )
        ours.close()
        return [way for step in ways for way in step]

    found = everybody(body)
    assert found.count(found[0]) == RANKS
    servers, dense = SparseMethod.SERVERS, SparseMethod.DENSE
    assert found[0] == [SparseMethod.TWO_HOPS, servers, servers, dense, dense, dense, servers, servers]


def test_partitions_follow_the_tuner(everybody: Any) -> None:
    def body(rank: int) -> list[int]:
        table = torch.nn.Embedding(2000, 24, sparse=True)
        torch.nn.init.zeros_(table.weight)
        inner = torch.optim.SGD(table.parameters(), lr=1.0)
        ours = bps.DistributedOptimizer(inner, table.named_parameters())
        reducer, counts = ours._distribution.reducer, []
        for step in range(5):
            ours.zero_grad()
            table(torch.arange(30)).sum().backward()
            ours.step()
            if step == 3:
                reducer.recut(reducer.route, 12 << 10)
            counts += [len(twin._declared.partitions) for name, twin in twins() if reducer.label in name]
        assert table.weight[:30].eq(-5.0).all() and not table.weight[30:].any()
        ours.close()
        assert not [name for name, _ in twins() if reducer.label in name], "its memory is given back"
        return counts

    def twins() -> Any:
        return runtime.current().of(SparseHistory).twins.items()

    found = everybody(body)
    assert found.count(found[0]) == RANKS
    before, same, after = found[0]
    assert before == same < 16 <= after
