"""The planner's predictions against the lab: random configurations, each predicted first and measured then (root).

    python -m bench.plan.validation --calibrate            the goodput of the lines, once
    python -m bench.plan.validation --from 0 --to 15       in parts: results are appended to out/plan_validation.jsonl
    python -m bench.plan.validation --table                what has been found so far

A configuration is drawn from its number alone. Every worker and every server is on a host of its own. What is measured
is the time from one step's backward to the next one's, the median over the steps, on rank 0; compute is slept.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from bench import report
from bench.processes import module
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from byteps_like.planner import workloads
from byteps_like.planner.cluster import Cluster, ClusterCosts, SendOrder, Settings
from byteps_like.planner.predict import Prediction, predict
from byteps_like.planner.workload import Layer, Workload

RATES = (100, 200, 400, 700, 1000)
CALIBRATION = report.OUT / "plan_calibration.json"
MEASURED, WARM_UP = 6, 2
PROCESSOR = {1000: 1.6e-9, 700: 3e-9}
"""Line's rate -> seconds of a core for each byte that a worker moves, kernel and runtime; below OF_SINGLE_PACKETS."""
OF_SINGLE_PACKETS = 9e-9
"""Below 500 Mb/s, when the lab's buckets still cut packets (decision 0032). Now it is less, but the configurations are
those of docs/how-to/planner.md."""
MOST_PROCESSOR = 0.82
COLUMNS = (
    "n", "k", "Mb/s", "slowest", "model", "MB", "comm/comp", "partition", "order", "barrier", "predicted", "measured",
    "error", "processor", "others'",
)  # fmt: skip
COSTS = ClusterCosts(latency=100e-6, frame=0.0, launch=60e-6, sum_rate=1.5e9, memory_rate=4e9)
"""Of the lab's machine. Nothing here is fitted to the configurations: the wire is what limits them."""


