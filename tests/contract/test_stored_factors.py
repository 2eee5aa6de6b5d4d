"""DistributedOptimizer with a consistency and sufficient factors: against torch on whole gradients; bytes; several
passes, periods, gradients from elsewhere, 16 bits; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.job import runtime
from tests.contract.mixed_job import MixedJob, native_worker
from tests.contract.test_stored_training import ALL, RANKS, Turns, assert_close, everywhere, weights

ROWS, IN, OUT = 8, 96, 64
STEPS = 4
Loss = Callable[[torch.nn.Module, int, int], torch.Tensor]


@pytest.fixture(scope="module")
def runtimes() -> Iterator[list[runtime.Runtime]]:
    job = MixedJob(makers=[native_worker] * RANKS)
    yield [runtime.Runtime(worker) for worker in job.workers]
    job.close()


def model_of(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    found = torch.nn.Sequential(torch.nn.Linear(IN, OUT), torch.nn.Tanh(), torch.nn.Linear(OUT, IN)).to(dtype)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in found.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=draw))
    return found


def loss_of(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 * rank + step)
    rows = ROWS if rank == 0 else ROWS - step % 3  # ranks may have batches of their own
    inputs = torch.randn(rows, IN, generator=draw).to(next(model.parameters()).dtype)
    return (model(inputs) ** 2).mean()


def with_penalty(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(model, rank, step) + 0.1 * model[0].weight.square().sum()


def after_a_penalty(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """Of which autograd makes the gradient last."""
    penalty = 0.1 * model[0].weight.square().sum()
    return penalty + loss_of(model, rank, step)


def with_other_gradients(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    """Nobody asks for those of the weights at first."""
    draw = torch.Generator().manual_seed(1000 + 100 * rank + step)
    inputs = torch.randn(ROWS, IN, generator=draw, requires_grad=True)
    loss = (model(inputs) ** 2).mean()
    (slope,) = torch.autograd.grad(loss, inputs, retain_graph=True)
    return (model(inputs.detach() + slope.sign()) ** 2).mean()


def used_twice(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
    return loss_of(torch.nn.Sequential(model, model), rank, step)


def synchronous(made: Callable[[Any], torch.optim.Optimizer], loss: Loss, passes: int = 1) -> list[torch.Tensor]:
    """What one process comes to with the mean of all ranks' gradients."""
    model = model_of()
    optimizer = made(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(RANKS):
            for number in range(passes):
                (loss(model, rank, passes * step + number) / RANKS).backward()
        optimizer.step()
    return weights(model)


def train(
    rank: int, made: Callable[[Any], torch.optim.Optimizer], loss: Loss = loss_of, passes: int = 1, **options: Any
) -> tuple[list[torch.Tensor], int]:
    """The weights, and bytes that this rank has sent since the first step."""
    model = model_of()
    optimizer = bps.DistributedOptimizer(
        made(model.parameters()), **{"consistency": ALL, "model": model, "backward_passes_per_step": passes} | options
    )
    sent = 0
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            loss(model, rank, passes * step + number).backward()
        optimizer.step()
        sent = sent or bps.stats()["payload_sent"]
    found = weights(model), bps.stats()["payload_sent"] - sent
    optimizer.close()
    return found


@pytest.mark.parametrize(
    ("loss", "passes"),
    [
        (loss_of, 1),
        (loss_of, 3),
        (with_penalty, 1),
        (with_penalty, 2),
        (after_a_penalty, 2),
        (with_other_gradients, 1),
        (used_twice, 1),
    ],
)
@pytest.mark.parametrize(
    "made", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.01)]
)
def test_steps_are_those_of_whole_gradients(runtimes, made, loss, passes):
    for found, _ in everywhere(runtimes, lambda rank: train(rank, made, loss, passes, sufficient_factors=True)):
        assert_close(found, synchronous(made, loss, passes))


def test_what_goes_up_are_factors_where_these_are_less(runtimes):
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    whole = everywhere(runtimes, lambda rank: train(rank, sgd))
    by_factors = everywhere(runtimes, lambda rank: train(rank, sgd, sufficient_factors="auto"))
    matrices, biases, steps = 2 * IN * OUT, IN + OUT, range(1, STEPS)
    for rank, ((found, sent), (wanted, sent_whole)) in enumerate(zip(by_factors, whole, strict=True)):
        assert_close(found, wanted)
        rows = sum(ROWS if rank == 0 else ROWS - step % 3 for step in steps)
        notes = sent_whole - 4 * len(steps) * (matrices + biases)
        assert sent - notes == 4 * (rows * 2 * (IN + OUT) + len(steps) * biases) + len(steps) * 2 * 8


