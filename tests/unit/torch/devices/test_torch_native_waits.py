"""Streams that wait in the host's place for single tensors and for steps that cross the barrier, where the native
engine copies tensors of a device by itself: on the software libcuda, beside the CPU, bit for bit."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from byteps_like.errors import DeviceError
from byteps_like.torch.job import runtime
from tests.fakes.native_job import run_native_job
from tests.fakes.software_cuda import software_cuda
from tests.fakes.software_driver import needs_software_driver
from tests.scenarios.models import batch, flat, loss_of, share
from tests.unit.torch.devices.test_torch_native_staging import (
    PARTITION,
    STEPS,
    WIDTHS,
    Training,
    on_cpu,
    on_device,
    refuse_copies_up,
)

pytestmark = needs_software_driver
DEADLINE = 20.0


def on_this(device, body, *args):
    return run_native_job(2, body, device, *args, around=device.in_stream_order, partition_bytes=PARTITION)


def values(rank, number):
    return torch.arange(1500.0) % 32 * (rank + 1) + number


def sums(number):
    return values(0, number) + values(1, number)


def hold(device):
    """A gate for which this thread's stream waits, and what torch calculates doesn't: it is there at once."""
    device.lazy = True
    gate = device.gpu.gate()
    assert gate.block(device.current().handle)
    return gate


def let_go(device, gate, meeting):
    meeting.wait(DEADLINE)
    gate.open()
    device.current().stream.synchronize()
    meeting.wait(DEADLINE)
    device.lazy = False


@pytest.mark.parametrize("compression", [None, "fixed:bits=32"], ids=str)
def test_no_host_waits_for_a_single_tensor(compression):
    """From the second operation of a name on. What is queued behind it has the result."""
    meeting = threading.Barrier(2)

    def body(bps, rank, size, device):
        def summed(number):
            return bps.push_pull(values(rank, number), average=False, name="one", compression=compression)

        found = [summed(0)]
        assert not runtime.current().behind._flights
        meeting.wait(DEADLINE)
        gate = hold(device)
        found.append(summed(1))
        assert not runtime.current().behind._flights["push_pull.one"].done()
        let_go(device, gate, meeting)
        return [one.clone() for one in (*found, summed(2))]  # behind what this thread's stream waits for

    with software_cuda() as device:
        for found in on_this(device, body):
            assert all(torch.equal(one, sums(number)) for number, one in enumerate(found))


def test_hosts_wait_where_streams_may_not():
    """What comes of it is on the device when the call returns, and no word is left for which a stream would wait."""

    def body(bps, rank, size, device):
        summed = [bps.push_pull(values(rank, number), average=False, name="one") for number in range(3)]
        assert device.current().stream.done() and not device.gate()
        return [one.clone() for one in summed]

    with software_cuda() as device:
        device.stream_waits = False
        for found in on_this(device, body):
            assert all(torch.equal(one, sums(number)) for number, one in enumerate(found))


def test_what_only_asks_whether_a_step_is_over_keeps_no_gradients():
    """join() has to know what is in flight; the tensors are their owner's, or nobody's."""

    def body(bps, rank, size, device):
        tensor = values(rank, 0)
        bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name="one"))
        memory = weakref.ref(tensor.untyped_storage())
        runtime.current().behind.catch_up("one")
        del tensor
        gc.collect()
        return memory() is None

    with software_cuda() as device:
        device.stream_waits = False
        assert on_this(device, body) == [True, True]


def test_a_name_is_used_again_once_its_last_operation_is_over():
    """That of a handle that was synchronized while the device was busy: the next waits for it."""
    meeting = threading.Barrier(2)

    def body(bps, rank, size, device):
        tensor = values(rank, 0)
        bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name="one"))
        meeting.wait(DEADLINE)
        gate = hold(device)
        tensor = values(rank, 1)
        bps.synchronize(bps.push_pull_async_inplace(tensor, average=False, name="one"))
        opener = threading.Timer(0.05, gate.open)
        opener.start()
        again = values(rank, 2)
        handle = bps.push_pull_async_inplace(again, average=False, name="one")  # blocks until the gate is open
        opener.join()
        bps.synchronize(handle)
        device.current().stream.synchronize()
        meeting.wait(DEADLINE)
        device.lazy = False
        return tensor, again

    with software_cuda() as device:
        for one, two in on_this(device, body):
            assert torch.equal(one, sums(1))
            assert torch.equal(two, sums(2))


def test_what_fails_while_streams_wait_is_raised_by_the_next_operation():
    meeting = threading.Barrier(2)

    def body(bps, rank, size, device):
        bps.push_pull(values(rank, 0), name="one")
        meeting.wait(DEADLINE)
        gate = hold(device)
        bps.push_pull(values(rank, 1), name="one")
        meeting.wait(DEADLINE)
        if rank == 0:
            refuse_copies_up(device)
        meeting.wait(DEADLINE)
        gate.open()
        device.current().stream.synchronize()  # not for ever
        with pytest.raises(DeviceError, match=r"rank \d: GPU 0: cuMemcpyHtoDAsync: CUDA_ERROR_INVALID_VALUE"):
            for number in range(2, 50):  # whose copy it was is not known
                bps.push_pull(values(rank, number), name="one")
        return True

    with software_cuda() as device:
        assert on_this(device, body) == [True, True]
        device.control.software_gpu_misuse()


class Crossing(Training):
    def __init__(self, bps, rank, size, **options):
        super().__init__(bps, rank, size)
        self.optimizer.close()
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.optimizer = bps.DistributedOptimizer(
            plain, self.model.named_parameters(), cross_barrier=True, model=self.model, **options
        )

    def forward(self, step):
        x, y = (share(part, self.rank, self.size) for part in batch(step, inputs=WIDTHS[0]))
        return loss_of(self.model, x, y)

    @property
    def flight(self):
        return self.optimizer._distribution.guards.flight


def cross(bps, rank, size, compression):
    training = Crossing(bps, rank, size, compression=compression)
    for step in range(STEPS):
        training.step(step)
    training.optimizer.synchronize()
    return flat(training.model)


@pytest.mark.parametrize("compression", [None, "bf16", "onebit:block=64"], ids=str)
@pytest.mark.parametrize("stream_waits", [True, False], ids=["streams wait", "hosts wait"])
def test_crossing_the_barrier_has_the_bits_of_the_cpu(compression, stream_waits):
    expected, found = on_cpu(cross, compression), on_device(cross, compression, stream_waits=stream_waits)[1]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_no_host_waits_for_gradients_behind_the_barrier():
    """The next forward, synchronize() and state_dict() have the stream wait; the next backward the host."""
    meeting = threading.Barrier(2)

    def body(bps, rank, size, device):
        training = Crossing(bps, rank, size)
        for step in range(2):
            training.step(step)
        training.optimizer.synchronize()
        meeting.wait(DEADLINE)
        loss = training.forward(2)
        gate = hold(device)
        loss.backward()
        training.optimizer.step()
        training.forward(3)
        training.optimizer.synchronize()
        training.model.state_dict()
        legs = training.flight._behind
        assert legs and not any(leg.handle.done() for leg in legs)
        assert not training.flight._updates
        let_go(device, gate, meeting)
        training.forward(3).backward()
        assert training.flight is None
        training.optimizer.synchronize()
        return True

    with software_cuda() as device:
        assert on_this(device, body) == [True, True]
