"""Tensors on a device that the native engine copies and encodes by itself: training over a real server in this process,
on the software libcuda. The same on the CPU is the reference, bit for bit."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch
from torch import nn

from byteps_like.errors import DeviceError, PeerLostError
from byteps_like.torch.job import runtime
from byteps_like.worker.embedded import Owning, Services
from tests.fakes.ddp_bucket import Bucket
from tests.fakes.native_job import run_native_job
from tests.fakes.settings import configure
from tests.fakes.software_cuda import software_cuda
from tests.fakes.software_driver import needs_software_driver
from tests.scenarios.devices.native_staging import reduced
from tests.scenarios.models import batch, fill, flat, loss_of, share

pytestmark = needs_software_driver
DEADLINE = 20.0
PARTITION = 2048
WIDTHS = (40, 32, 20, 5)
NUMEL = 40 * 32 + 32 * 20 + 112  # the last, 100, with what aligns it
STEPS = 4
INVALID_VALUE = 1


def on_device(body, *args, stream_waits=True, **settings):
    """The device, and what `body` has returned on two ranks."""
    with software_cuda() as device:
        device.stream_waits = stream_waits
        results = run_native_job(2, body, *args, around=device.in_stream_order, partition_bytes=PARTITION, **settings)
        return device, results


def on_cpu(body, *args):
    return run_native_job(2, body, *args, partition_bytes=PARTITION)


def weights():
    """Without biases, which have no codec and would be an arena of their own: servers cut that otherwise on a device,
    where its control elements are apart, and what a codec makes of a gradient depends on the cut."""
    layers = [nn.Linear(inputs, outputs, bias=False) for inputs, outputs in itertools.pairwise(WIDTHS)]
    return fill(nn.Sequential(*layers))


class Training:
    """One rank's."""

    def __init__(self, bps, rank, size, **options):
        configure(runtime.current(), min_compress_bytes=0)
        self.model, self.rank, self.size = weights(), rank, size
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.optimizer = bps.DistributedOptimizer(plain, self.model.named_parameters(), **options)

    def backward(self, step):
        x, y = (share(part, self.rank, self.size) for part in batch(step, inputs=WIDTHS[0]))
        loss_of(self.model, x, y).backward()

    def step(self, step):
        self.backward(step)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def flown(self):
        """What the current round has on its way over the device."""
        arenas = self.optimizer._distribution.reducer.parameters.buckets
        return [handle for arena in arenas for _, handle in arena._flights.flown if hasattr(handle, "block")]


def train(bps, rank, size, options):
    """Parameters after some steps, and this rank's counters."""
    training = Training(bps, rank, size, **options)
    for step in range(STEPS):
        training.step(step)
    return flat(training.model), runtime.current().stats()


# Codecs, with what comes down of NUMEL elements in a round.
CODECS = {None: 4 * NUMEL, "bf16": 2 * (NUMEL + 16), "onebit:block=64": 384, "int8": NUMEL + 32}


