"""compression= of DistributedOptimizer and of single tensors: what arrives is what the codecs' references say."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import byteps_like.torch as bps
from byteps_like.compression.codec import Trait
from byteps_like.compression.registry import codec_of
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.native_world import run_native_world
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, distance, loss_of, mlp, share
from tests.scenarios.optimizers import compression as scenario

SIZE = 3
NAMED = {"w": "onebit:block=64"}
"""By a rule of its own, since it is small."""


def expected(rates, feedback=True, scaled=True):
    """Values after each step by the reference; the key is that of the second tensor that is declared."""
    codec = codec_of("onebit:block=64")
    reference, value, last = scenario.Reference(codec, SIZE, feedback), scenario.start(), rates[0]
    for step, rate in enumerate(rates):
        average = reference.average(step, 0, last / rate if scaled else 1.0)
        value, last = value - rate * torch.from_numpy(average), rate
        yield value


@pytest.mark.parametrize("feedback", [None, False])
def test_steps_are_those_of_the_reference(feedback):
    way = bps.Compress("onebit:block=64", feedback=feedback)
    results = run_world(SIZE, scenario.matrix_steps, {"w": way}, [0.1] * 6)
    for ours, theirs in zip(results[0][0], expected([0.1] * 6, feedback is None), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert all(torch.equal(a, b) for other, _ in results[1:] for a, b in zip(results[0][0], other, strict=True))


def test_learning_rates_rescale_what_was_left_out():
    rates = [0.1, 0.1, 0.05, 0.2, 0.2, 0.02]
    results = run_world(SIZE, scenario.matrix_steps, NAMED, rates)
    for ours, theirs in zip(results[0][0], expected(rates), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def left_of(results):
    """What the ranks have not sent, on average."""
    residuals = [state["byteps_like"]["parameters"]["w"]["residual"] for _, state in results]
    return torch.stack(residuals).double().mean(0).reshape(-1)


def test_telescoping_over_20_steps_of_other_rates():
    """What was applied and what is left add up to all gradients, in terms of the rates they were applied with."""
    rates = [0.1 * 0.9**step * (2 if step == 7 else 1) for step in range(20)]
    results = run_world(1, scenario.matrix_steps, NAMED, rates)
    total = sum(rate * scenario.gradient(step, 0).double() for step, rate in enumerate(rates))
    applied = scenario.start().double() - results[0][0][-1].double()
    assert distance(applied + rates[-1] * left_of(results), total) < 1e-5


@pytest.mark.parametrize("two_way", [False, True])
def test_telescoping_needs_feedback_on_servers_where_they_encode_again(two_way):
    way = bps.Compress("onebit:block=64", feedback=True, two_way=two_way)
    world = ThreadWorld(SIZE)
    results = run_world(SIZE, scenario.matrix_steps, {"w": way}, [0.1] * 20, world=world)
    total = 0.1 * sum(scenario.gradient(step, rank).double() for step in range(20) for rank in range(SIZE)) / SIZE
    applied = scenario.start().double() - results[0][0][-1].double()
    owed = sum(torch.from_numpy(item).double() for item in world.codecs.owed.values()) / SIZE
    error = distance(applied + 0.1 * (left_of(results) + owed), total)
    assert error < 1e-5 if two_way else error > 1e-2


def test_defaults_of_feedback_follow_the_optimizer():
    def body(bps, rank, size, make):
        model = mlp(torch.float32, widths=(128, 128, 5))
        optimizer = bps.DistributedOptimizer(make(model.parameters()), compression="onebit")
        return bool(optimizer.state_dict().get("byteps_like"))

    for make, wanted in ((torch.optim.SGD, True), (torch.optim.AdamW, False), (torch.optim.RMSprop, False)):
        assert run_world(1, body, make) == [wanted]


def test_half_precision_gradients_are_encoded_as_float32():
    def body(bps, rank, size):
        model = scenario.Given({"w": (8, 20)}, torch.bfloat16)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression=NAMED
        )
        model({"w": scenario.gradient(0, rank, (8, 20)).bfloat16()}).backward()
        optimizer.synchronize()
        return model.w.grad.clone()

    found = run_world(SIZE, body)[0]
    xs = [scenario.gradient(0, rank).bfloat16().float().numpy() for rank in range(SIZE)]
    out = scenario.by_reference(codec_of("onebit:block=64"), xs, 0, 0, 1 / SIZE).out
    assert found.dtype is torch.bfloat16
    torch.testing.assert_close(found.float().reshape(-1), torch.from_numpy(np.float32(out)).bfloat16().float())


def test_memory_follows_parameters_when_arenas_are_built_anew():
    """Another order after the first step, a parameter frozen, another one added: nothing is forgotten."""

    def body(bps, rank, size, disturbed):
        shapes = {"a": (20, 30), "w": (8, 20), "b": (25, 10)}
        model = scenario.Given(shapes)
        rules = {"*w": "onebit:block=64", "a": "onebit:block=32"}
        inner = torch.optim.SGD([model.w, model.a], lr=0.1)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules)
        for step in range(6):
            optimizer.zero_grad()
            if disturbed and step == 2:
                optimizer.add_param_group({"params": [model.b]})
            if disturbed and step == 4:
                optimizer.param_groups[1]["params"].clear()
            names = [name for name in ("w", "a") if step % 2 or name == "w"]
            model({name: scenario.gradient(step, rank, shapes[name]) for name in names}).backward()
            optimizer.step()
        return model.w.detach().clone()

    world = [ThreadWorld(SIZE, partition_bytes=256) for _ in range(2)]
    plain, disturbed = (run_world(SIZE, body, flag, world=world[flag])[0] for flag in (False, True))
    torch.testing.assert_close(plain, disturbed)


def test_a_round_thrown_away_leaves_nothing_behind():
    def body(bps, rank, size, disturbed):
        model = scenario.Given({"w": (8, 20)})
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression=NAMED
        )
        if disturbed:
            model({"w": 1e6 * scenario.gradient(9, rank, (8, 20))}).backward()
            optimizer.zero_grad()
        model({"w": scenario.gradient(0, rank, (8, 20))}).backward()
        optimizer.step()
        return model.w.detach().clone()

    assert torch.equal(*(run_world(2, body, flag)[0] for flag in (False, True)))


@pytest.mark.parametrize(
    ("way", "options"),
    [
        *((way, how) for way in ("onebit:block=64", "powersgd:rank=1") for how in ({}, {"cross_barrier": True})),
        ("onebit:block=64", {"shard": "optimizer"}),
    ],
)
def test_a_round_that_one_rank_throws_away_leaves_nothing_on_the_others(way, options):
    def body(bps, rank, size):
        model = scenario.Given({"w": (16, 20)})
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        more = {"model": model, **options} if "cross_barrier" in options else options
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression={"w": way}, **more)
        for step in range(3):
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, rank, (16, 20))}).backward()
            if step < 2:
                optimizer.step()
        with pytest.raises(bps.MismatchError):
            if rank == 0:
                optimizer.zero_grad()
            else:
                optimizer.step()
                optimizer.synchronize()
        return optimizer.state_dict()["byteps_like"]["parameters"]["w"]["residual"]

    assert not any(bool(residual.any()) for residual in run_world(2, body))


def test_state_dict_goes_round():
    """Five steps at once, and three, a checkpoint per rank, and two: the same weights. Other ranks' is dropped."""

    def body(bps, rank, size, cut, other=0):
        def made():
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            return bps.DistributedOptimizer(optimizer, model.named_parameters(), compression=NAMED)

        model = scenario.Given({"w": (8, 20)})
        optimizer = made()
        for step in range(5):
            if step == cut:
                state = optimizer.state_dict()
                optimizer.close()
                torch.optim.SGD(model.parameters(), lr=0.1).load_state_dict(state)
                optimizer = made()
                state["byteps_like"]["rank"] += other
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, rank, (8, 20))}).backward()
            optimizer.step()
        return model.w.detach().clone()

    whole, resumed, dropped = (run_world(2, body, *arguments)[0] for arguments in ((-1,), (3,), (3, 1)))
    assert torch.equal(whole, resumed) and not torch.equal(whole, dropped)


