"""The SIMD kernels against the rate at which this machine streams `a += b`, one thread.

    python -m bench.internals.kernels [--megabytes 64] [--repeats 9] [--instruction-set avx2] [--only bfloat16]

The limit is measured in the same run, in turn with each kernel and on the same memory: a plain loop over fp32 that the
compiler has vectorised. Rates count bytes read and written, so a kernel at the limit has a ratio of 1; the ratio is the
median over the turns. Time is the thread's own, so that sharing the CPU doesn't count (sharing the memory does). A line
per measurement goes to out/kernels.jsonl.
"""

from __future__ import annotations

import argparse
import mmap
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.report import OUT, Spread, interleave, print_table, show_bytes, write_json_lines
from byteps_like._core import kernels
from byteps_like.dtypes import DType, Op

FLOATS = tuple(filter(lambda dtype: dtype.is_float, DType))
NARROW = tuple(dtype for dtype in DType if dtype.is_float and dtype.itemsize <= 2)


@dataclass(frozen=True)
class Case:
    """A kernel, the bytes it reads and writes per call, and the call."""

    name: str
    traffic: int
    call: Callable[[], Any]


@dataclass(frozen=True)
class Outcome:
    """Rate of a case in bytes per second, of the plain loop beside it, and what share of that the kernel reaches."""

    case: Case
    rate: Spread
    limit: Spread
    ratio: float

    def as_row(self) -> dict[str, Any]:
        """For the JSON lines."""
        return {
            "kernel": self.case.name,
            "bytes_per_second": self.rate.median,
            "quartiles": [self.rate.low, self.rate.high],
            "limit_bytes_per_second": self.limit.median,
            "ratio": self.ratio,
        }


