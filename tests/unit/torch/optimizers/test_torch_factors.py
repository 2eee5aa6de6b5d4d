"""Sufficient factors: gradients equal to the dense ones, bytes by the formula, the choice at its crossover."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from byteps_like.torch.compression.rules import way_of
from byteps_like.torch.factors import link
from byteps_like.torch.factors.choice import FactorExchange, FactorLink, MatrixCost, by_factors, next_rows
from byteps_like.torch.factors.matrix import matrix_cost
from byteps_like.torch.job import runtime
from tests.fakes.native_world import run_native_world
from tests.fakes.settings import configure
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, distance, fill, loss_of, mlp
from tests.scenarios.optimizers import factors, factors_codecs


@pytest.mark.parametrize(("size", "servers"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize("body", [*factors.SCENARIOS, *factors_codecs.SCENARIOS], ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=4096), servers=servers)


SHAPES = [(256, 384, 8), (512, 128, 16), (384, 384, 4), (1024, 256, 8), (200, 600, 10), (1024, 1024, 8)]
"""Outputs M, inputs N, rows K."""


def moved(bps: Any, rank: int, size: int, shapes: list[tuple[int, int, int]]) -> list[tuple[int, int, float]]:
    """Payload sent and received, by all ranks together, of the first (dense) and the second step; the error."""
    found = []
    for outputs, inputs, rows in shapes:
        model, reference = (fill(nn.Linear(inputs, outputs, bias=False)) for _ in range(2))
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, model=model, sufficient_factors=True)
        batches = [torch.randn(rows, inputs, generator=torch.Generator().manual_seed(r)) for r in range(size)]
        counts = []
        for _ in range(2):
            optimizer.zero_grad()
            bps.barrier()
            before = bps.stats()
            bps.barrier()
            model(batches[rank]).square().mean().backward()
            optimizer.synchronize()
            bps.barrier()
            after = bps.stats()
            counts.append(sum(after[f"payload_{way}"] - before[f"payload_{way}"] for way in ("sent", "received")))
        if rank == 0:
            for batch in batches:
                (reference(batch).square().mean() / size).backward()
        error = distance(model.weight.grad, reference.weight.grad) if rank == 0 else 0.0
        found.append((*counts, error))
        optimizer.close()
    return found


@pytest.mark.parametrize("size", [4, 8])
def test_bytes_are_those_of_the_formula(size):
    """Poseidon's 2K(P-1)(M+N) elements, sent and received by a node, within 2 %; over TCP, the average of all."""
    ranks = run_native_world(size, moved, SHAPES)
    for number, (outputs, inputs, rows) in enumerate(SHAPES):
        dense, factored = (sum(rank[number][what] for rank in ranks) / size for what in (0, 1))
        formula = 4 * 2 * rows * (size - 1) * (outputs + inputs)
        assert abs(factored - formula) <= 0.02 * formula
        assert abs(dense - 4 * 4 * (size - 1) / size * outputs * inputs) <= 0.02 * dense
        assert ranks[0][number][2] < 1e-5
        if size == 8 and outputs == inputs == 1024:
            assert dense / factored >= 14  # as 4096 x 4096 with 32 rows: 2MN / (K P (M+N)) = 16


def exchange(rows: int, ranks: int, outputs: int = 4096, inputs: int = 4096, **more: Any) -> FactorExchange:
    return FactorExchange(outputs, inputs, (rows,) * ranks, **more)


def test_the_choice_turns_at_the_analytic_crossover():
    free = FactorLink()
    # K P (M+N) = 2 M N: at 32 ranks and 4096 x 4096 with 128 rows.
    assert by_factors(exchange(128, 32), free, "auto") and not by_factors(exchange(129, 32), free, "auto")
    assert not by_factors(exchange(256, 32), free, "auto")
    assert by_factors(exchange(32, 8), free, "auto")
    assert exchange(32, 8).matrix_bytes / exchange(32, 8).factor_bytes == 16
    # Over servers 2 M N each: K (P-1) (M+N) = M N, at 66 rows.
    assert by_factors(exchange(66, 32, route="server"), free, "auto")
    assert not by_factors(exchange(67, 32, route="server"), free, "auto")
    # Factors of half the width have room for twice the rows.
    assert by_factors(exchange(256, 32, factor_item=2), free, "auto")