@pytest.mark.parametrize("way", ["onebit:block=64", "powersgd:rank=1"])
@pytest.mark.parametrize("how", ["rebuilt", "resumed", "went back"])
def test_a_change_of_the_learning_rate_counts_whatever_else_changes(way, how):
    """Between the same two steps: buckets are built anew, as a parameter has gone; or a checkpoint is saved before the
    change and loaded after it; or an old one is loaded, from where the rate was another one."""
    rates = [0.1, 0.1, 0.1, 0.02, 0.3]

    def body(bps, rank, size, disturbed):
        model = scenario.Given({"w": (16, 20), "b": (25, 10)})

        def made():
            groups = [{"params": [model.w]}, {"params": [model.b]}]
            inner = torch.optim.SGD(groups, lr=0.1)
            return bps.DistributedOptimizer(inner, model.named_parameters(), compression={"w": way})

        def train(step):
            optimizer.param_groups[0]["lr"] = rates[step]
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, rank, (16, 20))}).backward()
            optimizer.step()

        optimizer = made()
        for step in range(5):
            state = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            if disturbed and step == 3 and how == "rebuilt":
                optimizer.param_groups[1]["params"].clear()
            if disturbed and step == 3 and how == "resumed":
                optimizer.close()
                optimizer = made()
                optimizer.load_state_dict(state[1])
            if disturbed and step == 3 and how == "went back":
                train(3)
                train(4)
                model.load_state_dict(state[0])
                optimizer.load_state_dict(state[1])
            train(step)
        return model.w.detach().clone()

    whole, disturbed = (run_world(2, body, flag)[0] for flag in (False, True))
    torch.testing.assert_close(whole, disturbed, rtol=1e-5, atol=1e-6)


