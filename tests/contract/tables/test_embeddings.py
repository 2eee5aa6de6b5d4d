"""Embeddings whose rows servers keep: against torch.nn's with the same weights, in forward, backward and training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch
from torch import nn

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.tables.first_values import Uniform
from byteps_like.store.tables.ids import mixed
from byteps_like.torch.job import runtime
from tests.contract.mixed_job import MixedJob, native_worker
from tests.contract.on_runtimes import by_servers

RANKS, IDS, DIM = 2, 40, 6
LR = 0.25
NUMBERS = iter(range(10**9))


@pytest.fixture(scope="module")
def runtimes() -> Iterator[list[runtime.Runtime]]:
    job = MixedJob(makers=[native_worker] * RANKS)
    yield [runtime.Runtime(worker) for worker in job.workers]
    job.close()


def alone(runtimes: list[runtime.Runtime], body: Any, **options: Any) -> None:
    """`body(table)` on rank 0; the others have the table, and leave it alone."""
    name = f"table {next(NUMBERS)}"

    def main(rank: int) -> None:
        table = bps.Table(name, DIM, **{"optimizer": f"sgd:lr={LR}", "init": "uniform:bound=1.0"} | options)
        if rank == 0:
            body(table)

    by_servers(runtimes, main)


def weights(table: bps.Table, padding: int | None = None) -> torch.Tensor:
    found = torch.from_numpy(table.pull(np.arange(IDS)).value)
    if padding is not None:
        found[padding] = 0.0
    return found


def bags(seed: int, *, two_dimensional: bool, empty: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    draw = torch.Generator().manual_seed(seed)
    if two_dimensional:
        return torch.randint(0, IDS, (5, 4), generator=draw), None
    lengths = torch.randint(0, 6, (8,), generator=draw)
    lengths[3] = 0 if empty else 2
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)[:-1]])
    return torch.randint(0, IDS, (int(lengths.sum()),), generator=draw), offsets


@pytest.mark.parametrize("padding", [None, 7])
@pytest.mark.parametrize("two_dimensional", [True, False])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_a_bag_trains_as_torchs(
    runtimes: list[runtime.Runtime], mode: str, two_dimensional: bool, padding: int | None
) -> None:
    def body(table: bps.Table) -> None:
        ours = bps.EmbeddingBag(table, mode, padding_idx=padding)
        theirs = nn.EmbeddingBag(IDS, DIM, mode=mode, padding_idx=padding, _weight=weights(table, padding))
        plain = torch.optim.SGD(theirs.parameters(), lr=LR)
        assert not list(ours.parameters())
        for step in range(5):
            ids, offsets = bags(step, two_dimensional=two_dimensional, empty=step == 2)
            found, expected = ours(ids, offsets), theirs(ids, offsets)
            assert torch.equal(found, expected)
            plain.zero_grad()
            for output in (found, expected):
                output.square().mean().backward()
            plain.step()
        torch.testing.assert_close(weights(table, padding), theirs.weight.detach(), rtol=1e-6, atol=1e-7)

    alone(runtimes, body)


def test_weights_of_samples(runtimes: list[runtime.Runtime]) -> None:
    """They get gradients as well."""

    def body(table: bps.Table) -> None:
        ours, theirs = bps.EmbeddingBag(table), nn.EmbeddingBag(IDS, DIM, mode="sum", _weight=weights(table))
        ids, offsets = bags(1, two_dimensional=False, empty=True)
        own, other = (torch.linspace(-1, 1, len(ids), requires_grad=True) for _ in range(2))
        found, expected = ours(ids, offsets, own), theirs(ids, offsets, other)
        assert torch.equal(found, expected)
        for output in (found, expected):
            output.square().sum().backward()
        assert own.grad is not None and other.grad is not None
        torch.testing.assert_close(own.grad, other.grad)
        assert theirs.weight.grad is not None
        torch.testing.assert_close(weights(table), theirs.weight.detach() - LR * theirs.weight.grad)

    alone(runtimes, body)


def test_the_last_offset_may_be_given(runtimes: list[runtime.Runtime]) -> None:
    def body(table: bps.Table) -> None:
        ids, offsets = bags(4, two_dimensional=False, empty=False)
        assert offsets is not None
        ours = bps.EmbeddingBag(table, "mean", include_last_offset=True)
        whole = torch.cat([offsets, torch.tensor([len(ids)])])
        assert torch.equal(ours(ids, whole), bps.EmbeddingBag(table, "mean")(ids, offsets))

    alone(runtimes, body)


@pytest.mark.parametrize("padding", [None, 7])
@pytest.mark.parametrize("optimizer", ["sgd", "adagrad", "row_adagrad", "adam"])
def test_an_embedding_trains_as_torchs(runtimes: list[runtime.Runtime], optimizer: str, padding: int | None) -> None:
    """Each row is updated by its own gradients alone: where all rows have one in each step, as by torch."""

    def body(table: bps.Table) -> None:
        ours = bps.Embedding(table, padding_idx=padding)
        theirs = nn.Embedding(IDS, DIM, padding_idx=padding, _weight=weights(table, padding))
        kinds: dict[str, Any] = {
            "sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam, "row_adagrad": RowAdagrad,
        }  # fmt: skip
        plain = kinds[optimizer](theirs.parameters(), lr=LR)
        for step in range(4):
            ids = torch.arange(IDS).repeat(2).reshape(2, 4, -1).roll(step)
            found, expected = ours(ids), theirs(ids)
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
            plain.zero_grad()
            for output in (found, expected):
                (output * (1 + step)).square().mean().backward()
            plain.step()
        torch.testing.assert_close(weights(table, padding), theirs.weight.detach(), rtol=1e-5, atol=1e-6)

    alone(runtimes, body, optimizer=f"{optimizer}:lr={LR}")


class RowAdagrad(torch.optim.Optimizer):
    """By the mean square of each row (FBGEMM's exact row-wise Adagrad)."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                squares = self.state[one].setdefault("squares", torch.zeros(len(one), 1))
                squares += one.grad.square().mean(1, keepdim=True)
                one.sub_(group["lr"] * one.grad / (squares.sqrt() + 1e-8))


def test_ranks_train_one_table(runtimes: list[runtime.Runtime]) -> None:
    """By `bsp` and the mean, as one process with all batches."""
    name = f"table {next(NUMBERS)}"

    def main(rank: int) -> torch.Tensor:
        table = bps.Table(
            name, DIM, optimizer=f"sgd:lr={LR}", init="uniform:bound=1.0", consistency="bsp", combine="mean"
        )
        bag = bps.EmbeddingBag(table, "mean")
        for step in range(4):
            ids, offsets = bags(10 * step + rank, two_dimensional=False, empty=True)
            bag(ids, offsets).square().sum().backward()
        return weights(table)

    found = by_servers(runtimes, main)
    first = [Uniform(1.0).make(int(key), DIM, np.float32) for key in mixed(np.arange(IDS, dtype=np.uint64))]
    theirs = nn.EmbeddingBag(IDS, DIM, mode="mean", _weight=torch.from_numpy(np.concatenate(first)))
    plain = torch.optim.SGD(theirs.parameters(), lr=LR)
    for step in range(4):
        plain.zero_grad()
        for rank in range(RANKS):
            (theirs(*bags(10 * step + rank, two_dimensional=False, empty=True)).square().sum() / RANKS).backward()
        plain.step()
    for one in found:
        torch.testing.assert_close(one, theirs.weight.detach(), rtol=1e-5, atol=1e-6)


def test_without_gradients_nothing_is_pushed(runtimes: list[runtime.Runtime]) -> None:
    def body(table: bps.Table) -> None:
        before = weights(table)
        with torch.no_grad():
            assert not bps.Embedding(table)(torch.tensor([1, 2])).requires_grad
        bps.Embedding(table)(torch.tensor([1, 2]))
        table.wait()
        assert torch.equal(weights(table), before) and next(table.all_rows())[0].size == 0

    alone(runtimes, body)


def test_no_ids(runtimes: list[runtime.Runtime]) -> None:
    """It is a contribution nevertheless."""

    def body(table: bps.Table) -> None:
        for ids in (torch.empty(0, dtype=torch.long), torch.tensor([7, 7])):
            bag = bps.EmbeddingBag(table, padding_idx=7)
            output = bag(ids, torch.tensor([0, 0, 0]))
            assert torch.equal(output, torch.zeros(3, DIM))
            output.sum().backward()
        table.wait()
        assert next(table.all_rows())[0].size == 0

    alone(runtimes, body)


def test_what_is_refused(runtimes: list[runtime.Runtime]) -> None:
    def body(table: bps.Table) -> None:
        with pytest.raises(InvalidArgumentError, match="mode='median'"):
            bps.EmbeddingBag(table, "median")
        for ids in (torch.tensor([1.5]), torch.tensor([True])):
            with pytest.raises(InvalidArgumentError, match="ids are integers"):
                bps.Embedding(table)(ids)
        with pytest.raises(InvalidArgumentError, match="one is -3"):
            bps.Embedding(table)(torch.tensor([1, -3]))
        assert "dim=6, mode='sum', padding_idx=2" in repr(bps.EmbeddingBag(table, padding_idx=2))

    alone(runtimes, body)
