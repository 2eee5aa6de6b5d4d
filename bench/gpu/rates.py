"""What a device does in a second: codecs' kernels next to its own copies, staging next to page-locked copies.

A device is torch's first or, for a run without one, the software libcuda of the tests: then clocks are the host's and
no figure means anything.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench import report
from byteps_like import _core, cuda
from byteps_like.compression.registry import codec_of
from byteps_like.cuda.recipes import Workbench

PARTITION = 4 << 20
DRAW = (7, 3, 1)
TARGETS = {"bf16": 0.8, "fp16": 0.8, "fixed": 0.8, "int8": 0.8, "onebit": 0.8, "bitmap": 0.8, "thc4 encode": 0.6}
SPARSE = ("bitmap", "blocksparse", "coo")
"""Those whose array has one element of a hundred, in blocks, that isn't zero."""
STAGING = 0.9

Row = dict[str, Any]


class Device:
    """A workbench, and a clock for what is queued on its stream."""

    def __init__(self, bench: Workbench, events: Callable[[], tuple[Any, Any]] | None) -> None:
        self.bench, self._events = bench, events

    @classmethod
    def cuda(cls, index: int) -> Device:
        """One of CUDA's."""
        import torch

        torch.cuda.set_device(index)
        bench = Workbench(_core.Gpu(index), cuda.handles(index))
        stream = torch.cuda.ExternalStream(bench.stream.handle, device=index)

        def events() -> tuple[Any, Any]:
            pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
            return stream, pair

        return cls(bench, events)

    @classmethod
    def played(cls, driver: Path) -> Device:
        """The host, as one."""
        gpu = _core.Gpu(0, str(driver))
        module = gpu.load(str(driver))
        names = [name for source in cuda.sources.sources() for name in source.kernels]
        return cls(Workbench(gpu, {name: module.function(name) for name in names}), None)

    @property
    def is_played(self) -> bool:
        """Whether there is none."""
        return self._events is None

    def seconds(self, work: Callable[[], object], times: int) -> float:
        """For one `work`, queued so often, and behind another, that the device never waits for the host."""
        self.bench.stream.synchronize()
        if self._events is None:  # a played device has no clock
            start = time.perf_counter()
            for _ in range(times):
                work()
            self.bench.stream.synchronize()
            return (time.perf_counter() - start) / times
        stream, (begin, end) = self._events()
        work()  # while which the host gets ahead
        begin.record(stream)
        for _ in range(times):
            work()
        end.record(stream)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3 / times


