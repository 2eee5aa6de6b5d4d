"""What a small message waits while an all-reduce fills the links: alone, with classes, and queued first in first out.

    python -m bench.collectives.lanes --hosts 4 --rate 1gbit        (root: builds a lab of network namespaces)

Rank 0 sends to rank 1, which sends back; a round trip is timed, and half of it is the row's time. Meanwhile all ranks
run ring all-reduces in the background, two in flight. "fifo" gives the message the class and priority of the
all-reduce, so that age decides. The phases take turns, several times in one run; percentiles are over all of them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from bench import report
from bench.processes import again
from byteps_like.bench import world
from byteps_like.collectives.api import CallOptions, Traffic
from byteps_like.collectives.group import NativeGroup
from byteps_like.dtypes import DType, Op
from byteps_like.launch.lab.hosts import Lab

WAIT, TAG = 60.0, 7
BULK = CallOptions(algorithm="ring", traffic=Traffic.BULK)
PHASES = {"idle": CallOptions(), "classes": CallOptions(), "fifo": CallOptions(traffic=Traffic.BULK)}


class Load:
    """All-reduces in the background, two in flight; the same number on all ranks."""

    def __init__(self, group: NativeGroup, nbytes: int, calls: int) -> None:
        self._group, self._calls = group, calls
        self._buffers = [np.zeros(nbytes // 4, np.float32) for _ in range(2)]
        self.seconds = 0.0
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        flights, start = [], time.perf_counter()
        for call in range(self._calls):
            buffer = self._buffers[call % 2]
            if call >= 2:
                flights[call - 2].wait(WAIT)
            address = buffer.ctypes.data
            flights.append(self._group.all_reduce(address, address, buffer.size, DType.FLOAT32, Op.SUM, BULK))
        for flight in flights[-2:]:
            flight.wait(WAIT)
        self.seconds = time.perf_counter() - start


def ping(group: NativeGroup, nbytes: int, options: CallOptions, pause: float, goes_on: Any) -> list[float]:
    """Round trips of rank 0 until `goes_on` is false; the first byte of the last message says so."""
    out, back = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    times: list[float] = []
    while True:
        out[0] = not goes_on(len(times))
        start = time.perf_counter()
        receiving = group.receive(back.ctypes.data, nbytes, 1, TAG, options)
        group.send(out.ctypes.data, nbytes, 1, TAG, options)
        receiving.wait(WAIT)
        times.append(time.perf_counter() - start)
        if out[0]:
            return times
        time.sleep(pause)


def pong(group: NativeGroup, nbytes: int, options: CallOptions) -> None:
    """Rank 1's part."""
    data = np.zeros(nbytes, np.uint8)
    while True:
        group.receive(data.ctypes.data, nbytes, 0, TAG, options).wait(WAIT)
        group.send(data.ctypes.data, nbytes, 0, TAG, options).wait(WAIT)
        if data[0]:
            return


def rank(arguments: argparse.Namespace) -> None:
    """What each rank does in all phases."""
    found = []
    with world.join() as (here, ranks):
        everybody, small = ranks.group("load"), ranks.group("small")
        for turn in range(arguments.turns + 1):
            for name, options in PHASES.items():
                everybody.barrier().wait(WAIT)
                load = Load(everybody, arguments.load, arguments.calls if name != "idle" else 0)
                load.thread.start()
                times = []
                if here.rank == 0:
                    few = (lambda n: n < arguments.least) if name == "idle" else lambda _, at=load: at.thread.is_alive()
                    times = ping(small, arguments.size, options, arguments.pause, few)
                elif here.rank == 1:
                    pong(small, arguments.size, options)
                load.thread.join()
                if turn:  # the first makes links and programs
                    found.append({"phase": name, "times": times, "load": load.seconds})
        here.save(found)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", type=int, default=64 << 10, help="bytes of the small message")
    parser.add_argument("--load", type=int, default=16 << 20, help="bytes of an all-reduce in the background")
    parser.add_argument("--calls", type=int, default=8, help="all-reduces in a phase")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--least", type=int, default=150, help="round trips while nothing else runs")
    parser.add_argument("--pause", type=float, default=0.005, help="seconds between round trips")
    parser.add_argument("--json", type=Path, default=report.OUT / "lanes.jsonl")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per phase."""
    with tempfile.TemporaryDirectory(prefix="lanes-") as folder, Lab(arguments.hosts, rate=arguments.rate) as lab:
        goodput = max(lab.goodput() for _ in range(3))
        world.run(again(), arguments.hosts, Path(folder), lab, 300)
        found: list[Any] = world.results(Path(folder), arguments.hosts)
    moved = 2 * (arguments.hosts - 1) / arguments.hosts * arguments.load * arguments.calls
    rows = []
    for name in PHASES:
        times = sorted(half / 2 for phase in found[0] if phase["phase"] == name for half in phase["times"])
        loads = [phase["load"] for phase in found[0] if phase["phase"] == name]
        rows.append({
            "bench": "lanes", "phase": name, "bytes": arguments.size, "count": len(times),
            "p50": times[len(times) // 2], "p99": times[int(len(times) * 0.99)], "goodput": goodput,
            "load_rate": moved / statistics.median(loads) / goodput if name != "idle" else 0.0,
            "machine_load": os.getloadavg()[0],
        })  # fmt: skip
    return rows


def show(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    idle = rows[0]
    cells = [
        (row["phase"], str(row["count"]), report.show_time(row["p50"]), f"{row['p50'] / idle['p50']:.2f}",
         report.show_time(row["p99"]), f"{row['p99'] / idle['p99']:.2f}", f"{row['load_rate']:.2f}")
        for row in rows
    ]  # fmt: skip
    title = f"{report.show_bytes(arguments.size)} one way, {arguments.hosts} hosts at {arguments.rate}"
    title += f", machine load {idle['machine_load']:.1f}"
    report.print_table(title, ("phase", "messages", "p50", "to idle", "p99", "to idle", "all-reduce to line"), cells)


def main() -> None:
    arguments = parse_arguments()
    if "BENCH_RANK" in os.environ:
        return rank(arguments)
    rows = measure(arguments)
    show(arguments, rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    return None


if __name__ == "__main__":
    main()