def test_a_matrix_counts_as_the_bytes_that_its_codec_makes_of_it():
    weight = torch.empty(64, 64)
    coded = {text: matrix_cost(way_of(text), text, weight, 2) for text in ("int8", "onebit", "topk:ratio=0.25")}
    assert all(cost.item == 4.0 and cost.codec for cost in coded.values())
    assert 1.0 <= coded["int8"].up < 1.1 and coded["onebit"].up < 0.2 and coded["topk:ratio=0.25"].up >= 2.0
    assert matrix_cost(way_of("bf16"), "", weight, 2) == MatrixCost.plain(2)
    assert matrix_cost(way_of("int8"), "", weight, 2) == MatrixCost.plain(4)  # it is switched off
    assert matrix_cost(way_of("powersgd:rank=2"), "", weight, 2) == MatrixCost.plain(4 * 2 * 128 / 4096)
    # 20 rows: 20 KiB of factors, beside 32 KiB, 8 KiB and 16 KiB.
    choices = [by_factors(exchange(20, 2, 64, 64, matrix=cost), FactorLink(), "auto") for cost in
               (MatrixCost(), coded["int8"], MatrixCost.plain(2))]  # fmt: skip
    assert choices == [True, False, False]


@pytest.mark.parametrize(("compression", "leaves"), [(None, True), ("int8", False), ("bf16", False)])
def test_auto_asks_whether_factors_are_less_than_the_encoded_matrix(monkeypatch, compression, leaves):
    monkeypatch.setattr(link, "measured", lambda *_: FactorLink())

    def body(bps, rank, size):
        configure(runtime.current(), min_compress_bytes=0)
        model = mlp(torch.float32, widths=(64, 64))
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        optimizer = bps.DistributedOptimizer(inner, compression=compression, model=model, sufficient_factors="auto")
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, *batch(100 * rank + step, rows=20, inputs=64, outputs=64)).backward()
            optimizer.step()
        return [layer.left for layer in optimizer._distribution.reducer.beside[-1].layers]

    assert run_world(2, body, world=ThreadWorld(2), servers=False) == [[leaves], [leaves]]


def test_more_rows_than_the_rank_of_the_matrix_never_go_as_factors():
    wide = exchange(65, 2, outputs=64, inputs=100_000)
    assert wide.factor_bytes < wide.matrix_bytes * 70 and not by_factors(wide, FactorLink(), True)
    assert by_factors(exchange(64, 2, outputs=64, inputs=100_000), FactorLink(), True)
    assert not by_factors(exchange(0, 4), FactorLink(), True) and not by_factors(exchange(1, 1), FactorLink(), True)
    assert not by_factors(FactorExchange(64, 64, (1, 65)), FactorLink(), True)


def test_time_has_its_say():
    shape = exchange(32, 8)
    line = FactorLink(dense_byte=1e-7 * 1.75, factors_byte=1e-7)
    assert by_factors(shape, line, "auto")
    # A product that takes longer than the exchange of the matrix; a start that does.
    slow = FactorLink(dense_byte=1e-9, factors_byte=1e-9, multiply_add=1e-9)
    assert shape.factor_seconds(slow) > shape.matrix_seconds(slow) and not by_factors(shape, slow, "auto")
    assert not by_factors(exchange(1, 2, 16, 16), FactorLink(factors_start=1e-3), "auto")
    assert by_factors(shape, slow, True)


def test_room_follows_the_batch():
    assert next_rows((0, 32, 32, 5, 1), (32, 32, 40, 0, 0)) == (32, 32, 40, 4, 0)
    assert next_rows((32,), (1,)) == (28,)