class Memory:
    """Four arrays of the given size, in huge pages where the system has them, and all zero: so contents stay finite."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.arrays = [_pages(nbytes) for _ in range(4)]
        self.floats = [array.view(np.float32) for array in self.arrays]


def _pages(nbytes: int) -> Any:
    huge_page = 2 << 20
    room = mmap.mmap(-1, nbytes + huge_page, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    room.madvise(mmap.MADV_HUGEPAGE)
    view = np.frombuffer(room, np.uint8)
    begin = -view.ctypes.data % huge_page
    array = view[begin : begin + nbytes]
    array[:] = 0  # written, so that it has memory of its own
    return array


def reductions(memory: Memory) -> Iterator[Case]:
    a, b = memory.arrays[:2]
    for op in (Op.SUM, Op.MIN, Op.MAX, Op.PRODUCT, Op.BXOR):
        for dtype in filter(op.supports, DType):
            name = f"{op.name.lower()} {dtype.name.lower()}"
            yield Case(name, 3 * memory.nbytes, lambda op=op, dtype=dtype: kernels.reduce(op, dtype, a, b))


def conversions(memory: Memory) -> Iterator[Case]:
    wide, other = memory.arrays[:2]
    size = memory.nbytes
    for dtype in NARROW:
        name, less = dtype.name.lower(), size // 4 * dtype.itemsize
        narrow = other[:less]
        yield Case(f"widen {name}", size + less, lambda d=dtype, n=narrow: kernels.widen(d, wide, n))
        yield Case(
            f"accumulate {name}", 2 * size + less, lambda d=dtype, n=narrow: kernels.accumulate(Op.SUM, d, wide, n)
        )
        yield Case(f"finalize {name} / 3", size + less, lambda d=dtype, n=narrow: kernels.finalize(d, n, wide, 3))
    for dtype in DType:
        name = dtype.name.lower()
        if dtype != DType.BOOL:
            yield Case(f"scale {name}", 2 * size, lambda d=dtype: kernels.scale(d, wide, 0.5))
        if dtype not in NARROW:
            yield Case(f"finalize {name} / 3", 2 * size, lambda d=dtype: kernels.finalize(d, wide, other, 3))
    for source in FLOATS:
        for destination in FLOATS:
            if source != destination:
                yield _cast(memory, source, destination)


def _cast(memory: Memory, source: DType, destination: DType) -> Case:
    count = memory.nbytes // max(source.itemsize, destination.itemsize)
    from_, to = memory.arrays[0][: count * source.itemsize], memory.arrays[1][: count * destination.itemsize]
    name = f"cast {source.name.lower()} -> {destination.name.lower()}"
    return Case(name, from_.nbytes + to.nbytes, lambda: kernels.cast(source, destination, to, from_))


def many(memory: Memory) -> Iterator[Case]:
    for count in (2, 3, 4):
        arrays = memory.arrays[:count]
        for op, dtype, divisor in (
            (Op.SUM, DType.FLOAT32, 1),
            (Op.AVERAGE, DType.FLOAT32, count),
            (Op.SUM, DType.FLOAT16, 1),
            (Op.SUM, DType.BFLOAT16, 1),
            (Op.AVERAGE, DType.INT32, count),
        ):
            name = f"reduce_many {count} {op.name.lower()} {dtype.name.lower()}"
            call = lambda a=arrays, op=op, d=dtype, n=divisor: kernels.reduce_many(op, d, a, a, n)  # noqa: E731
            yield Case(name, 2 * count * memory.nbytes, call)


def timed(call: Callable[[], Any]) -> float:
    begin = time.thread_time()
    call()
    return time.thread_time() - begin


def measure(case: Case, memory: Memory, repeats: int) -> Outcome:
    a, b = memory.floats[:2]
    times = interleave(
        {"kernel": lambda: timed(case.call), "limit": lambda: timed(lambda: kernels.plain_add(a, b))}, repeats
    )
    rates = [case.traffic / t for t in times["kernel"]]
    limits = [3 * memory.nbytes / t for t in times["limit"]]
    ratio = statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True))
    return Outcome(case, Spread.of(rates), Spread.of(limits), ratio)


def checksum_rates(repeats: int) -> list[dict[str, Any]]:
    """Of buffers that stay in a cache, and of one that doesn't."""
    rows = []
    for nbytes in (4096, 65_536, 262_144, 1 << 26):
        data = np.arange(nbytes, dtype=np.uint8)
        calls = max(1, (1 << 24) // nbytes)
        spread = Spread.of([calls * nbytes / timed(lambda d=data, n=calls: _repeat(d, n)) for _ in range(repeats)])
        rows.append({"kernel": f"crc32c {show_bytes(nbytes)}", "bytes_per_second": spread.median})
    return rows


def _repeat(data: Any, calls: int) -> None:
    crc32c, checksum = kernels.crc32c, 0
    for _ in range(calls):
        checksum = crc32c(data, checksum)


def show(title: str, outcomes: list[Outcome]) -> None:
    rows = [
        (o.case.name, f"{o.rate.median / 1e9:.1f}", f"±{o.rate.relative * 50:.0f}%", f"{o.limit.median / 1e9:.1f}",
         f"{o.ratio:.2f}")
        for o in outcomes
    ]  # fmt: skip
    print_table(title, ("kernel", "GB/s", "spread", "limit GB/s", "ratio"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64, help="size of each array")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--instruction-set", default=kernels.instruction_set())
    parser.add_argument("--only", default="", metavar="REGEX", help="kernels whose names it finds itself in")
    options = parser.parse_args()
    if not kernels.select_instruction_set(options.instruction_set):
        parser.error(f"this CPU has no {options.instruction_set}")
    memory = Memory(options.megabytes << 20)
    rows: list[dict[str, Any]] = []
    for title, cases in (
        ("a = a op b", reductions(memory)),
        ("every source and destination in place", many(memory)),
        ("conversions and scaling", conversions(memory)),
    ):
        wanted = filter(lambda case: re.search(options.only, case.name), cases)
        outcomes = [measure(case, memory, options.repeats) for case in wanted]
        show(f"{title}: {options.megabytes} MB arrays, one thread, {options.instruction_set}", outcomes)
        rows += [outcome.as_row() for outcome in outcomes]
    checksums = checksum_rates(options.repeats)
    print_table("CRC32C", ("buffer", "GB/s"), [(r["kernel"], f"{r['bytes_per_second'] / 1e9:.1f}") for r in checksums])
    write_json_lines(OUT / "kernels.jsonl", vars(options), rows + checksums)


if __name__ == "__main__":
    main()
