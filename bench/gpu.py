"""GPU kernels against the device's own copy rate, and staging against page-locked copies, in one run.

    python bench/gpu.py [--megabytes 256] [--repeats 20] [--codecs bf16 int8 thc4] [--device 0]

Every codec with a twin on GPUs encodes and decodes one array of normal numbers on the device, with the recipes that the
engine uses; between any two of them the device copies as many bytes from memory to memory. A rate is of the bytes that
must be read and written at least (fp32 and payload), the ratio that to the rate of the copies (which count both ways
too) within the same turn. First the payload is compared with the CPU's. Targets: 0.8 for casts, int8, onebit, bitmap
and fixed, 0.6 for thc.

Staging: partitions of 4 MiB by a side stream down to memory that was page-locked as arenas' mirrors are, and up again,
to one copy of all of it from and to memory that the driver allocated page-locked: target 0.9.

Refuses, with the reason, where there is no device. A line per figure goes to out/gpu.jsonl.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from report import OUT, print_table, write_json_lines

from byteps_like import _core, cuda
from byteps_like.compression.registry import codec_of
from byteps_like.cuda.recipes import Runner

PARTITION = 4 << 20
DRAW = (7, 3, 1)
WORLD = 4
CODECS = ("bf16", "fp16", "fixed", "int8", "onebit", "fp8", "thc4")
TARGETS = {"bf16": 0.8, "fp16": 0.8, "fixed": 0.8, "int8": 0.8, "onebit": 0.8, "bitmap": 0.8, "thc4": 0.6}


class Device:
    """CuPy's device and what is timed on it."""

    def __init__(self, index: int) -> None:
        import cupy

        self.cupy = cupy
        cupy.cuda.Device(index).use()
        self.handles = cuda.handles(index)
        self.shared = cupy.cuda.Device(index).attributes["MaxSharedMemoryPerBlockOptin"]
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.runner = Runner(self.stream.ptr)

    def seconds(self, work: Callable[[], object]) -> float:
        """By the device's clock."""
        begin, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        begin.record(self.stream)
        work()
        end.record(self.stream)
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(begin, end)) / 1e3


class Coding:
    """One codec on the array: its launches, made once."""

    def __init__(self, device: Device, name: str, x: np.ndarray[Any, Any], on_device: Any) -> None:
        spec = codec_of(name).spec
        native = _core.Codec(spec, WORLD)
        twin = _core.GpuCodec(spec, WORLD, device.handles, device.shared)
        plan = native.plan(x.size)
        zeros = device.cupy.zeros
        self.agreed = np.zeros(plan["prelude"], np.uint8)
        self.payload = zeros(max(plan["payload"], plan["result"]), np.uint8)
        self.result = zeros(plan["result"], np.uint8)
        self.out = zeros(x.size, np.float32)
        self._kept = [zeros(max(size, 16), np.uint8) for size in (plan["prelude"], twin.workspace(x.size), 8)]
        agreed, workspace, report = (array.data.ptr for array in self._kept)
        place = _core.GpuRound(on_device.data.ptr, x.size, DRAW, agreed, workspace, report)
        decoded = _core.GpuRound(self.out.data.ptr, x.size, DRAW, agreed, workspace, report)
        self.prepare = twin.prepare(place, agreed) if plan["prelude"] else []
        self.encode = twin.encode(place, self.payload.data.ptr)
        self.decode = twin.decode(decoded, self.result.data.ptr, plan["result"], 1, 1.0)
        self.name, self._native, self._device = name, native, device
        self.encoded_bytes = x.nbytes + plan["payload"]
        self.decoded_bytes = x.nbytes + plan["result"]

    def check(self, x: np.ndarray[Any, Any]) -> None:
        """The payload is the CPU's, byte by byte."""
        expected = np.zeros(self.payload.size, np.uint8)
        if self.agreed.size:
            self._native.prepare(x, DRAW, self.agreed)
        size = self._native.encode(x, DRAW, self.agreed, expected)
        self._device.runner.run([*self.prepare, *self.encode])
        self._device.stream.synchronize()
        if not np.array_equal(expected[:size], self._device.cupy.asnumpy(self.payload)[:size]):
            raise SystemExit(f"{self.name}: the payload is not the CPU's")