def test_padding_between_gradients_owes_nothing():
    """Gradients that begin at multiples of 64 bytes: zeros between them count as such in each round, whatever a codec
    makes of them; so a run that goes on from a checkpoint is the same as one that was not cut."""

    def body(bps, rank, size, cut):
        shapes, rules = {"a": (5,), "b": (7, 3)}, {"*": "onebit:block=64"}
        model = scenario.Given(shapes)

        def made():
            inner = torch.optim.SGD(model.parameters(), lr=0.1)
            ways = dict.fromkeys(shapes, rules["*"])
            return bps.DistributedOptimizer(inner, model.named_parameters(), compression=ways)

        optimizer = made()
        for step in range(5):
            if step == cut:
                state = optimizer.state_dict()
                optimizer.close()
                optimizer = made()
                optimizer.load_state_dict(state)
            optimizer.zero_grad()
            model({name: scenario.gradient(step, rank, shape) for name, shape in shapes.items()}).backward()
            optimizer.step()
        return torch.cat([model.a.detach(), model.b.detach().flatten()])

    whole, resumed = (run_world(2, body, cut)[0] for cut in (-1, 3))
    assert torch.equal(whole, resumed)


def test_push_pull_by_a_codec():
    def body(bps, rank, size):
        tensor = scenario.gradient(0, rank).double()
        found = bps.push_pull(tensor, name="x", compression="onebit:block=64")
        summed = bps.allreduce(tensor.float(), op=bps.Sum, name="y", compression=bps.Compression.onebit(block=64))
        for wrong in ({"op": bps.Max}, {"op": bps.Adasum}):
            with pytest.raises(bps.InvalidArgumentError, match="onebit"):
                bps.push_pull(tensor, compression="onebit", **wrong)
        with pytest.raises(bps.InvalidArgumentError, match="codec state belongs to"):
            bps.push_pull(tensor, compression=bps.Compress("onebit", feedback=True))
        return found, summed

    xs = [scenario.gradient(0, rank).numpy() for rank in range(SIZE)]
    out = torch.from_numpy(np.float32(scenario.by_reference(codec_of("onebit:block=64"), xs, 0, 0, 1 / SIZE).out))
    for found, summed in run_world(SIZE, body):
        assert found.dtype is torch.float64
        torch.testing.assert_close(found.float(), out)
        torch.testing.assert_close(summed, SIZE * out)