class Coding:
    """One codec on one array: its launches, made once, and their result checked."""

    def __init__(self, device: Device, name: str, x: np.ndarray[Any, Any], place: Any) -> None:
        bench, spec = device.bench, codec_of(name).spec()
        self.name, self._native = name, _core.Codec(spec, 1)
        twin = _core.GpuCodec(spec, 1, bench.kernels, bench.gpu.most_shared)
        self._plan = self._native.plan(x.size)
        agreed, payload = self._on_host(x)
        result = self._result(payload, x.size)
        self._kept = [bench.put(array) for array in (agreed, result, np.zeros(2, np.uint32))]
        self._kept += [bench.empty(size) for size in (twin.workspace(x.size), self._plan["payload"], x.nbytes)]
        prelude, given, told, workspace, to, out = (memory.address for memory in self._kept)
        round_ = _core.GpuRound(place.address, x.size, DRAW, prelude, workspace, told)
        decoded = _core.GpuRound(out, x.size, DRAW, prelude, workspace, told)
        prepare = twin.prepare(round_, prelude) if agreed.size else []
        encode, decode = twin.encode(round_, to), twin.decode(decoded, given, result.size, 1, 1.0)
        bench.run([*prepare, *encode])
        if not np.array_equal(bench.get(self._kept[4], payload.size), payload):
            raise SystemExit(f"{name}: the payload is not the CPU's")
        self.stages = {"encode": (encode, x.nbytes + payload.size), "decode": (decode, x.nbytes + result.size)}

    def _on_host(self, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        agreed, payload = np.zeros(self._plan["prelude"], np.uint8), np.zeros(self._plan["payload"], np.uint8)
        if agreed.size:
            self._native.prepare(x, DRAW, agreed)
        return agreed, payload[: self._native.encode(x, DRAW, agreed, payload)]

    def _result(self, payload: np.ndarray[Any, Any], numel: int) -> np.ndarray[Any, Any]:
        """What a server makes of it alone."""
        if "dense" in self._plan:
            return payload
        accumulator, result = (np.zeros(self._plan[what], np.uint8) for what in ("accumulator", "result"))
        self._native.reset(numel, accumulator)
        self._native.accumulate(numel, payload, accumulator)
        return result[: self._native.emit(numel, 1, DRAW, accumulator, result)]


def numbers(numel: int, sparse: bool) -> np.ndarray[Any, Any]:
    """Normal ones; of sparse ones a hundredth, in runs of 256."""
    x = np.random.default_rng(0).standard_normal(numel, np.float32)
    if sparse:
        runs = x[: numel // 256 * 256].reshape(-1, 256)
        runs[np.arange(len(runs)) % 100 != 0] = 0.0
    return x


def kernels(device: Device, arguments: argparse.Namespace) -> list[Row]:
    """A row a codec and stage."""
    bench, rows = device.bench, []
    other = bench.empty(arguments.megabytes << 20)
    for sparse in (False, True):
        x = numbers(arguments.megabytes << 18, sparse)
        place = bench.put(x)

        def copy(nbytes: int = x.nbytes, source: int = place.address) -> None:
            bench.gpu.copy(other.address, source, nbytes, bench.stream.handle)

        for name in arguments.codecs:
            if (name in SPARSE) is not sparse:
                continue
            coding = Coding(device, name, x, place)
            for stage, (launches, nbytes) in coding.stages.items():
                turns = interleaved(device, (lambda launches=launches: bench.run(launches)), copy, arguments)
                what = f"{name} {stage}"
                target = TARGETS.get(what, TARGETS.get(name))
                rows.append(row("kernel", what, turns, nbytes, 2 * x.nbytes, target))
    return rows


def interleaved(
    device: Device, ours: Callable[[], object], limit: Callable[[], object], arguments: argparse.Namespace
) -> list[tuple[float, float]]:
    """Seconds of one and the other, in turn; the first of each is not counted."""
    times = arguments.inner
    return [
        (device.seconds(ours, times), device.seconds(limit, times)) for _ in range(arguments.repeats + 1)
    ][1:]  # fmt: skip


def row(
    part: str, what: str, turns: list[tuple[float, float]], nbytes: int, limit_bytes: int, target: float | None
) -> Row:
    """Bytes per second, and the ratio to the limit's in the same turn: median, least and greatest."""
    ratios = [nbytes / own / (limit_bytes / limit) for own, limit in turns]
    return {
        "part": part, "what": what, "rate": nbytes / statistics.median(own for own, _ in turns),
        "limit": limit_bytes / statistics.median(limit for _, limit in turns), "ratio": statistics.median(ratios),
        "low": min(ratios), "high": max(ratios), "target": target,
    }  # fmt: skip


def staging(device: Device, arguments: argparse.Namespace) -> list[Row]:
    """Each way: partitions to or from a mirror as arenas have it, next to one copy of what the driver page-locked."""
    bench, nbytes = device.bench, arguments.megabytes << 20
    gpu, stream = bench.gpu, bench.stream.handle
    array, mirror = bench.empty(nbytes), _core.SharedBuffer(nbytes)
    held, (locked, kept) = gpu.pin(mirror), page_locked(device, nbytes)

    def down(host: int, step: int) -> None:
        for offset in range(0, nbytes, step):
            gpu.copy(host + offset, array.address + offset, min(step, nbytes - offset), stream)

    def up(host: int, step: int) -> None:
        for offset in range(0, nbytes, step):
            gpu.copy(array.address + offset, host + offset, min(step, nbytes - offset), stream)

    rows = []
    for name, copy in (("down", down), ("up", up)):
        ours, limit = (lambda copy=copy: copy(held.address, PARTITION)), (lambda copy=copy: copy(locked, nbytes))
        turns = interleaved(device, ours, limit, arguments)
        rows.append(row("staging", f"partitions {name}", turns, nbytes, nbytes, STAGING))
    del kept
    return rows


def page_locked(device: Device, nbytes: int) -> tuple[int, Any]:
    """Memory that the driver allocated; a played device has none. Its address, and what keeps it."""
    if device.is_played:
        array = np.zeros(nbytes, np.uint8)
        return array.ctypes.data, (array, device.bench.gpu.pin_address(array.ctypes.data, nbytes))
    import torch

    tensor = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
    return tensor.data_ptr(), tensor


def show(name: str, rows: list[Row], is_played: bool) -> None:
    """The table, with what is below its target marked; of a played device nothing is judged."""
    cells = [
        (item["part"], item["what"], f"{item['rate'] / 1e9:.1f}", f"{item['limit'] / 1e9:.1f}", f"{item['ratio']:.2f}",
         f"{item['low']:.2f}-{item['high']:.2f}", f"{item['target']:.1f}" if item["target"] else "",
         "" if is_played else judged(item["ratio"], item["target"]))
        for item in rows
    ]  # fmt: skip
    columns = ("", "what", "GB/s", "limit GB/s", "ratio", "from-to", "target", "")
    report.print_table(f"{name}: bytes read and written, to the device's own copies in the same turn", columns, cells)


def judged(ratio: float, target: float | None) -> str:
    """In a word."""
    return "" if target is None else "ok" if ratio >= target else "BELOW"
