"""Batches by speed, over servers and by collectives: shares follow the ranks' times, gradients are those of one process
with the whole batch; waits don't count; what is refused."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

import torch
from mixed_job import DEADLINE, MixedJob, native_worker
from on_runtimes import by_servers

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError, MismatchError, NotInitializedError
from byteps_like.torch.device import devices
from byteps_like.torch.job import naming, runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.native_world import run_native_world

RANKS, BATCH, STEPS = 4, 70, 6
COSTS = (1.0, 1.0, 1.0, 2.0)
"""Seconds that a sample takes, by rank."""
EVEN, BY_SPEED = (18, 18, 17, 17), (20, 20, 20, 10)
_drawing = threading.Lock()  # there is one generator for all threads


@pytest.fixture(scope="module")
def runtimes() -> Iterator[list[runtime.Runtime]]:
    job = MixedJob(makers=[native_worker] * RANKS)
    yield [runtime.Runtime(worker) for worker in job.workers]
    job.close()


@pytest.fixture(params=["servers", "collectives"])
def everywhere(request: pytest.FixtureRequest) -> Callable[[Callable[[int], Any]], list[Any]]:
    """Runs `body(rank)` on a thread per rank, on either route; their results."""
    if request.param == "servers":
        return lambda body: by_servers(request.getfixturevalue("runtimes"), body)
    return lambda body: run_native_world(RANKS, lambda _, rank, size: body(rank))


class Clock:
    """Of a rank that does nothing but work."""

    def __init__(self) -> None:
        self.now = 0.0
        runtime.current().clock = lambda: self.now

    def work(self, samples: int, cost: float) -> None:
        self.now += samples * cost


def model_of(seed: int = 0) -> torch.nn.Sequential:
    with _drawing:
        torch.manual_seed(seed)
        return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of all ranks."""
    draw = torch.Generator().manual_seed(step)
    return torch.randn(BATCH, 6, generator=draw), torch.randn(BATCH, 3, generator=draw)


def loss_of(model: torch.nn.Module, step: int, part: slice = slice(None)) -> torch.Tensor:
    inputs, wanted = batch(step)
    return torch.nn.functional.mse_loss(model(inputs[part]), wanted[part])


