"""Codecs on a device, real or played: what their kernels make is compared with the CPU's, byte by byte."""

from __future__ import annotations

import struct

import numpy as np

from byteps_like import _core
from byteps_like.compression.codec import SERVER_RANK, Draw
from byteps_like.compression.registry import codec_of
from byteps_like.cuda.recipes import Workbench
from tests.fakes.codec_rounds import Native

SPECS = [
    "fp16", "bf16", "fp8:block=256,format=e5m2", "fixed:bits=32,block=256", "fixed:bits=16,block=10000",
    "int:bits=8,block=256,rounding=nearest,scale=own,seed=0", "onebit:block=32768",
    "thc:bits=4,clamp=32,seed=0,table=auto",
    "topk:ratio=0.01,select=exact", "topk:ratio=0.01,select=sampled", "randomk:ratio=0.01,scale=1,seed=0",
    "chunktopk:chunk=256,ratio=0.1", "bitmap", "blocksparse:block=256,dense=1", "coo",
]  # fmt: skip
KINDS = ("normal", "denormal", "zeros", "infinite", "nan")
DRAW = (7, 3, 1)
WORLD = 3


def numbers(numel: int, kind: str) -> np.ndarray:
    """Normal ones; of other kinds a third is denormal, and a few are what the name says."""
    x = np.random.default_rng(numel).standard_normal(numel).astype(np.float32)
    if kind != "normal":
        x[: numel // 3] *= np.float32(2.0**-130)
        x[:: max(numel // 5, 1)] = {"denormal": 2.0**-140, "zeros": -0.0, "infinite": -np.inf, "nan": np.nan}[kind]
    return x


def bits(values: np.ndarray) -> np.ndarray:
    """With all NaNs the same."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


class OnHost:
    """What the CPU makes of `x`: this rank's payload, and the result of a round of such payloads of all ranks."""

    def __init__(self, spec: str, x: np.ndarray) -> None:
        self.native = Native(codec_of(spec), WORLD)
        codec = self.native.core
        self.plan = codec.plan(x.size)
        self.agreed = np.zeros(self.plan["prelude"], np.uint8)
        if self.agreed.size:
            codec.prepare(x, DRAW, self.agreed)
        payload, self.residual = self.native.encode(x, Draw(*DRAW), self.agreed)
        self.payload = np.frombuffer(payload, np.uint8)

    def round(self, numel: int) -> tuple[np.ndarray, np.ndarray]:
        """The result, and the mean it stands for."""
        result = self.native.sum([self.payload.tobytes()] * WORLD, numel, Draw(7, 3, SERVER_RANK))
        mean = self.native.decode(result, Draw(*DRAW), self.agreed, numel, 1.0 / WORLD)
        return np.frombuffer(result, np.uint8), mean


def same_payload(device: Workbench, spec: str, numel: int, kind: str) -> None:
    """Prelude, payload, its size, and residual."""
    x = numbers(numel, kind)
    host = OnHost(spec, x)
    twin = _core.GpuCodec(spec, WORLD, device.kernels, device.gpu.most_shared)
    agreed, payload = device.empty(host.plan["prelude"]), device.empty(host.plan["payload"])
    workspace, report = device.empty(twin.workspace(numel)), device.put(np.zeros(2, np.uint32))
    on_device, left = device.put(x), device.empty(x.nbytes)
    place = _core.GpuRound(on_device.address, numel, DRAW, agreed.address, workspace.address, report.address)
    if host.agreed.size:
        device.run(twin.prepare(place, agreed.address))
        np.testing.assert_array_equal(device.get(agreed, host.agreed.size), host.agreed)
    device.run(twin.encode(place, payload.address))
    device.run(twin.residual(place, payload.address, left.address))
    size = struct.unpack("<I", device.get(report, 4).tobytes())[0] if twin.varies else host.plan["payload"]
    assert size == host.payload.size
    np.testing.assert_array_equal(device.get(payload, size), host.payload)
    np.testing.assert_array_equal(bits(device.get(left, x.nbytes).view(np.float32)), bits(host.residual))


def same_mean(device: Workbench, spec: str, numel: int, kind: str) -> None:
    """What is decoded."""
    host = OnHost(spec, numbers(numel, kind))
    result, mean = host.round(numel)
    twin = _core.GpuCodec(spec, WORLD, device.kernels, device.gpu.most_shared)
    agreed, on_device = device.put(host.agreed), device.put(result)
    workspace, report = device.empty(twin.workspace(numel)), device.put(np.zeros(2, np.uint32))
    out = device.empty(mean.nbytes)
    place = _core.GpuRound(out.address, numel, DRAW, agreed.address, workspace.address, report.address)
    device.run(twin.decode(place, on_device.address, result.size, WORLD, 1.0 / WORLD))
    np.testing.assert_array_equal(bits(device.get(out, mean.nbytes).view(np.float32)), bits(mean))
    assert not device.get(report, 8).view(np.uint32)[1], "taken for corrupt"