def test_more_rows_than_the_matrix_has_numbers_go_as_the_matrix(runtimes):
    """Which is made of each pass, so that no more rows are kept."""

    def of_many(model: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        draw = torch.Generator().manual_seed(100 * rank + step)
        return (model(torch.randn(40, IN, generator=draw)) ** 2).mean()

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def body(rank: int) -> tuple[list[torch.Tensor], int]:
        return train(rank, sgd, of_many, 2, sufficient_factors=True)

    whole = everywhere(runtimes, lambda rank: train(rank, sgd, of_many, 2))
    for (found, sent), (wanted, sent_whole) in zip(everywhere(runtimes, body), whole, strict=True):
        assert_close(found, wanted)
        assert sent == sent_whole + 2 * 8 * (STEPS - 1), "each matrix is behind the number of its factors, 0"


def test_a_step_before_all_passes_has_what_there_is(runtimes):
    """Under asp, where nobody waits for a contribution."""
    turns = Turns()

    def body(rank: int) -> list[torch.Tensor]:
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(
            plain, consistency="asp", model=model, sufficient_factors=True, backward_passes_per_step=2
        )

        def step() -> None:
            loss_of(model, rank, 0).backward()
            optimizer.step()

        turns.take(rank, step)
        optimizer.finish()
        optimizer.close()
        return weights(model)

    model = model_of()
    for rank in range(RANKS):  # all gradients are of the first weights
        loss_of(model, rank, 0).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for found in everywhere(runtimes, body):
        assert_close(found, weights(model))


def test_a_backward_that_fails_leaves_nothing_behind(runtimes):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            raise RuntimeError("no memory")

    def body(rank: int) -> list[torch.Tensor]:
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, consistency=ALL, model=model, sufficient_factors=True)
        with pytest.raises(RuntimeError, match="no memory"):
            model(Fails.apply(model(torch.ones(2, IN)))).sum().backward()  # between two uses of each layer
        optimizer.zero_grad()
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        optimizer.close()
        return weights(model)

    for found in everywhere(runtimes, body):
        assert_close(found, synchronous(lambda p: torch.optim.SGD(p, lr=0.1), loss_of))


def test_between_two_exchanges_gradients_are_whole(runtimes):
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    periods = {"push_every": 2, "pull_every": 2}
    wanted = everywhere(runtimes, lambda rank: train(rank, sgd, **periods))
    for (found, _), (whole, _) in zip(
        everywhere(runtimes, lambda rank: train(rank, sgd, sufficient_factors=True, **periods)), wanted, strict=True
    ):
        assert_close(found, whole)


def test_a_sum_and_weights_of_ranks(runtimes):
    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    for options in ({"op": bps.Sum}, {"damp": "inverse"}):
        wanted = everywhere(runtimes, lambda rank, given=options: train(rank, sgd, **given))
        found = everywhere(runtimes, lambda rank, given=options: train(rank, sgd, sufficient_factors=True, **given))
        for (one, _), (other, _) in zip(found, wanted, strict=True):
            assert_close(one, other)


def test_layers_of_16_bits(runtimes):
    def body(rank: int, factors: bool) -> list[torch.Tensor]:
        model = model_of(torch.bfloat16)
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, consistency=ALL, model=model, sufficient_factors=factors)
        for step in range(STEPS):
            optimizer.zero_grad()
            loss_of(model, rank, step).backward()
            optimizer.step()
        optimizer.close()
        return weights(model)

    whole = everywhere(runtimes, lambda rank: body(rank, False))
    for found, wanted in zip(everywhere(runtimes, lambda rank: body(rank, True)), whole, strict=True):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=0.02, atol=2e-3)


def test_layers_are_as_before_when_it_is_closed(runtimes):
    def body(rank: int) -> None:
        model = model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, consistency=ALL, model=model, sufficient_factors=True)
        loss_of(model, rank, 0).backward()
        assert model[0].weight.grad is None and model[0].bias.grad is not None
        optimizer.step()
        optimizer.close()
        model.zero_grad()
        loss_of(model, rank, 1).backward()
        assert model[0].weight.grad is not None

    everywhere(runtimes, body)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"apply": "worker"}, "sufficient_factors: servers multiply the factors of gradients, and must apply them"),
        ({"model": None}, "needs model=, the nn.Module with the Linear layers"),
        ({"sufficient_factors": "always"}, "must be True, False or 'auto'"),
        ({"combine": "coded:n=2,s=0"}, "servers have means and sums of products"),
        ({"filters": ["float:2"]}, "takes rows, not what"),
    ],
)
def test_what_can_not_be(runtimes, options, text):
    def body(rank: int) -> None:
        with pytest.raises(InvalidArgumentError, match=text):
            train(rank, lambda p: torch.optim.SGD(p, lr=0.1), **{"sufficient_factors": True} | options)

    everywhere(runtimes, body)


def test_an_optimizer_that_servers_lack_is_refused(runtimes):
    def body(rank: int) -> None:
        with pytest.raises(InvalidArgumentError, match="With this RMSprop, apply='worker' or"):
            train(rank, lambda p: torch.optim.RMSprop(p, lr=0.1), sufficient_factors=True)

    everywhere(runtimes, body)