def kernels(device: Device, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A row a codec and stage."""
    cupy = device.cupy
    x = np.random.default_rng(0).standard_normal(arguments.megabytes << 18, np.float32)
    on_device, other = cupy.asarray(x), cupy.empty(x.size, np.float32)
    rows = []

    def copy() -> None:
        cupy.cuda.runtime.memcpyAsync(other.data.ptr, on_device.data.ptr, x.nbytes, 3, device.stream.ptr)

    for name in arguments.codecs:
        coding = Coding(device, name, x, on_device)
        coding.check(x)
        stages = {"encode": (coding.encode, coding.encoded_bytes), "decode": (coding.decode, coding.decoded_bytes)}
        for stage, (launches, nbytes) in stages.items():
            turns = [
                (device.seconds(lambda launches=launches: device.runner.run(launches)), device.seconds(copy))
                for _ in range(arguments.repeats + 1)
            ][1:]
            ratio = statistics.median(nbytes / own / (2 * x.nbytes / copied) for own, copied in turns)
            rate = nbytes / statistics.median(own for own, _ in turns) / 1e9
            target = TARGETS.get(name) if stage == "encode" or name != "thc4" else None
            rows.append({"what": f"{name} {stage}", "GB/s": round(rate, 1), "ratio": round(ratio, 3), "target": target})
    return rows


def staging(device: Device, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Both ways: partitions to and from memory that was locked afterwards, against one copy of the driver's own."""
    runtime, nbytes = device.cupy.cuda.runtime, arguments.megabytes << 20
    array = device.cupy.empty(nbytes, np.uint8)
    locked = device.cupy.cuda.alloc_pinned_memory(nbytes)
    mirror = np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    mirror[:] = 1
    runtime.hostRegister(mirror.ctypes.data, nbytes, 1)

    def copy(host: int, direction: int, step: int) -> None:
        for offset in range(0, nbytes, step):
            ends = (
                (array.data.ptr + offset, host + offset) if direction == 1 else (host + offset, array.data.ptr + offset)
            )
            runtime.memcpyAsync(*ends, min(step, nbytes - offset), direction, device.stream.ptr)

    def row(name: str, direction: int) -> dict[str, Any]:
        turns = [
            (
                device.seconds(lambda: copy(mirror.ctypes.data, direction, PARTITION)),
                device.seconds(lambda: copy(locked.ptr, direction, nbytes)),
            )
            for _ in range(arguments.repeats + 1)
        ][1:]
        rate = nbytes / statistics.median(own for own, _ in turns) / 1e9
        ratio = statistics.median(limit / own for own, limit in turns)
        return {"what": f"staging {name}", "GB/s": round(rate, 1), "ratio": round(ratio, 3), "target": 0.9}

    rows = [row("down", 2), row("up", 1)]
    runtime.hostUnregister(mirror.ctypes.data)
    return rows


def main() -> None:
    """Measures, prints a table, writes lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--codecs", nargs="+", default=list(CODECS))
    parser.add_argument("--device", type=int, default=0)
    arguments = parser.parse_args()
    if why := cuda.why_not():
        sys.exit(f"bench/gpu.py needs a GPU: {why}")
    device = Device(arguments.device)
    rows = kernels(device, arguments) + staging(device, arguments)
    shown = [[str(value) for value in row.values()] for row in rows]
    print_table("GPU", ["what", "GB/s", "of the copy rate", "target"], shown)
    write_json_lines(OUT / "gpu.jsonl", vars(arguments), rows)


if __name__ == "__main__":
    main()
