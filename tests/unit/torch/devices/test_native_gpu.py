"""The native core's GPU as Python has it, over the software libcuda that the native tests' build makes.

What the driver, streams and the stager do is tested natively; here: what crosses the binding, and as which errors.
"""

from __future__ import annotations

import ctypes
import gc
import struct

import numpy as np
import pytest

from byteps_like import _core
from byteps_like.dtypes import DType, Op
from byteps_like.errors import CapacityError, DeviceError, InvalidArgumentError
from tests.fakes.software_driver import DRIVER
from tests.fakes.software_driver import needs_software_driver as needs_software

OUT_OF_MEMORY = 2
CASTS = [f"casts_{step}_fp16" for step in ("encode", "residual", "decode")]
KERNELS = [*CASTS, "feedback_compensate", "feedback_settle"]


@pytest.fixture
def control():
    """The stand-in's controls; what was done with it wrongly fails the test."""
    library = ctypes.CDLL(str(DRIVER))
    library.software_gpu_misuse.restype = ctypes.c_char_p
    library.software_gpu_objects.restype = ctypes.c_uint64
    library.software_gpu_reset()
    yield library
    assert library.software_gpu_misuse() == b""
    library.software_gpu_reset()


@pytest.fixture
def gpu(control):
    """A device on which nothing may be left."""
    one = _core.Gpu(0, str(DRIVER))
    before = control.software_gpu_objects()
    yield one
    gc.collect()
    assert control.software_gpu_objects() <= before + 1  # the event behind a stream's last gate stays with the device


def _pinned(gpu, values):
    array = np.array(values, np.float32)
    return array, gpu.pin_address(array.ctypes.data, array.nbytes)


def _kernel(gpu, name):
    return gpu.load(str(DRIVER)).function(name)


def test_no_driver():
    """The error names the library and what to do."""
    with pytest.raises(DeviceError, match=r"/nowhere/libcuda.so.1.*install NVIDIA's"):
        _core.gpu_devices("/nowhere/libcuda.so.1")
    with pytest.raises(DeviceError, match=r"libc.so.6 has no cuInit"):
        _core.Gpu(0, "libc.so.6")


@needs_software
def test_devices(gpu):
    """What there is, and what this one is."""
    rows = _core.gpu_devices(str(DRIVER))
    assert [row[2] for row in rows] == ["0000:17:00.0", "0000:18:00.0"]
    assert rows[0] == (gpu.ordinal, gpu.name, gpu.pci, gpu.uuid, gpu.memory()[1])
    assert (gpu.driver_version, gpu.waits_by_value, gpu.why_no_waits) == (13000, True, "")
    assert gpu.most_shared == 227 * 1024
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_DEVICE"):
        _core.Gpu(7, str(DRIVER))


@needs_software
def test_no_waits_with_few_queues(gpu):
    """A stream that waited for a gate could hold up the copy by which it is opened."""
    careful = _core.Gpu(0, str(DRIVER), 1)
    assert not careful.waits_by_value
    assert careful.why_no_waits.startswith("CUDA_DEVICE_MAX_CONNECTIONS=1 ")
    assert not careful.gate().block(gpu.stream().handle)


@needs_software
def test_no_stream_is_made_to_wait_where_launches_block():
    one = _core.Gpu(0, str(DRIVER), connections=0)
    assert not one.waits_by_value
    assert one.why_no_waits.startswith("CUDA_LAUNCH_BLOCKING")


@needs_software
def test_copies_and_memory(gpu, control):
    """Down and up by way of the device; memory is counted, and a lack of it is CapacityError."""
    source, down = _pinned(gpu, range(256))
    target, up = _pinned(gpu, [0] * 256)
    memory, stream = gpu.allocate(1024), gpu.stream()
    assert (gpu.allocated, memory.nbytes, down.nbytes, down.address) == (1024, 1024, 1024, source.ctypes.data)
    gpu.copy(memory.address, down.address, 1024, stream.handle)
    gpu.copy(up.address, memory.address, 1024, stream.handle)
    stream.synchronize()
    assert stream.done()
    assert np.array_equal(source, target)
    other = gpu.open(gpu.export(memory.address + 512))
    assert other.nbytes == 512
    with pytest.raises(InvalidArgumentError):
        gpu.open(b"rubbish")
    del memory
    assert gpu.allocated == 0
    control.software_gpu_fail(b"cuMemAlloc_v2", 1, OUT_OF_MEMORY)
    with pytest.raises(CapacityError, match="GPU 0: cuMemAlloc of 4096 bytes: CUDA_ERROR_OUT_OF_MEMORY"):
        gpu.allocate(4096)
    buffer = _core.SharedBuffer(4096)
    held = gpu.pin(buffer)
    with pytest.raises(DeviceError, match="page-locked already"):
        gpu.pin(buffer)
    assert held.address == buffer.address


@needs_software
def test_gates_and_events(gpu, control):
    """Streams wait for a gate, and for each other; a gate that is dropped opens, and no driver is a reason to hang."""
    first, second, event = gpu.stream(), gpu.stream(), gpu.event()
    gate = gpu.gate()
    assert gate.block(first.handle)
    event.record(first.handle)
    event.block(second.handle)
    assert not (gate.is_open or event.done() or second.done())
    gate.open()
    event.synchronize()
    second.synchronize()
    assert gate.is_open
    assert event.done()
    gate = gpu.gate()
    assert gate.block(first.handle)
    del gate
    first.synchronize()
    control.software_gpu_wait_values(0)
    assert gpu.gate().block(first.handle) is False
    control.software_gpu_wait_values(1)