@dataclass(frozen=True)
class Configuration:
    """What is measured. Rates in Mb/s; `ratio`: one way of all bytes over the line, by the compute; 0: no compute."""

    number: int
    workers: int
    servers: int
    rate: int
    slow_rate: int
    model: str
    nbytes: int
    ratio: float
    partition_bytes: int
    priorities: bool
    barrier: bool

    @classmethod
    def draw(cls, number: int) -> Configuration:
        """The same for the same number: the first that the machine's processor can carry."""
        dice = random.Random(f"plan validation {number}")
        while True:
            found = cls._draw(number, dice)
            if found.processor <= MOST_PROCESSOR:
                return found

    @classmethod
    def _draw(cls, number: int, dice: random.Random) -> Configuration:
        rate = dice.choice(RATES)
        slow = dice.choice(RATES[: RATES.index(rate) + 1]) if dice.random() < 0.3 else rate
        seconds = dice.uniform(0.15, 0.5)
        return cls(
            number=number,
            workers=dice.randint(2, 4),
            servers=dice.randint(0, 4),
            rate=rate,
            slow_rate=slow,
            model=dice.choice(["sum", *workloads.names()]),
            nbytes=int(seconds * slow * 1e6 / 8),
            ratio=dice.choice([0.5, 1.0, 2.0]),
            partition_bytes=dice.choice([128, 256, 512, 1024, 2048, 4096]) << 10,
            priorities=dice.random() < 0.6,
            barrier=dice.random() < 0.6,
        )

    @property
    def processor(self) -> float:
        """About the share of two cores that the hosts' packets take, if the slowest line is always busy."""
        moved = 2.0 if self.servers else 2 * (self.workers - 1) / self.workers
        rate = self.slow_rate * 1e6 / 8 * min(1.0, (self.servers or self.workers) / self.workers)
        return self.workers * moved * rate * PROCESSOR.get(self.rate, OF_SINGLE_PACKETS) / 2

    def workload(self, goodput: dict[int, float]) -> Workload:
        """What a worker does in a step."""
        if self.model == "sum":
            return Workload("sum", (Layer("all", (("w", (self.nbytes // 4,)),), 0.0, 0.0),), 1, "sums")
        scaled = workloads.load(self.model).scaled(total_bytes=self.nbytes)
        return scaled.scaled(compute_seconds=self.nbytes / goodput[self.slow_rate] / self.ratio)

    def cluster(self, goodput: dict[int, float]) -> Cluster:
        """Worker 0 has the slow line."""
        rates = [goodput[rate] for rate in self.rates]
        return Cluster(self.workers, self.servers, rates=tuple(rates), shards=1, costs=COSTS)

    @property
    def rates(self) -> list[int]:
        """Of each host, in Mb/s."""
        return [self.slow_rate, *[self.rate] * (self.workers + self.servers - 1)]

    @property
    def settings(self) -> Settings:
        """As the ranks have them."""
        order = SendOrder.PRIORITY if self.priorities else SendOrder.FIFO
        return Settings(partition_bytes=self.partition_bytes, order=order, barrier=self.barrier)


def predicted(configuration: Configuration, goodput: dict[int, float]) -> Prediction:
    return predict(configuration.cluster(goodput), configuration.workload(goodput), configuration.settings, exact=True)


def measured(configuration: Configuration, goodput: dict[int, float]) -> report.Spread:
    """Runs the job in a lab of its own."""
    rates = [f"{rate}mbit" for rate in configuration.rates]
    with tempfile.TemporaryDirectory(prefix="plan-") as folder, Lab(len(rates), rate=rates) as lab:
        workload = Path(folder) / "workload.json"
        configuration.workload(goodput).save(workload)
        plan = Path(folder) / "plan.json"
        told = {"workload": str(workload), "folder": folder, "steps": WARM_UP + MEASURED + 1}
        plan.write_text(json.dumps({**told, **asdict(configuration)}), encoding="utf-8")
        command = module("bench.plan.validation_worker", str(plan))
        environment = {"BYTEPS_LIKE_PARTITION_BYTES": str(configuration.partition_bytes), "OMP_NUM_THREADS": "1"}
        options = RunOptions(
            command, configuration.workers, configuration.servers, quiet=True, environment=environment, timeout=90.0
        )
        if code := run_in_lab(lab, options):
            sys.exit(code)
        ends = json.loads((Path(folder) / "rank0.json").read_text(encoding="utf-8"))
    times = [after - before for before, after in pairwise(ends)]
    return report.Spread.of(times[WARM_UP:])


class Processor:
    """Who had the processor meanwhile: `own` are the processes of the job, `others` everybody else; of all cores."""

    def __init__(self) -> None:
        self._busy, self._own, self._start = self._now()

    def shares(self) -> tuple[float, float]:
        """Since it was made."""
        busy, own, end = (
            after - before for after, before in zip(self._now(), (self._busy, self._own, self._start), strict=True)
        )
        whole = end * report.cores()
        return own / whole, max(0.0, busy - own) / whole

    @staticmethod
    def _now() -> tuple[float, float, float]:
        times = psutil.cpu_times()
        mine = [resource.getrusage(who) for who in (resource.RUSAGE_CHILDREN, resource.RUSAGE_SELF)]
        own = sum(one.ru_utime + one.ru_stime for one in mine)
        return (
            times.user + times.nice + times.system + times.softirq + times.irq + times.steal,
            own,
            time.perf_counter(),
        )


def calibrate() -> dict[int, float]:
    """Goodput of a line of each rate, in bytes per second; the best of two."""
    found = {}
    for rate in RATES:
        with Lab(2, rate=f"{rate}mbit") as lab:
            found[rate] = max(lab.goodput(seconds=0.8) for _ in range(2))
            print(f"{rate} Mb/s: {found[rate] / 1e6:.2f} MB/s of payload, {found[rate] * 8e-6 / rate:.4f} of the line")
    CALIBRATION.parent.mkdir(parents=True, exist_ok=True)
    CALIBRATION.write_text(json.dumps(found), encoding="utf-8")
    return found


def rows(path: Path) -> list[dict[str, Any]]:
    """The newest result of each configuration."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return sorted({row["number"]: row for row in map(json.loads, lines)}.values(), key=lambda row: row["number"])


def show(found: list[dict[str, Any]]) -> None:
    report.print_table("predicted and measured", COLUMNS, map(_cells, found))
    errors = [abs(row["predicted"] / row["seconds"] - 1) for row in found]
    within = sum(error <= 0.15 for error in errors)
    print(f"within 15 %: {within} of {len(found)}; median error {statistics.median(errors) * 100:.1f} %,"
          f" largest {max(errors) * 100:.1f} %")  # fmt: skip


def plot(path: Path, found: list[dict[str, Any]]) -> None:
    """Predicted over measured, by route."""
    series = {}
    for name, served in (("all-reduce", False), ("servers", True)):
        rows = [row for row in found if (row["servers"] > 0) is served]
        series[name] = ([row["seconds"] for row in rows], [row["predicted"] for row in rows])
    title = f"{len(found)} random configurations in the lab"
    report.plot_points(path, title, ("measured seconds per step", "predicted seconds per step"), series)


def markdown(found: list[dict[str, Any]]) -> str:
    """The table for the documentation."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    return "\n".join([*lines, *("| " + " | ".join(_cells(row)) + " |" for row in found)])


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        str(row["workers"]), str(row["servers"] or "ring"), str(row["rate"]), str(row["slow_rate"]), row["model"],
        f"{row['nbytes'] / 1e6:.1f}", "" if row["model"] == "sum" else f"{row['ratio']:g}",
        report.show_bytes(row["partition_bytes"]), "priority" if row["priorities"] else "fifo",
        "yes" if row["barrier"] else "crossed", report.show_time(row["predicted"]), report.show_time(row["seconds"]),
        f"{(row['predicted'] / row['seconds'] - 1) * 100:+.1f} %", f"{row['own'] * 100:.0f} %",
        f"{row['others'] * 100:.0f} %",
    )  # fmt: skip


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--to", dest="end", type=int, default=30)
    parser.add_argument("--calibrate", action="store_true", help="measure the lines, and nothing else")
    parser.add_argument("--table", action="store_true", help="show what has been found, and nothing else")
    parser.add_argument("--markdown", action="store_true", help="the same for the documentation, and a plot beside it")
    parser.add_argument("--predict", action="store_true", help="predict, and measure nothing")
    parser.add_argument("--json", type=Path, default=report.OUT / "plan_validation.jsonl")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.table or arguments.markdown:
        found = rows(arguments.json)
        if arguments.markdown:
            plot(arguments.json.with_suffix(".png"), found)
            print(markdown(found))
        return show(found)
    if arguments.calibrate or not CALIBRATION.exists():
        calibrate()
    goodput = {int(rate): value for rate, value in json.loads(CALIBRATION.read_text(encoding="utf-8")).items()}
    for number in range(arguments.first, arguments.end if not arguments.calibrate else arguments.first):
        configuration = Configuration.draw(number)
        expected = predicted(configuration, goodput)
        print(f"{configuration}: {expected.step * 1e3:.1f} ms, {expected.bottleneck}", flush=True)
        if arguments.predict:
            continue
        processor = Processor()
        spread = measured(configuration, goodput)
        own, others = processor.shares()
        error = f"{(expected.step / spread.median - 1) * 100:+.1f} %"
        print(
            f"  measured {report.show_spread(spread)}: {error}; processor: own {own:.2f}, others {others:.2f}",
            flush=True,
        )
        found = {"seconds": spread.median, "low": spread.low, "high": spread.high, "own": own, "others": others}
        row = {**asdict(configuration), "predicted": expected.step, "bottleneck": expected.bottleneck, **found}
        report.write_json_lines(arguments.json, {}, [row])
    return None


if __name__ == "__main__":
    main()
