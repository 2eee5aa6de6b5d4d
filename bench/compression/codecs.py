"""What codecs cost on one core, against the rate at which this machine streams, a sum of fp32 and a cast to bf16.

    python -m bench.compression.codecs [--codecs thc4 int8] [--megabytes 64] [--repeats 7] [--instruction-set avx2]

An arena of normal numbers (for codecs of sparse tensors one block of 256 in a hundred is not zero) is encoded by
partitions of 4 MiB, as the engine does it: numbers come from memory, payloads may stay in a cache. A second
contribution is accumulated on top of a first, then emitted, then decoded. In each turn every stage of a codec and the
four yardsticks run one after the other; rates are medians of the turns, ratios medians of the ratios within a turn.
Time is the thread's own. GB/s are of fp32, four bytes an element; but the share of streaming counts the bytes that are
read and written at least: those of fp32 and of the payload. `of reading` is the time in which a plain loop reads the
numbers and writes nothing, to that of encoding: a core reads no faster if it doesn't write, so what merely reads gets
to two thirds of the stream or so. A line per codec goes to out/codecs.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

import byteps_like._core as _core
from bench.report import OUT, Spread, print_table, write_json_lines
from byteps_like._core import kernels
from byteps_like.compression.codec import Codec, Trait
from byteps_like.compression.registry import CODECS, SHORT, codec_of
from byteps_like.dtypes import DType, Op

PARTITION = 1 << 20
"""Elements."""
SKETCH = "sketch:density=0.014"
"""1.4 times what isn't zero in the arena; with its default, a density of 1, a sketch is a plain array of int32."""
SPARSE = ("bitmap", "sketch", "blocksparse", "coo")
YARDSTICKS = ("stream", "read", "sum", "bf16")

Bytes = NDArray[np.uint8]


def zeros(nbytes: int) -> Bytes:
    """Aligned to 64 bytes, and with memory of their own."""
    room = np.zeros(nbytes + 64, np.uint8)
    room[:] = 0
    return room[-room.ctypes.data % 64 :][:nbytes]


def seconds(work: Callable[[int], object], partitions: int) -> float:
    """Of this thread, for all partitions."""
    begin = time.thread_time()
    for index in range(partitions):
        work(index)
    return time.thread_time() - begin