@needs_software
def test_fill(gpu):
    """With one byte."""
    values, down = _pinned(gpu, [1, 2])
    memory, stream = gpu.allocate(8), gpu.stream()
    gpu.fill(memory.address, 0, 8, stream.handle)
    gpu.fill(memory.address + 2, 0x40, 2, stream.handle)
    gpu.copy(down.address, memory.address, 8, stream.handle)
    stream.synchronize()
    assert values.view(np.uint32).tolist() == [0x40400000, 0]


@needs_software
def test_launch(gpu):
    """A kernel by name: non-finite residuals end."""
    values, down = _pinned(gpu, [1, np.inf, np.nan, -2])
    memory, stream = gpu.allocate(16), gpu.stream()
    settle = _kernel(gpu, "feedback_settle")
    arguments = [struct.pack("Q", 0), struct.pack("I", 4), struct.pack("Q", memory.address), struct.pack("Q", 0)]
    gpu.copy(memory.address, down.address, 16, stream.handle)
    gpu.launch(settle, 1, 256, 64 * 1024, stream.handle, arguments)
    gpu.copy(down.address, memory.address, 16, stream.handle)
    stream.synchronize()
    assert values.tolist() == [1, 0, 0, -2]
    with pytest.raises(DeviceError, match="cuFuncSetAttribute for 1048576 bytes"):
        gpu.launch(settle, 1, 256, 1 << 20, stream.handle, arguments)
    with pytest.raises(DeviceError, match="cuModuleGetFunction of nothing"):
        _kernel(gpu, "nothing")


class OneRank:
    """An engine, its server and a stream of the program; operations are of 1024 floats in two partitions."""

    def __init__(self, gpu):
        secret = bytes(range(32))
        self.gpu = gpu
        self.server = _core.Server("gpu", secret, ["tcp://127.0.0.1:0"])
        self.server.set_world(bytes(16), 1, [1], 2, 5.0, 20.0)
        shards = [(0, 0, self.server.urls, 2)]
        self.engine = _core.Engine("gpu", secret, bytes(16), 1, 0, 1, 1, shards, 1 << 16, 1 << 20, 5.0, 5.0, 20.0)
        self.mirror = _core.SharedBuffer(4096)
        self.engine.register(self.mirror)
        self.stream, self.memory = gpu.stream(), gpu.allocate(4096)
        self.pin = gpu.pin(self.mirror)
        self.values, self.staging = _pinned(gpu, [0] * 1024)

    def put(self, values):
        self.values[:] = values
        self.gpu.copy(self.memory.address, self.staging.address, 4096, self.stream.handle)

    def get(self):
        self.gpu.copy(self.staging.address, self.memory.address, 4096, self.stream.handle)
        self.stream.synchronize()
        return self.values.copy()

    def declare(self, key, codec="", gpu=False):
        parts = [(key, 0, 2048, 0), (key + 1, 2048, 2048, 0)]
        return self.engine.declare(int(DType.FLOAT32), parts, codec, codec, gpu)

    def submit(self, tensor):
        return self.engine.submit(
            tensor, self.mirror.address, 0, 2, int(Op.SUM), 0, 0, device=self.memory.address, stream=self.stream.handle
        )

    def close(self):
        self.engine.close()
        self.server.stop()
        self.__dict__.clear()


@pytest.fixture
def rank(gpu):
    one = OneRank(gpu)
    yield one
    one.close()


@needs_software
def test_a_tensor_on_the_gpu(rank, control):
    """By streams alone, raw; where the driver can't, the host waits."""
    tensor = rank.declare(1)
    with pytest.raises(InvalidArgumentError, match="UseGpu comes first"):
        rank.submit(tensor)
    rank.engine.use_gpu(rank.gpu)
    with pytest.raises(InvalidArgumentError, match="has a GPU already"):
        rank.engine.use_gpu(rank.gpu)
    rank.put(np.arange(1024))
    assert rank.engine.wait_on_stream(rank.submit(tensor), rank.stream.handle)
    assert np.array_equal(rank.get(), np.arange(1024))
    counters = rank.engine.counters()
    assert (counters["staged_down"], counters["staged_up"]) == (4096, 4096)
    control.software_gpu_wait_values(0)
    control.software_gpu_copy_delay(20000)
    operation = rank.submit(tensor)
    assert rank.engine.wait_on_stream(operation, rank.stream.handle) is False
    assert rank.engine.wait(operation, 20.0)
    assert operation.done()


@needs_software
def test_encoded_on_the_gpu(rank):
    """With kernels and `gpu`; fp16 is small enough to be exact here."""
    module = rank.gpu.load(str(DRIVER))
    rank.engine.use_gpu(rank.gpu, {name: module.function(name) for name in KERNELS})
    on_gpu, on_cpu = rank.declare(1, "fp16", True), rank.declare(11, "fp16")
    assert rank.engine.encodes_on_gpu(on_gpu)
    assert not rank.engine.encodes_on_gpu(on_cpu)
    for tensor, down in ((on_gpu, 2048), (on_cpu, 4096)):
        before = rank.engine.counters()["staged_down"]
        rank.put(np.arange(1024) / 8)
        assert rank.engine.wait_on_stream(rank.submit(tensor), rank.stream.handle)
        assert np.array_equal(rank.get(), np.arange(1024) / 8)
        assert rank.engine.counters()["staged_down"] - before == down


@needs_software
def test_failures_are_raised(rank, control):
    """What the driver refuses is the operation's error, on the host."""
    tensor = rank.declare(1)
    rank.engine.use_gpu(rank.gpu)
    rank.put(np.ones(1024))
    control.software_gpu_fail(b"cuMemcpyDtoHAsync_v2", 1, 1)
    operation = rank.submit(tensor)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_VALUE"):
        rank.engine.wait(operation, 20.0)
    with pytest.raises(DeviceError):
        rank.engine.wait_on_stream(operation, rank.stream.handle)
    rank.stream.synchronize()
