"""OnebitAdam: first Adam, then averaged momenta with feedback on both sides, as NumPy has them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import byteps_like.torch as bps
from byteps_like.compression.quantised.onebit import Onebit
from byteps_like.torch.job import runtime
from tests.fakes.settings import configure
from tests.fakes.thread_world import run_world
from tests.scenarios.optimizers import compression as scenario

SIZE, FREEZE, STEPS = 3, 4, 10
SHAPE = (8, 20)


def body(bps, rank, size, cut=-1, across=False):
    """The matrix after each step, beside a parameter that stays raw; with a checkpoint loaded after `cut` steps.

    `across`: the barrier.
    """

    def made():
        inner = bps.OnebitAdam(
            model.parameters(), lr=0.01, weight_decay=0.1, freeze_step=FREEZE, codec="onebit:block=64"
        )
        return bps.DistributedOptimizer(inner, model.named_parameters(), cross_barrier=across, model=model)

    model = scenario.Given({"w": SHAPE, "bias": (7,)})
    optimizer, found = made(), []
    for step in range(STEPS):
        if step == cut:
            state = optimizer.state_dict()
            optimizer.close()
            optimizer = made()
            optimizer.load_state_dict(state)
        optimizer.zero_grad()
        model(
            {"w": scenario.gradient(step, rank, SHAPE), "bias": scenario.gradient(step, rank, (7,), seed=3)}
        ).backward()
        optimizer.step()
        if across and step % 3 == 0:  # else the next forward does
            optimizer.synchronize()
        found.append(model.w.detach().clone().reshape(-1))
    return found, model.bias.detach().clone()


class Reference:
    """1-bit Adam in NumPy: algorithm 1 of the paper, with Adam's corrections of bias and AdamW's decay."""

    def __init__(self, value):
        self.codec = Onebit(64)
        self.value, self.m, self.v = value.astype(np.float64), np.zeros(value.size), np.zeros(value.size)
        self.left = [np.zeros(value.size, np.float32)] * SIZE
        self.owed = np.zeros(value.size, np.float32)

    def coded(self, x):
        payload = self.codec.encode(np.float32(x), None, None, 1)
        return self.codec.decode_one(payload, x.size, 1.0)

    def step(self, number, gradients):
        if number < FREEZE:
            mean = np.mean(gradients, 0)
            self.m = 0.9 * self.m + 0.1 * mean
            self.v = 0.999 * self.v + 0.001 * mean**2
        else:
            momenta = [
                0.9 * self.m + 0.1 * gradient + left for gradient, left in zip(gradients, self.left, strict=True)
            ]
            sent = [self.coded(momentum) for momentum in momenta]
            self.left = [momentum - part for momentum, part in zip(momenta, sent, strict=True)]
            total = sum(sent) + self.owed
            result = self.coded(total)
            self.owed, self.m = total - result, result / SIZE
        variance = self.v / (1 - 0.999 ** min(number + 1, FREEZE))
        self.value *= 1 - 0.01 * 0.1
        self.value -= 0.01 * self.m / (1 - 0.9 ** (number + 1)) / (np.sqrt(variance) + 1e-8)


@pytest.fixture(autouse=True)
def small_ones_too(monkeypatch):
    """Matrices of these tests are small; their codec is for them all the same."""
    plain = runtime.Runtime.__init__

    def init(self, *arguments):
        plain(self, *arguments)
        configure(self, min_compress_bytes=0)

    monkeypatch.setattr(runtime.Runtime, "__init__", init)


def test_two_phases():
    results = run_world(SIZE, body)
    reference = Reference(scenario.Given({"w": SHAPE, "bias": (7,)}).w.detach().reshape(-1).numpy())
    for step in range(STEPS):
        reference.step(step, [scenario.gradient(step, rank, SHAPE).reshape(-1).numpy() for rank in range(SIZE)])
        np.testing.assert_allclose(results[0][0][step].numpy(), reference.value, rtol=1e-4, atol=1e-5)
    for found, bias in results[1:]:
        assert torch.equal(found[-1], results[0][0][-1]) and torch.equal(bias, results[0][1])


def test_warm_up_is_adamw():
    model = scenario.Given({"w": SHAPE, "bias": (7,)})
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    found = run_world(1, body)[0][0]
    for step in range(FREEZE):
        adam.zero_grad()
        model({"w": scenario.gradient(step, 0, SHAPE)}).backward()
        adam.step()
        torch.testing.assert_close(found[step], model.w.detach().reshape(-1))


@pytest.mark.parametrize("cut", [2, 7])
def test_checkpoints_in_both_phases(cut):
    whole, resumed = run_world(1, body)[0], run_world(1, body, cut)[0]
    torch.testing.assert_close(whole[0][-1], resumed[0][-1])


@pytest.mark.parametrize("cut", [-1, 2, 7])
def test_across_the_barrier_it_is_the_same(cut):
    waiting, crossing = (run_world(SIZE, body, cut, across) for across in (False, True))
    for (expected, bias), (found, other) in zip(waiting, crossing, strict=True):
        assert torch.equal(bias, other) and torch.equal(expected[-1], found[-1])


def test_what_it_refuses():
    parameter = torch.nn.Parameter(torch.zeros(3))
    for wrong in ({"betas": (1.0, 0.9)}, {"freeze_step": 0}, {"codec": "twobit"}):
        with pytest.raises(bps.InvalidArgumentError):
            bps.OnebitAdam([parameter], **wrong)

    def other(bps, rank, size):
        bps.DistributedOptimizer(bps.OnebitAdam([parameter]), compression="fp16")

    with pytest.raises(bps.InvalidArgumentError, match="codec="):
        run_world(1, other)
