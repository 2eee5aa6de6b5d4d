"""The scenarios of tests/gpu/test_training.py on a device that the host plays; what only a played one can show."""

from __future__ import annotations

import contextlib
import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from byteps_like.errors import InvalidArgumentError, PeerLostError
from byteps_like.torch.device.inflight import release
from tests.fakes.native_job import run_native_job
from tests.fakes.software_cuda import software_cuda
from tests.fakes.software_device import DEADLINE, software_device
from tests.fakes.software_driver import needs_software_driver
from tests.fakes.thread_process_groups import run_groups
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.devices import training as scenarios
from tests.scenarios.models import batch, loss_of, mlp

CPU = torch.device("cpu")


def world() -> ThreadWorld:
    return ThreadWorld(2, partition_bytes=1024)


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "allreduce"])
@pytest.mark.parametrize("body", [scenarios.equals_one_process, scenarios.scaled, scenarios.skipped])
def test_training(body, servers):
    with software_device() as device:
        run_world(2, body, CPU, world=world(), servers=servers)
    assert device.copied["down"] == device.copied["up"] > 0


@needs_software_driver
@pytest.mark.parametrize("body", [scenarios.equals_one_process, scenarios.scaled, scenarios.skipped])
def test_training_by_the_engine(body):
    """The engine's stager copies, and streams wait: the software libcuda plays the driver."""
    with software_cuda() as device:
        run_native_job(2, body, CPU, around=device.in_stream_order, partition_bytes=1024)


def test_fused_optimizers_are_told_of_overflows():
    """They look for them in step(), where gradients have to be averages."""
    with software_device():
        run_world(2, lambda *rank: scenarios.skipped(*rank, fused=True), CPU, world=world())


@pytest.mark.parametrize("body", [scenarios.compiled, scenarios.hooked])
def test_compiled_models(body):
    with software_device() as device:
        run_world(1, body, CPU, world=ThreadWorld(1, partition_bytes=1024))
    assert device.copied["down"] == device.copied["up"] > 0


def test_graphs_are_refused_by_all_that_send():
    @contextlib.contextmanager
    def capturing():
        device.captures = True
        try:
            yield
        finally:
            device.captures = False

    def collective(group, rank, size):
        with capturing(), pytest.raises(InvalidArgumentError, match="allreduce while a CUDA graph"):
            group.allreduce([torch.ones(2)])

    with software_device() as device:
        run_world(1, scenarios.graphs_refused, CPU, capturing)
        run_groups(1, collective)


def test_backward_runs_in_a_thread_of_autograd_s():
    """On a GPU all backwards of a process run in one thread of its device: there no hook may wait for another rank."""
    with software_device(), ThreadPoolExecutor(1) as autograd:

        def body(bps, rank, size):
            model = mlp()
            optimizer = bps.DistributedOptimizer(scenarios.sgd(model), model.named_parameters())
            for step in range(scenarios.STEPS):
                optimizer.zero_grad()
                loss = loss_of(model, *scenarios.on_rank(step, rank, size, CPU))
                autograd.submit(loss.backward).result(DEADLINE)
                optimizer.step()
            assert scenarios.distance(scenarios.flat(model), scenarios.plainly(mlp(), CPU)) < 1e-12

        for servers in (True, False):
            run_world(2, body, world=world(), servers=servers)


def let_go_until(free):
    """Lets go of what is done with, until `free()` or the deadline."""
    end = time.monotonic() + DEADLINE
    while not free() and time.monotonic() < end:
        release()
        gc.collect()
        time.sleep(0.01)


def lose_a_peer():
    """Two ranks, of which the second is lost while its step is under way."""
    shared, both = world(), threading.Barrier(2)

    def body(bps, rank, size):
        model = mlp()
        optimizer = bps.DistributedOptimizer(scenarios.sgd(model))
        for step in range(3):
            loss_of(model, *batch(step)).backward()
            if step == 2:
                both.wait(DEADLINE)
                if rank == 1:
                    shared.fail(PeerLostError("worker 1 is gone"))
            optimizer.step()
            optimizer.zero_grad()

    with pytest.raises(PeerLostError, match="worker 1 is gone"):
        run_world(2, body, world=shared)


def test_a_lost_peer_leaves_nothing_on_the_device():
    """What is page-locked, and what waits, ends with the job: with the last copies that were queued."""
    with software_device() as device:
        lose_a_peer()
        let_go_until(lambda: not device.locked)
        assert (device.locked, device.waits) == (0, 0)


def test_operations_that_are_done_hold_no_memory():
    def body(bps, rank, size):
        seen = []
        for number in range(6):
            memory = np.ones(1000, np.float32)
            seen.append(weakref.ref(memory))
            bps.push_pull_inplace(torch.from_numpy(memory), name=f"{number}")
            del memory
        # The call returns when the stream waits for the operation, which may not have come to its end.
        let_go_until(lambda: held(seen) <= 1)
        return held(seen)

    def held(seen):
        return sum(item() is not None for item in seen)

    with software_device():
        assert max(run_world(2, body, world=world())) <= 1