def test_replicas_and_crossing_the_barrier():
    def trained(bps, rank, size, how):
        model = mlp(torch.float32, widths=(20, 40, 40, 5))
        wrapped, rules = model, {"*.weight": bps.Compress("onebit", feedback=True)}
        inner = torch.optim.SGD(model.parameters(), lr=0.05)
        if how == "ddp":
            wrapped, optimizer = bps.DistributedDataParallel(model, compression=rules), inner
        else:
            options = {"cross_barrier": True, "model": model} if how == "crossing" else {}
            optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules, **options)
        for step in range(6):
            optimizer.zero_grad()
            x, y = batch(step)
            loss_of(wrapped, share(x, rank, size), share(y, rank, size)).backward()
            optimizer.step()
        optimizer.state_dict()  # waits for the last update
        return [value.clone() for value in model.state_dict().values()]

    plain, ddp, crossing = (run_world(2, trained, how) for how in ("plain", "ddp", "crossing"))
    for other in (ddp, crossing):
        for a, b in zip(plain[0], other[0], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        assert all(torch.equal(a, b) for a, b in zip(other[0], other[1], strict=True))


def test_joined_ranks_encode_zeros():
    def body(bps, rank, size):
        model = scenario.Given({"w": (8, 20)})
        rules = {"w": bps.Compress("onebit", feedback=False)}
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules)
        for _ in range(1 + rank):
            optimizer.zero_grad()
            model({"w": torch.ones(8, 20)}).backward()
            optimizer.step()
        last = bps.join()
        return last, model.w.detach().clone()

    first, second = run_world(2, body)
    assert first[0] == second[0] == 1
    # Two steps of ones: in the first by both, in the second by one of two, so half of it.
    torch.testing.assert_close(second[1].reshape(-1), scenario.start() - 0.1 * 1.5)


def test_ranks_with_other_codecs_are_told():
    def body(bps, rank, size):
        model = scenario.Given({"w": (8, 20)})
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        bps.DistributedOptimizer(inner, model.named_parameters(), compression={"w": f"onebit:block={32 << rank}"})

    with pytest.raises(bps.MismatchError, match="onebit"):
        run_world(2, body)


def test_codecs_of_the_registry_have_factories():
    assert bps.Compression.onebit(64).codec == codec_of("onebit:block=64")
    assert bps.Compression.onebit(two_way=True).codec.trait is Trait.REENCODE
    with pytest.raises(AttributeError, match="onebit"):
        bps.Compression.twobit  # noqa: B018


def power_sgd(gradients, left, factor):
    """One round for one matrix, with NumPy: the mean's approximation, what each rank has left, the next factor."""
    matrices = [gradient + rest for gradient, rest in zip(gradients, left, strict=True)]
    basis = np.linalg.qr(np.mean([matrix @ factor for matrix in matrices], 0))[0]
    factors = [matrix.T @ basis for matrix in matrices]
    rests = [matrix - basis @ own.T for matrix, own in zip(matrices, factors, strict=True)]
    return basis @ np.mean(factors, 0).T, rests, np.mean(factors, 0)


@pytest.mark.parametrize("servers", [True, False])
def test_powersgd_is_that_of_the_paper(servers):
    def body(bps, rank, size):
        model = scenario.Given({"w": (24, 5, 6), "bias": (24,)})
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), compression={"w": "powersgd:rank=2"}
        )
        begin = optimizer.state_dict()["byteps_like"]["parameters"]["w"]["factor"]
        found = []
        for step in range(4):
            optimizer.zero_grad()
            values = {"w": scenario.gradient(step, rank, (24, 5, 6)), "bias": torch.full((24,), float(rank))}
            model({name: value for name, value in values.items() if name != "w" or (rank, step) != (1, 2)}).backward()
            optimizer.synchronize()
            found.append(model.w.grad.double().reshape(24, 30).numpy())
            with optimizer.skip_synchronize():
                optimizer.step()
        assert float(model.bias.grad[0]) == 1.0
        return begin.double().numpy(), found

    results = run_world(SIZE, body, servers=servers)
    factor, found = results[0]
    left = [np.zeros((24, 30))] * SIZE
    for step in range(2):
        gradients = [scenario.gradient(step, rank, (24, 5, 6)).double().reshape(24, 30).numpy() for rank in range(SIZE)]
        mean, left, factor = power_sgd(gradients, left, factor)
        np.testing.assert_allclose(found[step], mean, rtol=1e-3, atol=1e-4)
    assert all(np.array_equal(a, b) for _, other in results[1:] for a, b in zip(found, other, strict=True))