def flat(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


def momentum(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def one_process() -> tuple[list[torch.Tensor], torch.Tensor]:
    """Each step's gradient of the whole batch, and the weights they lead to."""
    model = model_of()
    optimizer, found = momentum(model), []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        found.append(gradient(model).clone())
        optimizer.step()
    return found, flat(model)


@pytest.mark.parametrize("options", [{}, {"op": bps.Sum}, {"shard": "optimizer"}, {"cross_barrier": True}], ids=str)
def test_gradients_are_those_of_the_whole_batch(everywhere, options):
    def train(rank: int) -> Any:
        clock, model = Clock(), model_of()
        more = {"model": model} if options.get("cross_barrier") else {}
        optimizer = bps.DistributedOptimizer(momentum(model), model.named_parameters(), **options, **more)
        shares = bps.BatchShares(BATCH)
        dealt, gradients = [], []
        for step in range(STEPS):
            optimizer.zero_grad()
            with shares.step() as own:
                scale = shares.scale / (RANKS if "op" in options else 1)
                (loss_of(model, step, shares.slice) * scale).backward()
                clock.work(own, COSTS[rank])
            dealt.append(shares.by_rank)
            if not options:
                optimizer.synchronize()
                gradients.append(gradient(model).clone())
                with optimizer.skip_synchronize():
                    optimizer.step()
            else:
                optimizer.step()
        bps.barrier()
        optimizer.synchronize()
        optimizer.close()
        return dealt, gradients, flat(model)

    wanted, weights = one_process()
    for dealt, gradients, found in everywhere(train):
        assert dealt == [EVEN] * 2 + [BY_SPEED] * (STEPS - 2)  # the first step is not measured
        torch.testing.assert_close(found, weights, rtol=0, atol=1e-6)
        for one, other in zip(gradients, wanted, strict=False):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def normalized(norm: type[torch.nn.Module]) -> torch.nn.Sequential:
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), norm(5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    torch.nn.utils.vector_to_parameters(torch.linspace(-1, 1, 63), model.parameters())
    return model


def test_synchronized_batch_norm_is_that_of_the_whole_batch(everywhere):
    def train(rank: int) -> torch.Tensor:
        clock, model = Clock(), normalized(bps.SyncBatchNorm)
        optimizer = bps.DistributedOptimizer(momentum(model), model.named_parameters())
        shares = bps.BatchShares(BATCH)
        for step in range(STEPS):
            optimizer.zero_grad()
            with shares.step() as own:
                (loss_of(model, step, shares.slice) * shares.scale).backward()
                clock.work(own, COSTS[rank])
            optimizer.step()
        optimizer.close()
        return flat(model)

    model = normalized(torch.nn.BatchNorm1d)
    optimizer = momentum(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    for found in everywhere(train):
        torch.testing.assert_close(found, flat(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("apply", ["server", "worker"])
def test_servers_average_by_samples(runtimes, apply):
    def train(rank: int) -> torch.Tensor:
        clock, model = Clock(), model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, consistency=f"k_of_n:k={RANKS}", apply=apply)
        shares = bps.BatchShares(BATCH)
        for step in range(STEPS):
            optimizer.zero_grad()
            with shares.step() as own:
                optimizer.weight = own
                loss_of(model, step, shares.slice).backward()
                clock.work(own, COSTS[rank])
            optimizer.step()
        assert shares.by_rank == BY_SPEED
        return flat(model)

    model = model_of()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        plain.zero_grad()
        loss_of(model, step).backward()
        plain.step()
    for found in by_servers(runtimes, train):
        torch.testing.assert_close(found, flat(model), rtol=0, atol=1e-6)


def test_ranks_that_do_not_wait_for_each_other_exchange_speeds_now_and_then(runtimes):
    """Between two exchanges a rank goes on while another has not begun its second step."""
    ahead = threading.Event()

    def train(rank: int) -> Any:
        clock, model = Clock(), model_of()
        plain = torch.optim.SGD(model.parameters(), lr=0.01)
        optimizer = bps.DistributedOptimizer(plain, consistency="asp")
        shares = bps.BatchShares(BATCH, every=5)
        dealt = []
        for step in range(12):
            assert rank != 1 or step != 2 or ahead.wait(DEADLINE)
            if rank == 0 and step == 5:
                ahead.set()
            optimizer.zero_grad()
            with shares.step() as own:
                (loss_of(model, step, shares.slice) * shares.scale).backward()
                clock.work(own, COSTS[rank])
            optimizer.step()
            dealt.append(shares.by_rank)
        bps.barrier()
        return dealt

    for dealt in by_servers(runtimes, train):
        assert dealt == [EVEN] * 6 + [BY_SPEED] * 6


def test_speeds_are_smoothed_and_noise_changes_nothing(everywhere):
    def body(rank: int) -> Any:
        clock = Clock()
        shares = bps.BatchShares(BATCH, smoothing=0.25)
        costs = [9.0, 1.0, 1.04 if rank else 1.0, 1.0, 1.0, *[COSTS[rank]] * 8]
        found = []
        for cost in costs:
            with shares.step() as own:
                clock.work(own, cost)
            found.append((shares.by_rank, shares.speeds))
        return found

    first, *others = everywhere(body)
    assert all(found == first for found in others)
    assert [dealt for dealt, _ in first[:6]] == [EVEN] * 6
    assert first[1][1] == () and first[2][1] == (1.0,) * RANKS
    assert first[3][1] == pytest.approx((1.0, *[0.75 + 0.25 / 1.04] * 3))
    last = [dealt[3] for dealt, _ in first]
    assert last == sorted(last, reverse=True) and last[-1] <= 12


def test_waits_for_others_do_not_count(monkeypatch):
    with runtime.bound(LocalWorker()) as own:
        clock, shares = Clock(), bps.BatchShares(6)
        monkeypatch.setattr(naming, "monotonic", lambda: clock.now)
        for _ in range(2):
            with shares.step():
                clock.now += 2
                with own.names.waits(None):
                    clock.now += 50
                clock.now += 1
        shares.begin()
        assert shares.speeds == (2.0,)


@pytest.mark.parametrize("what", ["calls", "cross_barrier"])
def test_waits_are_known(everywhere, what):
    def body(rank: int) -> float:
        model = model_of()
        if what == "calls":
            bps.push_pull(torch.ones(1))
        else:
            optimizer = bps.DistributedOptimizer(momentum(model), cross_barrier=True, model=model)
            before = runtime.current().names.waited()
            for step in range(2):
                loss_of(model, step).backward()
                optimizer.step()
            assert runtime.current().names.waited() > before
            optimizer.synchronize()
            optimizer.close()
        bps.barrier()
        return runtime.current().names.waited()

    assert min(everywhere(body)) > 0


def test_multiples_and_minimum(everywhere):
    def body(rank: int) -> Any:
        clock = Clock()
        shares = bps.BatchShares(96, minimum=9, multiple=8)
        found = []
        for _ in range(3):
            with shares.step() as own:
                clock.work(own, (1.0, 1.0, 1.0, 50.0)[rank])
            found.append((shares.by_rank, shares.slice, shares.scale))
        return found

    for rank, found in enumerate(everywhere(body)):
        assert [dealt for dealt, _, _ in found] == [(24,) * 4] * 2 + [(32, 24, 24, 16)]
        starts = [0, *itertools.accumulate(found[2][0])]
        assert found[2][1:] == (slice(starts[rank], starts[rank + 1]), 4 * found[2][0][rank] / 96)


def test_some_ranks_by_themselves():
    def body(bps: Any, rank: int, size: int) -> Any:
        pair = bps.add_process_set([1, 3])
        if rank not in (1, 3):
            with pytest.raises(InvalidArgumentError, match="not in process set"):
                bps.BatchShares(9, process_set=pair)
            return None
        clock = Clock()
        shares = bps.BatchShares(9, process_set=pair)
        for _ in range(3):
            with shares.step() as own:
                clock.work(own, rank)
        return shares.own, shares.scale, shares.slice

    assert run_native_world(4, body) == [
        None, (7, 2 * 7 / 9, slice(0, 7)), None, (2, 2 * 2 / 9, slice(7, 9))
    ]  # fmt: skip


def test_who_is_alone_takes_everything():
    with runtime.bound(LocalWorker()):
        shares = bps.BatchShares(5)
        for _ in range(3):
            with shares.step() as own:
                assert (own, shares.slice, shares.scale) == (5, slice(0, 5), 1.0)
        assert len(shares.speeds) == 1


def test_work_on_a_device_ends_when_the_device_has_done_it(monkeypatch):
    with runtime.bound(LocalWorker()):
        clock, queued = Clock(), []

        class Device:
            """Whose only stream takes its time once somebody waits for it."""

            def current(self) -> Any:
                return self

            record = current

            def wait(self) -> None:
                clock.now += sum(queued)
                queued.clear()

        monkeypatch.setattr(devices, "at", lambda device: Device() if device.type == "cuda" else None)
        shares = bps.BatchShares(6, device="cuda:0")
        for _ in range(2):
            queued.append(5)  # of the optimizer's step before
            with shares.step() as own:
                queued.append(own * 0.5)
        shares.begin()
        assert shares.speeds == (2.0,)


def test_what_ends_with_an_exception_is_not_measured():
    with runtime.bound(LocalWorker()):
        clock, shares = Clock(), bps.BatchShares(6, smoothing=1.0)
        for work in (6, 3, 12, 0):
            clock.now += 1
            try:
                with shares.step() as own:
                    clock.now += work
                    if work == 12:
                        raise KeyError
            except KeyError:
                assert own == 6
        shares.begin()
        assert shares.speeds[0] > 1e6  # 6 samples in no time


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"batch": 0}, "batch=0 must be a whole number"),
        ({"batch": 2.5}, "batch=2.5"),
        ({"batch": True}, "batch=True"),
        ({"batch": 8, "every": 0}, "every=0"),
        ({"batch": 8, "minimum": 0}, "minimum=0"),
        ({"batch": 8, "minimum": 9}, r"batch=8 is too small for 1 ranks of at least 9 samples each: take 9"),
        ({"batch": 8, "multiple": 3}, "batch=8 is not a multiple of multiple=3"),
        ({"batch": 8, "smoothing": 0.0}, "smoothing=0.0"),
        ({"batch": 8, "smoothing": float("nan")}, "smoothing=nan"),
        ({"batch": 8, "smoothing": 1.1}, "smoothing=1.1"),
        ({"batch": 8, "least_gain": 1.0}, "least_gain=1.0"),
    ],
)
def test_wrong_terms(given, words):
    with runtime.bound(LocalWorker()), pytest.raises(InvalidArgumentError, match=words):
        bps.BatchShares(**given)


def test_a_batch_that_is_too_small(everywhere):
    def body(rank: int) -> None:
        with pytest.raises(InvalidArgumentError, match="batch=3 is too small for 4 ranks of at least 1"):
            bps.BatchShares(3)

    everywhere(body)


def test_ranks_with_other_arguments(runtimes):
    def body(rank: int) -> Any:
        with pytest.raises(MismatchError) as caught:
            bps.BatchShares(64, every=1 + (rank == 2))
        bps.barrier()
        return str(caught.value)

    for text in by_servers(runtimes, body):
        assert "every=1" in text and "every=2" in text, text


def test_use_at_the_wrong_time():
    with pytest.raises(NotInitializedError):
        bps.BatchShares(8)
    with runtime.bound(LocalWorker()):
        shares = bps.BatchShares(8)
        with pytest.raises(InvalidArgumentError, match="without begin"):
            shares.end()
        shares.begin()
        with pytest.raises(InvalidArgumentError, match="has begun a step"):
            shares.begin()
        shares.end()
    with pytest.raises(NotInitializedError):
        shares.begin()
    with runtime.bound(LocalWorker()), pytest.raises(InvalidArgumentError, match="make another one after init"):
        shares.begin()
