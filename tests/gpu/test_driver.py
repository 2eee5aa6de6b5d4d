"""The native core on a real driver: tests/native and test_native_gpu.py see it on a played one."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

from byteps_like import _core, cuda
from byteps_like.cuda.recipes import Workbench
from byteps_like.errors import DeviceError
from tests.unit.torch.devices.test_native_gpu import OneRank

DEADLINE = 20.0
READ_ANOTHER = """
import sys
import numpy as np
from byteps_like import _core
from byteps_like.cuda.recipes import Workbench
bench = Workbench(_core.Gpu(0, *sys.argv[2:]), {})
print(bench.get(bench.gpu.open(bytes.fromhex(sys.argv[1])), 8).tolist())
"""


@pytest.fixture(scope="module")
def gpu():
    torch.cuda.init()
    return _core.Gpu(0)


@pytest.fixture(scope="module")
def kernels():
    if why := cuda.why_not():
        pytest.skip(why)
    return cuda.handles(0)


def ended(stream) -> bool:
    """Whether it comes to its end in time."""
    limit = time.monotonic() + DEADLINE
    while not stream.done() and time.monotonic() < limit:
        time.sleep(0.001)
    return stream.done()


def words(buffer) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint32 * (buffer.nbytes // 4)).from_address(buffer.address))


def test_the_device_is_torch_s(gpu):
    properties = torch.cuda.get_device_properties(0)
    assert (gpu.name, gpu.memory()[1]) == (properties.name, torch.cuda.mem_get_info(0)[1])
    assert gpu.most_shared == properties.shared_memory_per_block_optin
    assert len(_core.gpu_devices()) == torch.cuda.device_count()


def test_streams_can_wait_for_the_host(gpu):
    """Else all waits are the host's, which is slower by much: the reason is the failure's text."""
    assert gpu.waits_by_value, gpu.why_no_waits


def test_a_gate_holds_torch_s_stream(gpu):
    stream = torch.cuda.Stream()
    tensor, gate = torch.zeros(1000, device="cuda"), gpu.gate()
    tensor += 1  # its kernel is loaded now: later that could wait for the stream, and so for us
    torch.cuda.synchronize()
    assert gate.block(stream.cuda_stream)
    with torch.cuda.stream(stream):
        tensor += 1
    assert not stream.query()
    gate.open()
    stream.synchronize()
    assert tensor.sum().item() == 2000
    gate = gpu.gate()
    assert gate.block(stream.cuda_stream)
    del gate  # opens it
    stream.synchronize()


def test_copies_go_by_way_of_mirrors(gpu):
    """Shared memory, page-locked, as arenas have it."""
    free = gpu.memory()[0]
    source, target = _core.SharedBuffer(1 << 24), _core.SharedBuffer(1 << 24)
    held, memory, stream = [gpu.pin(source), gpu.pin(target)], gpu.allocate(1 << 24), gpu.stream()
    assert gpu.memory()[0] < free
    words(source)[:] = np.arange(1 << 22)
    gpu.copy(memory.address, held[0].address, 1 << 24, stream.handle)
    gpu.copy(held[1].address, memory.address, 1 << 24, stream.handle)
    assert ended(stream)
    assert np.array_equal(words(target), np.arange(1 << 22))
    del memory
    assert gpu.allocated == 0


def test_events_order_streams(gpu):
    first, second, event = torch.cuda.Stream(), gpu.stream(), gpu.event()
    with torch.cuda.stream(first):
        torch.cuda._sleep(200_000_000)
    event.record(first.cuda_stream)
    event.block(second.handle)
    assert not event.done() and not second.done()
    event.synchronize()
    assert ended(second)


def test_another_process_reads_it(gpu):
    """By CUDA IPC, from the middle of an allocation."""
    bench = Workbench(gpu, {})
    memory = bench.put(np.arange(4096, dtype=np.uint8))
    handle = gpu.export(memory.address + 16).hex()
    command = [sys.executable, "-c", READ_ANOTHER, handle]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(list(range(16, 24)))


def test_launches(gpu, kernels):
    bench = Workbench(gpu, kernels)
    memory = bench.put(np.array([1, np.inf, np.nan, -2], np.float32))
    arguments = [np.uint64(0), np.uint32(4), np.uint64(memory.address), np.uint64(0)]
    packed = [value.tobytes() for value in arguments]
    shape = (1, 256, bench.gpu.most_shared)
    bench.run([("launch", kernels["feedback_settle"], shape, packed)])
    assert bench.get(memory, 16).view(np.float32).tolist() == [1, 0, 0, -2]
    with pytest.raises(DeviceError, match="cuFuncSetAttribute for 1048576 bytes"):
        bench.run([("launch", kernels["feedback_settle"], (1, 256, 1 << 20), packed)])


def test_the_engine_stages_and_encodes(gpu, kernels):
    """Partitions go down raw and encoded, sums come up: after what the program has queued, before what it queues."""
    rank = OneRank(gpu)
    try:
        rank.engine.use_gpu(gpu, kernels)
        for key, codec, down in ((1, "", 4096), (11, "fp16", 2048), (21, "bf16", 2048)):
            tensor = rank.declare(key, codec, bool(codec))
            assert rank.engine.encodes_on_gpu(tensor) is bool(codec)
            before = rank.engine.counters()["staged_down"]
            for number in range(3):
                rank.put(np.arange(1024) % 64 + number)
                rank.engine.wait_on_stream(rank.submit(tensor), rank.stream.handle)
                assert np.array_equal(rank.get(), np.arange(1024) % 64 + number)
            assert rank.engine.counters()["staged_down"] - before == 3 * down
    finally:
        rank.close()
    gc.collect()
    assert gpu.allocated == 0
