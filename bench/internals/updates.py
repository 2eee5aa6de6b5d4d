"""The updates of store keys against the rate at which this machine streams the same arrays, one thread.

    python -m bench.internals.updates [--megabytes 64] [--repeats 9] [--instruction-set avx2] [--only adam]

The limit is measured in the same run, in turn with each update and on the same memory: a plain loop that adds the
gradient to the value and to each array of state, and so reads and writes what the update does. An update that is as
fast has a ratio of 1; the ratio is the median over the turns. Time is the thread's own. A line per measurement goes to
out/updates.jsonl.
"""

from __future__ import annotations

import argparse
import re
import statistics
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.internals.kernels import Memory, timed
from bench.report import OUT, Spread, interleave, print_table, write_json_lines
from byteps_like._core import Update, kernels, updates
from byteps_like.store.updates.registry import OURS, update_of

TEXTS = [kind.name for kind in OURS]
WIDTH = 64
"""Elements of a row, as in a table of embeddings."""
RANDOM = np.random.default_rng(1)


@dataclass(frozen=True)
class Outcome:
    """Bytes per element, rates in bytes per second, and what share of the limit the update reaches."""

    update: str
    traffic: int
    rate: Spread
    limit: Spread
    ratio: float

    def as_row(self) -> dict[str, Any]:
        """For the JSON lines."""
        return {
            "update": self.update,
            "bytes_per_element": self.traffic,
            "bytes_per_second": self.rate.median,
            "quartiles": [self.rate.low, self.rate.high],
            "limit_bytes_per_second": self.limit.median,
            "ratio": self.ratio,
        }


def measure(name: str, memory: Memory, repeats: int) -> Outcome:
    """State per row is nothing beside the elements: such an update is compared with one without state."""
    for array in memory.floats:
        array[:] = RANDOM.random(array.size, np.float32)  # positive, as squares are
    value, gradient, *slots = memory.floats
    reference, native = update_of(name), Update(update_of(name).spec())
    state = np.concatenate(slots)[: native.state_count(value.size // WIDTH, WIDTH)]
    rows, moved = value.reshape(-1, WIDTH), state if reference.slots else state[:0]
    traffic = 12 + 8 * reference.slots
    times = interleave(
        {
            "update": lambda: timed(lambda: native.apply(rows, state, gradient.reshape(rows.shape), step=3)),
            "limit": lambda: timed(lambda: updates.stream(value, moved, gradient)),
        },
        repeats,
    )
    rates, limits = ([traffic * value.size / t for t in times[key]] for key in ("update", "limit"))
    ratio = statistics.median(rate / limit for rate, limit in zip(rates, limits, strict=True))
    return Outcome(name, traffic, Spread.of(rates), Spread.of(limits), ratio)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=64, help="size of each array")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--instruction-set", default=kernels.instruction_set())
    parser.add_argument("--only", default="", metavar="REGEX", help="updates whose names it finds itself in")
    options = parser.parse_args()
    if not kernels.select_instruction_set(options.instruction_set):
        parser.error(f"this CPU has no {options.instruction_set}")
    memory = Memory(options.megabytes << 20)
    outcomes = [measure(name, memory, options.repeats) for name in TEXTS if re.search(options.only, name)]
    print_table(
        f"updates of fp32: {options.megabytes} MB arrays, one thread, {options.instruction_set}",
        ("update", "B/element", "GB/s", "limit GB/s", "ratio"),
        [(o.update, str(o.traffic), f"{o.rate.median / 1e9:.1f}", f"{o.limit.median / 1e9:.1f}", f"{o.ratio:.2f}")
         for o in outcomes],
    )  # fmt: skip
    write_json_lines(OUT / "updates.jsonl", vars(options), [outcome.as_row() for outcome in outcomes])


if __name__ == "__main__":
    main()
