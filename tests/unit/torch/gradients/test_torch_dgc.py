"""Deep Gradient Compression: the velocity that is not sent is kept, momentum is masked; by NumPy, as in the paper."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import byteps_like.torch as bps
from byteps_like.compression.sparse.topk import TopK
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.optimizers import compression as scenario

SIZE, NUMEL, SHAPE = 3, 160, (8, 20)
MU, RATIO = 0.9, 0.1


def largest(values, count):
    """A mask of the largest ones."""
    mask = np.zeros(values.size, bool)
    mask[np.argsort(-np.abs(values), kind="stable")[:count]] = True
    return mask


def reference(steps, clip=0.0):
    """Averages by the paper's algorithm 4, where servers send back the largest of the sum."""
    momenta, velocities = np.zeros((SIZE, NUMEL)), np.zeros((SIZE, NUMEL))
    for step in range(steps):
        total = np.zeros(NUMEL)
        for rank in range(SIZE):
            gradient = scenario.gradient(step, rank, SHAPE).double().reshape(-1).numpy()
            norm = np.linalg.norm(gradient)
            if clip:
                gradient *= min(1.0, clip / SIZE**0.5 / norm)
            momenta[rank] = MU * momenta[rank] + gradient
            velocities[rank] += momenta[rank]
            sent = largest(velocities[rank], int(RATIO * NUMEL))
            total[sent] += velocities[rank][sent]
            momenta[rank][sent] = velocities[rank][sent] = 0.0
        yield np.where(largest(total, int(RATIO * NUMEL)), total, 0.0) / SIZE


@pytest.mark.parametrize("clip", [0.0, 2.0])
def test_averages_are_those_of_the_paper(clip):
    way = bps.Compression.dgc(RATIO, MU, clip=clip)
    values = [scenario.start(), *run_world(SIZE, scenario.matrix_steps, {"w": way}, [0.1] * 6)[0][0]]
    for step, average in enumerate(reference(6, clip)):
        found = (values[step] - values[step + 1]) / 0.1
        np.testing.assert_allclose(found.numpy(), average, rtol=1e-3, atol=1e-4)


def test_the_warm_up_sends_less_and_less():
    world = ThreadWorld(SIZE)
    way = bps.Compression.dgc(0.01, MU, warmup=(0.25, 0.0625), steps=2)
    run_world(SIZE, scenario.matrix_steps, {"w": way}, [0.1] * 7, world=world)
    codecs = [spec.codec for _, spec in world.seen.values() if spec.codec]
    assert codecs == [TopK(ratio).spec() for ratio in (0.25, 0.0625, 0.01)]
    used = [world.pushed[spec.name] for _, spec in world.seen.values() if spec.codec]
    assert used == [2 * SIZE, 2 * SIZE, 3 * SIZE]


def test_a_checkpoint_in_the_warm_up_goes_on_there():
    def body(bps, rank, size, cut):
        def made():
            way = bps.Compression.dgc(0.05, MU, warmup=(0.25,), steps=4)
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            return bps.DistributedOptimizer(inner, model.named_parameters(), compression={"w": way})

        model = scenario.Given({"w": SHAPE})
        optimizer = made()
        for step in range(7):
            if step == cut:
                state = optimizer.state_dict()
                optimizer.close()
                optimizer = made()
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, rank, SHAPE)}).backward()
            optimizer.step()
        return model.w.detach().clone()

    assert torch.equal(*(run_world(2, body, cut)[0] for cut in (-1, 3)))


@pytest.mark.parametrize("servers", [True, False])
@pytest.mark.parametrize("cut", [-1, 1, 4])
def test_a_warm_up_across_the_barrier_has_the_same_bits(cut, servers):
    """Whatever its step changes codecs in, and in a checkpoint; only the steps before a change wait."""

    def body(bps, rank, size, across):
        def made():
            way = bps.Compression.dgc(0.05, MU, warmup=(0.5, 0.25), steps=3)
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            rules = {"compression": {"*w": way}, "cross_barrier": across, "model": model}
            return bps.DistributedOptimizer(inner, model.named_parameters(), **rules)

        model = torch.nn.Sequential(scenario.Given({"w": SHAPE}))
        optimizer, blocked = made(), []
        for step in range(12):
            if across and step == cut:
                state = optimizer.state_dict()
                optimizer.close()
                optimizer = made()
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, rank, SHAPE)}).backward()
            optimizer.step()
            if across:
                blocked.append(optimizer._distribution.guards.flight is None)
        rounds = optimizer.state_dict()["byteps_like"]["rounds"]
        return model[0].w.detach().clone(), rounds, [step for step, waits in enumerate(blocked) if waits]

    waiting, crossing = (
        run_world(2, body, across, world=ThreadWorld(2, partition_bytes=256), servers=servers)
        for across in (False, True)
    )
    for (expected, _, _), (found, rounds, blocked) in zip(waiting, crossing, strict=True):
        assert torch.equal(expected, found) and rounds == 12
        assert blocked == sorted({0, 2, 5} | {max(cut, 0)}), "the first one, and those before another codec"


def test_a_warm_up_across_the_barrier_goes_on_after_a_join():
    """Steps that a rank took no part in don't count, whatever was in flight when it joined."""

    def body(bps, rank, size, across):
        model = torch.nn.Sequential(scenario.Given({"w": SHAPE}))
        way = bps.Compression.dgc(0.05, MU, warmup=(0.5,), steps=4)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(
            inner, model.named_parameters(), compression={"*w": way}, cross_barrier=across, model=model
        )
        for first, count in ((0, 3 if rank else 5), (10, 6)):
            for step in range(first, first + count):
                optimizer.zero_grad()
                model({"w": scenario.gradient(step, rank, SHAPE)}).backward()
                optimizer.step()
            bps.join()
        return optimizer.state_dict()["byteps_like"]["rounds"], model[0].w.detach().clone()

    waiting, crossing = (run_world(2, body, across) for across in (False, True))
    assert [rounds for rounds, _ in crossing] == [9, 9]
    assert all(torch.equal(one[1], other[1]) for one, other in zip(waiting, crossing, strict=True))


def test_the_optimizer_keeps_no_momentum_of_its_own():
    def body(bps, rank, size):
        model = scenario.Given({"w": SHAPE})
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        bps.DistributedOptimizer(inner, model.named_parameters(), compression=bps.Compression.dgc())

    with pytest.raises(bps.InvalidArgumentError, match="twice"):
        run_world(1, body)