@pytest.mark.parametrize("compression", CODECS, ids=str)
@pytest.mark.parametrize("stream_waits", [True, False], ids=["streams wait", "hosts wait"])
def test_training_has_the_bits_of_the_cpu(compression, stream_waits):
    options = {"compression": compression}
    expected = on_cpu(train, options)
    device, found = on_device(train, options, stream_waits=stream_waits)
    for (one, counters), (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert counters["staged_down"] == counters["staged_up"] == STEPS * CODECS[compression]
        assert counters["encoded_in"] == 0, "a codec thread has encoded what the device should"
    sources = {"onebit:block=64": {"feedback", "onebit"}, "int8": {"feedback", "int"}}
    assert device.compiled == sources.get(compression, set())


@pytest.mark.parametrize("compression", ["fp8", "thc4"])
def test_averages_have_the_bits_of_the_cpu(compression):
    """The body of the test on a GPU."""
    cpu = torch.device("cpu")
    expected, (_, found) = on_cpu(reduced, cpu, compression), on_device(reduced, cpu, compression)
    for (one, counters), (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert counters["staged_up"] > 0


def test_what_the_device_can_t_encode_comes_down_whole(monkeypatch):
    monkeypatch.setattr("tests.fakes.software_cuda.SoftwareCuda.kernels", lambda self, wanted: {})
    options = {"compression": "onebit:block=64"}
    expected = on_cpu(train, options)
    _, found = on_device(train, options)
    for (one, counters), (other, _) in zip(found, expected, strict=True):
        assert torch.equal(one, other)
        assert counters["staged_down"] == counters["encoded_in"] == STEPS * 4 * NUMEL


def test_accumulated_clipped_and_scaled_gradients_have_the_bits_of_the_cpu():
    """Where the program uses gradients between synchronize() and step(), its stream has come by all that has landed."""

    def body(bps, rank, size):
        training = Training(bps, rank, size, backward_passes_per_step=2, gradient_predivide_factor=2.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        for step in range(STEPS):
            training.backward(2 * step)
            training.backward(2 * step + 1)
            training.optimizer.synchronize()
            scaler.scale(torch.ones(1))
            scaler.unscale_(training.optimizer)
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.05)
            with training.optimizer.skip_synchronize():
                scaler.step(training.optimizer)
            scaler.update()
            training.optimizer.zero_grad()
        return flat(training.model), scaler.get_scale()

    expected, found = on_cpu(body), on_device(body)[1]
    assert all(
        torch.equal(one, other) and scale == 8.0 for (one, scale), (other, _) in zip(found, expected, strict=True)
    )


@pytest.mark.parametrize("options", [{}, {"compression": "onebit:block=64"}, {"route": "allreduce"}], ids=str)
def test_no_host_waits_for_gradients(options):
    """They stay on a device that is busy while synchronize() returns, and are there when it has come by. Where threads
    of ours copy them, streams wait for a gate."""
    meeting = threading.Barrier(2)

    def body(bps, rank, size, device=None):
        training = Training(bps, rank, size, **options)
        for step in range(2):  # in the first the host waits: kernels are loaded
            training.step(step)
        meeting.wait(DEADLINE)
        if device is None:
            training.backward(2)
            training.optimizer.synchronize()
            return flat_gradients(training.model)
        device.lazy = True  # what torch calculates here is there, and the device is told later
        gate = device.gpu.gate()
        assert gate.block(device.current().handle)
        training.backward(2)
        flown = training.flown
        training.optimizer.synchronize()
        assert flown and not any(handle.done() for handle in flown)
        meeting.wait(DEADLINE)
        gate.open()
        device.current().stream.synchronize()
        meeting.wait(DEADLINE)
        device.lazy = False
        return flat_gradients(training.model)

    expected = on_cpu(body)
    with software_cuda() as device:
        found = run_native_job(2, body, device, around=device.in_stream_order, partition_bytes=PARTITION)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def flat_gradients(model):
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


def test_hosts_wait_where_the_driver_can_t():
    def body(bps, rank, size, device):
        training = Training(bps, rank, size)
        training.step(0)
        device.control.software_gpu_wait_values(0)
        training.backward(1)
        flown = training.flown
        training.optimizer.synchronize()
        return [handle.done() for handle in flown]

    with software_cuda() as device:
        found = run_native_job(2, body, device, around=device.in_stream_order, partition_bytes=PARTITION)
    assert all(found[0]) and all(found[1])


def test_what_fails_late_is_raised_by_the_next_call():
    """A copy up that the driver refuses on rank 0, and a server that is gone: streams go on, steps don't."""

    def body(bps, rank, size, device, break_down, error, text):
        training = Training(bps, rank, size)
        for step in range(2):
            training.step(step)
        meeting.wait(DEADLINE)
        gate = device.gpu.gate()
        device.lazy = True
        assert gate.block(device.current().handle)
        training.backward(2)
        training.optimizer.synchronize()
        meeting.wait(DEADLINE)
        if rank == 0:
            break_down(device)
        while break_down is lose_server and runtime.current().worker._verdict.error is None:
            time.sleep(0.01)
        gate.open()
        device.current().stream.synchronize()  # not for ever
        with pytest.raises(error, match=text):
            training.step(3)
        return True

    for break_down, error, text in (
        (refuse_copies_up, DeviceError, r"rank \d: GPU 0: cuMemcpyHtoDAsync: CUDA_ERROR_INVALID_VALUE"),
        (lose_server, PeerLostError, "server 0 is gone"),
    ):
        meeting = threading.Barrier(2)
        with software_cuda() as device:
            arguments = (device, break_down, error, text)
            found = run_native_job(2, body, *arguments, around=device.in_stream_order, partition_bytes=PARTITION)
            device.control.software_gpu_misuse()
        assert found == [True, True]


def refuse_copies_up(device):
    device.control.software_gpu_fail(b"cuMemcpyHtoDAsync_v2", 1, INVALID_VALUE)


def lose_server(device):
    worker = runtime.current().worker
    worker._client.report(PeerLostError("server 0 is gone"), worker._epoch)


def hook(bps, rank, size, compression, meeting, around=lambda step, start: start()):
    """Three rounds of one bucket. `around(step, start)` starts each, and returns its future. One thread of the process
    waits for both ranks' buckets, in the order in which they came: none comes before all of a round."""
    configure(runtime.current(), min_compress_bytes=0)
    state = bps.DDPHookState(compression=compression)
    parameters, found = [torch.zeros(40, 5), torch.zeros(10, 7)], []
    generator = torch.Generator().manual_seed(rank)
    for step in range(3):
        bucket = Bucket(0, parameters, [torch.randn(item.shape, generator=generator) for item in parameters])
        future = around(step, lambda bucket=bucket: bps.ddp_hook(state, bucket))
        meeting.wait(DEADLINE)
        found.append(future.wait().clone())
    return torch.cat(found)


@pytest.mark.parametrize("compression", [None, "bf16", "onebit:block=64"], ids=str)
def test_the_hook_of_ddp(compression):
    meeting = threading.Barrier(2)
    expected, found = on_cpu(hook, compression, meeting), on_device(hook, compression, meeting)[1]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_no_host_waits_for_buckets():
    """After the first round futures are complete before the device has calculated what they are of."""
    meeting = threading.Barrier(2)

    def around(step, start):
        if step == 0:
            return start()
        gate = device.gpu.gate()
        assert gate.block(device.current().handle)
        device.lazy = True
        future = start()
        assert future.done()
        meeting.wait(DEADLINE)
        gate.open()
        device.current().stream.synchronize()
        meeting.wait(DEADLINE)
        device.lazy = False
        return future

    expected = on_cpu(hook, None, meeting)
    with software_cuda() as device:
        found = run_native_job(2, hook, None, meeting, around, around=device.in_stream_order, partition_bytes=PARTITION)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_single_tensors():
    """By the engine, too. The worker is that of torchrun."""

    def body(bps, rank, size):
        total = bps.push_pull(torch.arange(1000.0) * (rank + 1), average=False)
        coded = bps.push_pull(torch.arange(1000.0), compression="fp8", name="coded")
        root = bps.broadcast(torch.full((700,), float(rank)), 1)
        return total, coded, root, runtime.current().stats()

    expected = on_cpu(body)
    device, found = on_device(body, wrapped=lambda worker: Owning(worker, Services()))
    for rank in range(2):
        assert all(torch.equal(one, other) for one, other in zip(found[rank][:3], expected[rank][:3], strict=True))
        assert found[rank][3]["staged_up"] == found[rank][3]["staged_down"] < 4 * 2700
    assert device.compiled == {"feedback", "fp8"}
