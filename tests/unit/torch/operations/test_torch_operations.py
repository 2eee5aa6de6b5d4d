"""push_pull, broadcast and objects in worlds of one to four ranks, and what happens to names and handles."""

from __future__ import annotations

import sys
import threading

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError, PeerLostError
from byteps_like.torch.job import runtime
from byteps_like.torch.job.naming import KEPT, LANES
from byteps_like.worker.local import LocalWorker
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.operations.calls import SCENARIOS


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario(body, size):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=64))


@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenario_alone(body):
    with runtime.bound(LocalWorker()):
        body(bps, 0, 1)


def test_unnamed_operations_use_few_names():
    world = ThreadWorld(2)

    def body(bps, rank, size):
        for _ in range(100):
            handles = [bps.push_pull_async(torch.ones(3)) for _ in range(2)]
            for handle in handles:
                bps.synchronize(handle)

    run_world(2, body, world=world)
    assert len(world.pushed) == LANES


def test_a_tensor_that_was_reduced_before_costs_few_calls_of_python():
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    def reduce(times):
        for _ in range(times):
            bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name="t"))

    tensor = torch.ones(8)
    with runtime.bound(LocalWorker()):
        reduce(3)  # names are kept from their second use on
        sys.setprofile(count)
        try:
            reduce(10)
        finally:
            sys.setprofile(None)
    assert calls / 10 < 64


def test_objects_use_few_names():
    world = ThreadWorld(2)
    run_world(2, lambda bps, rank, size: [bps.broadcast_object("z" * 3 * k) for k in range(200)], world=world)
    assert len(world.pushed) < 12


def test_name_in_flight_is_refused_until_synchronized():
    with runtime.bound(LocalWorker()):
        handle = bps.push_pull_async(torch.ones(2), name="a")
        with pytest.raises(InvalidArgumentError, match="in flight"):
            bps.push_pull_async(torch.ones(2), name="a")
        bps.synchronize(handle)
        bps.push_pull(torch.ones(2), name="a")
        assert bps.synchronize(handle) is None


@pytest.mark.parametrize("other", [torch.ones(3), torch.ones(2, dtype=torch.float64)], ids=["shape", "dtype"])
def test_a_name_may_carry_something_else_later(other):
    def body(bps, rank, size):
        for value in (torch.ones(2), other, torch.ones(2)):
            bps.declare("a", value)
            assert torch.equal(bps.push_pull(value, name="a", average=False), value * size)

    run_world(2, body)


def test_what_names_carried_before_is_let_go_of():
    world = ThreadWorld(2)

    def body(bps, rank, size):
        for extent in range(1, 50):
            bps.push_pull(torch.ones(extent), name="a")
        return len(runtime.current().route._declared)

    assert run_world(2, body, world=world) == [KEPT, KEPT]


def test_after_a_failure_every_call_raises_it():
    def body(bps, rank, size, world, started, failed):
        bps.push_pull(torch.ones(2), name="a")
        handle = bps.push_pull_async(torch.ones(2), name="b") if rank == 0 else None
        if rank == 0:
            started.set()
        else:
            assert started.wait(10)
            world.fail(PeerLostError("worker 7 died"))
            failed.set()
        assert failed.wait(10)
        calls = [
            lambda: bps.push_pull(torch.ones(2), name="a"),
            lambda: bps.broadcast_(torch.ones(2), 0),
            lambda: bps.broadcast_object(1),
            lambda: bps.broadcast_parameters({"a": torch.ones(1)}),
            bps.barrier,
        ]
        for call in [*calls, lambda: bps.synchronize(handle)] if handle else calls:
            with pytest.raises(PeerLostError, match="worker 7"):
                call()

    world = ThreadWorld(2)
    run_world(2, body, world, threading.Event(), threading.Event(), world=world)


def test_inference_tensors_and_no_grad():
    with runtime.bound(LocalWorker()), torch.inference_mode():
        assert bps.push_pull_inplace(torch.ones(2)).tolist() == [1.0, 1.0]