def arena(megabytes: int, sparse: bool) -> NDArray[np.float32]:
    """The numbers, a row for each partition."""
    random = np.random.default_rng(0)
    x = random.standard_normal(max(megabytes << 18, PARTITION) // PARTITION * PARTITION, dtype=np.float32)
    if sparse:
        x *= np.repeat(random.random(x.size // 256) < 0.01, 256)
    return x.reshape(-1, PARTITION)


class Yardsticks:
    """Seconds of what everybody knows, over as many elements as the arena has."""

    def __init__(self, megabytes: int) -> None:
        self.a, self.b = arena(megabytes, False), arena(megabytes, False)
        self.narrow = zeros(self.a.nbytes // 2).reshape(len(self.a), -1)

    def times(self) -> dict[str, float]:
        """One turn."""
        a, b, narrow, count = self.a, self.b, self.narrow, len(self.a)
        return {
            "stream": seconds(lambda i: kernels.plain_add(a[i], b[i]), count),
            "read": seconds(lambda i: kernels.plain_or(a[i]), count),
            "sum": seconds(lambda i: kernels.reduce(Op.SUM, DType.FLOAT32, a[i], b[i]), count),
            "bf16": seconds(lambda i: kernels.cast(DType.FLOAT32, DType.BFLOAT16, narrow[i], a[i]), count),
        }


@dataclass
class Subject:
    """A codec with its buffers for an arena. Its stages must run in their order."""

    codec: Codec
    x: NDArray[np.float32]
    world: int
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By partition, bytes of payload and result."""

    def __post_init__(self) -> None:
        self.core = _core.Codec(self.codec.spec(), self.world)
        plan, count = self.core.plan(PARTITION), len(self.x)
        self.agreed = [zeros(plan["prelude"]) for _ in range(count)]
        self.payloads = [zeros(plan["payload"]) for _ in range(count)]
        self.results = [zeros(plan["result"]) for _ in range(count)]
        self.dense = DType(plan["dense"]) if "dense" in plan else None
        size = plan["accumulator"]
        if self.dense is not None:
            size = plan["payload"] // self.dense.itemsize * self.dense.accumulator.itemsize
        self.sums = [zeros(size) for _ in range(count)]
        self.out = np.zeros(PARTITION, np.float32)
        for i in range(count):
            if plan["prelude"]:
                self.core.prepare(self.x[i], self.draw(i), self.agreed[i])
            self.encode(i)

    def draw(self, i: int) -> tuple[int, int, int]:
        """Key, round, rank."""
        return (i, 1, 0)

    def encode(self, i: int) -> None:
        """All that a worker does before it sends."""
        size = self.core.encode(self.x[i], self.draw(i), self.agreed[i], self.payloads[i])
        self.sizes[i] = (size, size)

    def reset(self, i: int) -> None:
        """A sum of one contribution."""
        if self.dense is not None:
            kernels.widen(self.dense, self.summed(i), self.sent(i))
        else:
            self.core.reset(PARTITION, self.sums[i])
            self.accumulate(i)

    def accumulate(self, i: int) -> None:
        """What a server does with a contribution."""
        if self.dense is not None:
            kernels.accumulate(Op.SUM, self.dense, self.summed(i), self.sent(i))
        else:
            self.core.accumulate(PARTITION, self.sent(i), self.sums[i])

    def emit(self, i: int) -> None:
        """What it does with the sum."""
        if self.dense is not None:
            kernels.finalize(self.dense, self.results[i][: self.sizes[i][1]], self.summed(i), 1)
        else:
            size = self.core.emit(PARTITION, 2, self.draw(i), self.sums[i], self.results[i])
            self.sizes[i] = (self.sizes[i][0], size)

    def decode(self, i: int) -> None:
        """What a worker does with that."""
        result = self.results[i][: self.sizes[i][1]]
        self.core.decode(result, 2, self.draw(i), self.agreed[i], 0.5, self.out)

    def summed(self, i: int) -> Bytes:
        """The accumulator of a DENSE payload."""
        assert self.dense is not None
        return self.sums[i][: self.sizes[i][0] // self.dense.itemsize * self.dense.accumulator.itemsize]

    def sent(self, i: int) -> Bytes:
        """The payload."""
        return self.payloads[i][: self.sizes[i][0]]

    def times(self) -> dict[str, float]:
        """Seconds of each stage."""
        count = len(self.x)
        found = {"encode": seconds(self.encode, count)}
        if self.codec.trait is Trait.OPAQUE:
            self.results = self.payloads
        else:
            seconds(self.reset, count)
            found |= {"accumulate": seconds(self.accumulate, count), "emit": seconds(self.emit, count)}
        return found | {"decode": seconds(self.decode, count)}

    def bits(self) -> tuple[float, float]:
        """Per element, up and down, after a round."""
        up, down = np.sum(list(self.sizes.values()), axis=0) * 8 / self.x.size
        return float(up), float(down)


def measure(name: str, options: argparse.Namespace, yardsticks: Yardsticks) -> dict[str, Any]:
    """The row of one codec."""
    codec = codec_of(name)
    subject = Subject(codec, arena(options.megabytes, codec.name in SPARSE), options.world)
    subject.times()
    turns = [yardsticks.times() | subject.times() for _ in range(options.repeats)]
    up, down = subject.bits()
    row: dict[str, Any] = {"codec": name, "spec": codec.spec(), "trait": codec.trait.name, "up": up, "down": down}
    for stage in turns[0]:
        rates = [subject.x.size / turn[stage] for turn in turns]
        row[f"{stage}_elements_per_second"] = Spread.of(rates).median
        row[f"{stage}_spread"] = Spread.of(rates).relative
    moved = {"encode": 4 + up / 8, "decode": 4 + down / 8}
    for stage, nbytes in moved.items():
        row[f"{stage}_of_stream"] = ratio(turns, "stream", stage) * nbytes / 12
        row[f"{stage}_of_bf16"] = ratio(turns, "bf16", stage)
    row["encode_of_reading"] = ratio(turns, "read", "encode")
    if "accumulate" in turns[0]:
        row["accumulate_of_sum"] = ratio(turns, "sum", "accumulate")
    return row


def ratio(turns: list[dict[str, float]], yardstick: str, stage: str) -> float:
    """How many times as fast as the yardstick, in elements."""
    return statistics.median(turn[yardstick] / turn[stage] for turn in turns)


def show(row: dict[str, Any]) -> tuple[str, ...]:
    def rate(stage: str) -> str:
        key = f"{stage}_elements_per_second"
        return f"{4e-9 * row[key]:.1f}" if key in row else "-"

    def share(key: str) -> str:
        return f"{row[key]:.2f}" if key in row else "-"

    return (
        row["codec"], row["trait"].lower(), f"{row['up']:.2f}/{row['down']:.2f}", rate("encode"),
        share("encode_of_stream"), share("encode_of_reading"), share("encode_of_bf16"), rate("accumulate"),
        share("accumulate_of_sum"), rate("emit"), rate("decode"), share("decode_of_stream"),
    )  # fmt: skip


COLUMNS = (
    "codec", "trait", "bits up/down", "encode GB/s", "of stream", "of reading", "of bf16", "accumulate GB/s",
    "of fp32 sum", "emit GB/s", "decode GB/s", "of stream",
)  # fmt: skip


def all_names() -> list[str]:
    """Every codec with its defaults, but a real sketch, then the short names for others."""
    names = [kind.name for kind in CODECS if kind.name in _core.codec_names()]
    defaults = [SKETCH if name == "sketch" else name for name in names]
    return [*defaults, *(name for name, codec in SHORT.items() if codec != type(codec)())]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--codecs", nargs="*", default=all_names(), help="names or texts (all there are)")
    parser.add_argument("--megabytes", type=int, default=64, help="of the arena")
    parser.add_argument("--world", type=int, default=8, help="ranks that codecs are made for")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--instruction-set", default=kernels.instruction_set())
    options = parser.parse_args()
    if not kernels.select_instruction_set(options.instruction_set):
        parser.error(f"this CPU has no {options.instruction_set}")
    yardsticks = Yardsticks(options.megabytes)
    rows = [measure(name, options, yardsticks) for name in options.codecs]
    stream, read, total, cast = (
        statistics.median(row[f"{what}_elements_per_second"] for row in rows) for what in YARDSTICKS
    )
    print(f"a += b streams {12e-9 * stream:.1f} GB/s, reading alone {4e-9 * read:.1f} GB/s; of fp32 "
          f"{4e-9 * total:.1f} GB/s are summed and {4e-9 * cast:.1f} GB/s cast to bf16")  # fmt: skip
    print_table(f"codecs on one core, {options.instruction_set}", COLUMNS, [show(row) for row in rows])
    write_json_lines(OUT / "codecs.jsonl", vars(options), rows)


if __name__ == "__main__":
    main()
