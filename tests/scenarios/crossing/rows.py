"""Gradients that travel by rows while updates cross the barrier, as seen by one rank: `body(bps, rank, size)`. The
reference is the same optimizer made to wait in step(); both must hold the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from tests.scenarios.checks import raises, same_everywhere
from tests.scenarios.crossing.models import Run, same
from tests.scenarios.models import fill, flat

WORDS, WIDTH = 200, 4
FEW, MANY = 2, WORDS


class Text(nn.Module):
    """A table of words and a layer. The table may be read as a matrix, too, which makes its gradient dense."""

    def __init__(self, sparse: bool = True) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH, sparse=sparse)
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, words: torch.Tensor, reads: str) -> torch.Tensor:
        """`reads`: "rows" of the table, the "whole" of it, or "none": its gradient is None."""
        hidden = self.table(words)
        if reads != "rows":
            hidden = torch.ones(len(words), WIDTH, dtype=hidden.dtype)
        found: torch.Tensor = self.layer(hidden).square().sum()
        return found + self.table.weight.square().sum() if reads == "whole" else found


def words_of(step: int, rank: int, count: int = FEW) -> torch.Tensor:
    return (torch.arange(count) * 7 + 3 * step + rank) % WORDS


Reads = Callable[[int, int, int], str]
"""What a rank of so many reads in a step."""


def of_rows(step: int, rank: int, size: int) -> str:
    return "rows"


def now_and_then(step: int, rank: int, size: int) -> str:
    """Rows on all ranks, on the first only, on none; then the whole on the last only; then rows on all but that."""
    own = {0: "rows" if rank == 0 else "none", 1: "none", 3: "none"}
    last = {4: "whole", 5: "none"} if rank == size - 1 else {}
    return {**own, **last}.get(step % 6, "rows")


def whole_at_first(step: int, rank: int, size: int) -> str:
    """Rows come when updates cross the barrier already, on one rank only, and not in the step after."""
    if step < 3 or step == 4:
        return "whole"
    return "none" if step == 3 and rank else "rows"


def loss_of(reads: Reads, counts: Sequence[int] = (FEW,)) -> Any:
    def loss(model: nn.Module, step: int, rank: int, size: int) -> torch.Tensor:
        count = counts[step % len(counts)]
        found: torch.Tensor = model(words_of(step, rank, count), reads(step, rank, size)) / count
        return found

    return loss


def compared(
    bps: Any, rank: int, size: int, make: Any, loss: Any, steps: int, sparse: bool = True, **options: Any
) -> tuple[Run, list[int]]:  # fmt: skip
    """Trains the same with and without the barrier. The run that crosses it, and which of its steps waited."""
    passes = options.get("backward_passes_per_step", 1)
    runs = [Run(bps, crosses, make, fill(Text(sparse).double()), **options) for crosses in (True, False)]
    waited, ways = [], []
    for run in runs:
        ways.append([])
        for step in range(steps):
            run.train(rank, size, range(step, step + 1), loss, passes)
            if run is runs[0] and run.optimizer._distribution.guards.flight is None:
                waited.append(step)
            ways[-1].append(run.optimizer._distribution.reducer.sparse.names)
    same(*runs)
    same_everywhere(bps, flat(runs[0].model))
    if loss is not LATE:  # there they are found one step later
        assert ways[0] == ways[1], ways
    return runs[0], waited


LATE = loss_of(whole_at_first)

OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda p: torch.optim.SGD(p, lr=0.01), lambda p: torch.optim.Adagrad(p, lr=0.05),
]  # fmt: skip
"""Those of torch that take sparse gradients beside dense ones."""


def sparse_gradients(bps: Any, rank: int, size: int) -> None:
    """After the first step, which finds the rows, and the second, whose arena is new, none waits."""
    options: list[dict[str, Any]] = [
        {}, {"op": bps.Sum, "backward_passes_per_step": 2}, {"gradient_predivide_factor": 2.0},
        {"compression": {"layer*": "onebit"}}, {"compression": bps.Compression.bf16},
    ]  # fmt: skip
    for make in OPTIMIZERS:
        for each in [*options, *([{"route": "allreduce"}] if size > 1 else [])]:
            run, waited = compared(bps, rank, size, make, loss_of(of_rows), 6, **each)
            assert run.optimizer._distribution.reducer.sparse.names == ["table.weight"]
            assert waited == [0, 1]
            run.optimizer.close()


def made_dense_on_the_wire(bps: Any, rank: int, size: int) -> None:
    run, waited = compared(bps, rank, size, OPTIMIZERS[0], loss_of(now_and_then), 6, sparse_as_dense=True)
    assert waited == [0] and not run.optimizer._distribution.reducer.sparse


def sparse_at_times(bps: Any, rank: int, size: int) -> None:
    """Rows, all of it, or nothing, on all ranks or some; found in a step that waits."""
    for make in OPTIMIZERS:
        compared(bps, rank, size, make, loss_of(now_and_then), 12)


def sparse_later(bps: Any, rank: int, size: int) -> None:
    """A gradient that comes sparse for the first time in a step that crosses leaves its arena after the next one."""
    run, waited = compared(bps, rank, size, OPTIMIZERS[0], LATE, 8)
    assert waited == [0, 4, 5]
    assert run.optimizer._distribution.reducer.sparse.names == ["table.weight"]


def dense_by_rows(bps: Any, rank: int, size: int) -> None:
    """Dense gradients that touch few rows go by rows, back to their arena when they touch many, and so on; only the
    steps that look for rows or move gradients wait, and the first ones of new arenas."""
    counts = [FEW if step < 4 or step > 13 else MANY for step in range(24)]
    for make in (lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)):
        loss = loss_of(of_rows, counts)
        _, waited = compared(bps, rank, size, make, loss, 24, sparse=False, compression={"table*": "rows"})
        if size > 1:
            assert waited == [0, 1, 5, 6, 8, 16, 17]


def dense_by_rows_beside_a_codec(bps: Any, rank: int, size: int) -> None:
    rules = {"table*": "rows", "layer*": "onebit"}
    compared(bps, rank, size, OPTIMIZERS[1], loss_of(of_rows), 12, sparse=False, compression=rules)


def nothing_but_rows(bps: Any, rank: int, size: int) -> None:
    """No arena is left after the first step, and the optimizer takes sparse gradients only."""
    tables = [fill(nn.Embedding(WORDS, WIDTH, sparse=True).double()) for _ in range(2)]
    options = [{"cross_barrier": True, "model": tables[0]}, {}]
    for table, each in zip(tables, options, strict=True):
        optimizer = bps.DistributedOptimizer(torch.optim.SparseAdam(table.parameters(), lr=0.01), **each)
        for step in range(6):
            optimizer.zero_grad()
            table(words_of(step, rank)).square().sum().backward()
            optimizer.step()
        optimizer.close()
    assert torch.equal(tables[0].weight, tables[1].weight)


SCENARIOS = [
    sparse_gradients, made_dense_on_the_wire, sparse_at_times, sparse_later, dense_by_rows,
    dense_by_rows_beside_a_codec, nothing_but_rows,
]  # fmt: skip


def rows_of_a_step_thrown_away(bps: Any, rank: int, size: int) -> None:
    """One rank throws its gradients away: no rank updates anything, though rows have landed; then all go on."""
    run = Run(bps, True, OPTIMIZERS[0], fill(Text().double()))
    loss = loss_of(of_rows)
    run.train(rank, size, range(3), loss)
    run.optimizer.synchronize()
    before = flat(run.model).clone()
    loss(run.model, 3, rank, size).backward()
    if rank == 0:
        raises(bps.MismatchError, run.optimizer.zero_grad, "same calls")
    else:
        run.optimizer.step()
        raises(bps.MismatchError, lambda: run.model.table(words_of(4, rank)), "same calls")
    assert torch.equal(flat(run.model), before)
    run.train(rank, size, range(4, 6), loss)
    run.optimizer.synchronize()
    same_everywhere(bps, flat(run.model))