def test_powersgd_sends_its_factors_and_telescopes():
    world = ThreadWorld(SIZE)
    results = run_world(SIZE, scenario.matrix_steps, {"w": "powersgd:rank=1"}, [0.1] * 20, (16, 10), world=world)
    sent = [spec.numel for _, spec in world.seen.values() if spec.name.endswith((".p", ".q"))]
    assert sorted(sent) == [16 + 16, 16 + 16]  # factors of 16 and 10 elements, to the next 16, and control elements
    applied = scenario.Given({"w": (16, 10)}).w.detach().reshape(-1).double() - results[0][0][-1].double()
    total = (
        0.1
        * sum(
            scenario.gradient(step, rank, (16, 10)).double().reshape(-1) for step in range(20) for rank in range(SIZE)
        )
        / SIZE
    )
    assert distance(applied + 0.1 * left_of(results), total) < 1e-5


def test_powersgd_survives_zeros_and_what_is_no_number():
    def body(bps, rank, size):
        model = scenario.Given({"w": (32, 32)})
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters(), compression={"w": "powersgd:rank=4"}
        )
        exact = scenario.gradient(0, 0, (32, 1)) @ scenario.gradient(1, 0, (1, 32))
        found = []
        for value in (torch.zeros(32, 32), torch.full((32, 32), float("nan")), exact, exact):
            optimizer.zero_grad()
            model({"w": value}).backward()
            optimizer.synchronize()
            found.append(model.w.grad.clone())
        return *found, exact

    for zeros, nothing, _, last, exact in run_world(2, body):
        assert not zeros.any() and nothing.isnan().any()
        torch.testing.assert_close(last, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("body", [scenario.telescopes, scenario.trains_by, scenario.left_out_at_times])
def test_over_the_native_cores_collectives(body):
    run_native_world(SIZE, body, partition_bytes=1024)


def test_other_partitions_while_training_change_nothing():
    def body(bps, rank, size, disturbed):
        model = scenario.Given({"w": (8, 20), "a": (16, 8)})
        rules = {"w": "onebit:block=64", "a": bps.Compress("onebit:block=32", feedback=True, momentum=0.5)}
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=rules)
        for step in range(6):
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, rank, (8, 20)), "a": scenario.gradient(step, rank, (16, 8))}).backward()
            optimizer.step()
            if disturbed and step in (1, 3):
                reducer = optimizer._distribution.reducer
                reducer.recut(reducer.route, 256 if step == 1 else 0)
        return torch.cat([model.w.detach().reshape(-1), model.a.detach().reshape(-1)])

    assert torch.equal(*(run_world(2, body, flag)[0] for flag in (False, True)))


def test_what_was_left_out_goes_with_its_parameter_into_another_world():
    def steps(optimizer, model, numbers):
        for step in numbers:
            optimizer.zero_grad()
            model({"w": scenario.gradient(step, 0, (8, 20))}).backward()
            optimizer.step()

    values = []
    for worlds in ([range(6)], [range(3), range(3, 6)]):
        model, optimizer = scenario.Given({"w": (8, 20)}), None
        for numbers in worlds:
            with runtime.bound(LocalWorker()):
                inner = torch.optim.SGD(model.parameters(), lr=0.1)
                optimizer = optimizer or bps.DistributedOptimizer(inner, model.named_parameters(), compression=NAMED)
                steps(optimizer, model, numbers)
        values.append(model.w.detach().clone())
    assert torch.equal(*values)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_gradient_that_is_no_number_is_seen_and_not_remembered():
    def body(bps, rank, size):
        model = scenario.Given({"w": (8, 20)})
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(inner, model.named_parameters(), compression=NAMED)
        for value in (float("inf"), 1.0):
            optimizer.zero_grad()
            model({"w": torch.full((8, 20), value if rank == 0 else 1.0)}).backward()
            optimizer.synchronize()
            yield model.w.grad.isfinite().all().item()

    assert run_world(2, lambda *arguments: list(body(*arguments))) == [[False, True]] * 2
