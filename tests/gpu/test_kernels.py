"""Kernels on a device: the bytes of the CPU's codecs. The same recipes run on the software GPU in tests/native."""

import struct
from types import SimpleNamespace

import numpy as np
import pytest

from byteps_like import _core, cuda
from byteps_like.cuda.recipes import Runner

SPECS = [
    "fp16", "bf16", "fp8:block=256,format=e5m2", "fixed:bits=32,block=256", "fixed:bits=16,block=10000",
    "int:bits=8,block=256,rounding=nearest,scale=own,seed=0", "onebit:block=32768",
    "thc:bits=4,clamp=32,seed=0,table=auto",
    "topk:ratio=0.01,select=exact", "topk:ratio=0.01,select=sampled", "randomk:ratio=0.01,scale=1,seed=0",
    "chunktopk:chunk=256,ratio=0.1", "bitmap", "blocksparse:block=256,dense=1", "coo",
]  # fmt: skip
DRAW = (7, 3, 1)
WORLD = 3


@pytest.fixture(scope="module")
def gpu():
    if why := cuda.why_not():
        pytest.skip(why)
    import cupy

    shared = cupy.cuda.Device(0).attributes["MaxSharedMemoryPerBlockOptin"]
    return SimpleNamespace(cupy=cupy, handles=cuda.handles(0), shared=shared)


def numbers(numel: int, seed: int = 0) -> np.ndarray:
    """Normal ones, with zeros, denormals, infinities and NaN where the seed is odd."""
    x = np.random.default_rng(seed).standard_normal(numel).astype(np.float32)
    if seed % 2:
        x[: numel // 3] *= np.float32(2.0**-130)
        x[:: max(numel // 3, 1)] = [0.0, -np.inf, np.nan, -0.0][seed % 4]
    return x


def bits(values: np.ndarray) -> np.ndarray:
    """With all NaNs the same."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("numel", [1, 257, 40_000, 1 << 20])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_device_has_the_bits_of_the_cpu(gpu, spec, numel, seed):
    cupy = gpu.cupy
    codec, twin = _core.Codec(spec, WORLD), _core.GpuCodec(spec, WORLD, gpu.handles, gpu.shared)
    plan, x = codec.plan(numel), numbers(numel, seed)
    agreed, payload = np.zeros(plan["prelude"], np.uint8), np.zeros(plan["payload"], np.uint8)
    if plan["prelude"]:
        codec.prepare(x, DRAW, agreed)
    residual = np.zeros_like(x)
    size = codec.encode_with_residual(x, DRAW, agreed, payload, residual)
    room = {name: cupy.zeros(max(size, 16), cupy.uint8) for name, size in {
        "agreed": plan["prelude"], "payload": plan["payload"], "workspace": twin.workspace(numel), "report": 8,
    }.items()}  # fmt: skip
    on_device, left = cupy.asarray(x), cupy.zeros_like(cupy.asarray(x))
    address = {name: array.data.ptr for name, array in room.items()}
    place = _core.GpuRound(on_device.data.ptr, numel, DRAW, address["agreed"], address["workspace"], address["report"])
    runner = Runner(cupy.cuda.get_current_stream().ptr)
    if plan["prelude"]:
        runner.run(twin.prepare(place, address["agreed"]))
        np.testing.assert_array_equal(cupy.asnumpy(room["agreed"])[: plan["prelude"]], agreed)
    runner.run(twin.encode(place, address["payload"]))
    runner.run(twin.residual(place, address["payload"], left.data.ptr))
    told = struct.unpack("<II", cupy.asnumpy(room["report"])[:8].tobytes())[0] if twin.varies else plan["payload"]
    assert told == size
    np.testing.assert_array_equal(cupy.asnumpy(room["payload"])[:size], payload[:size])
    np.testing.assert_array_equal(bits(cupy.asnumpy(left)), bits(residual))
