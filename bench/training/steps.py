"""Training steps of published models' shapes on a lab of shaped links, in each contender's way, side by side.

    python -m bench.training.steps --rate 100mbit                              4 workers, 4 spare servers (root)
    python -m bench.training.steps --models vgg16 --contenders "gloo DDP" "servers cross-barrier"

True layer sizes, scaled to `--megabytes`; compute is emulated by sleeping as long as the layers' FLOPs say, for as
long in all as the gradients take one way over a link: `--ratio` is communication to compute. Contenders take turns in
one job, and their weights are checked. Leaves out/training.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import module
from bench.training.steps_plan import CONTENDERS, PLAIN, Measured, Plan
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions

MODELS = ["vgg16", "resnet50", "bert-base", "gpt2"]
DDP_BUCKET_MB = 25.0
BASE = "gloo DDP"
USUAL = [name for name in CONTENDERS if "deferred" not in name and "," not in name]  # searches and variants take long


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=4, help="on hosts of their own")
    parser.add_argument("--rate", default="100mbit", help="speed of the links of the lab")
    parser.add_argument("--ratio", type=float, default=1.0, help="communication (one way) to compute")
    parser.add_argument("--megabytes", type=float, default=16.0, help="gradients of a step, scaled")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=USUAL)
    parser.add_argument("--partition-bytes", type=int, default=1 << 17)
    parser.add_argument("--credit-bytes", type=int, default=1 << 16)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="of a contender's turn")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1200.0)
    parser.add_argument("--json", type=Path, default=report.OUT / "training.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "training.png")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per model and contender."""
    hosts = arguments.workers + arguments.servers
    with tempfile.TemporaryDirectory(prefix="training-") as folder, Lab(hosts, rate=arguments.rate) as lab:
        goodput = statistics.median(lab.goodput() for _ in range(3))
        plan = plan_for(arguments, goodput, folder, plain_servers(lab, arguments))
        command = module("bench.training.steps_worker", str(plan.save()))
        environment = {
            "BYTEPS_LIKE_PARTITION_BYTES": str(arguments.partition_bytes),
            "BYTEPS_LIKE_CREDIT_BYTES": str(arguments.credit_bytes),
        }
        options = RunOptions(
            command, arguments.workers, arguments.servers, environment=environment, timeout=arguments.timeout
        )
        if code := run_in_lab(lab, options):
            sys.exit(code)
        ranks = [_read(Path(folder) / f"rank{rank}.jsonl") for rank in range(arguments.workers)]
    return rows(plan, goodput, ranks, arguments.workers)


def plain_servers(lab: Lab, arguments: argparse.Namespace) -> list[str]:
    """Starts them beside the servers, where they wait for their turn; their addresses."""
    if PLAIN not in arguments.contenders:
        return []
    started = [
        (host.address, host.popen(
            module("bench.training.plain_servers", host.address, str(arguments.workers)),
            stdout=subprocess.PIPE, text=True,
        )) for host in lab.hosts[arguments.workers :]
    ]  # fmt: skip
    return [f"{address}:{process.stdout.readline().strip()}" for address, process in started]


def plan_for(arguments: argparse.Namespace, goodput: float, folder: str, plain: list[str]) -> Plan:
    """DDP's buckets are scaled with the model, so that there are as many as in the true one."""
    total = int(arguments.megabytes * 1e6)
    return Plan(
        models=arguments.models, contenders=arguments.contenders, total_bytes=total,
        seconds=total / goodput / arguments.ratio, bucket_mb=max(1.0, DDP_BUCKET_MB * arguments.megabytes / 500),
        warm_up=arguments.warm_up, steps=arguments.steps, rounds=arguments.rounds, folder=folder, plain=plain,
    )  # fmt: skip


def _read(path: Path) -> list[Measured]:
    return [Measured(**json.loads(line)) for line in path.read_text().splitlines()]


def rows(plan: Plan, goodput: float, ranks: list[list[Measured]], workers: int) -> list[dict[str, Any]]:
    """A turn lasts as long as on its slowest rank; of the turns, the median."""
    turns: dict[tuple[str, str], list[float]] = {}
    processor: dict[tuple[str, str], list[float]] = {}
    ks: dict[tuple[str, str], int] = {}
    for turn in zip(*ranks, strict=True):
        key = turn[0].model, turn[0].contender
        turns.setdefault(key, []).append(max(item.seconds for item in turn))
        processor.setdefault(key, []).append(statistics.mean(item.processor for item in turn))
        ks[key] = turn[0].first_k
    found = []
    for (model, contender), seconds in turns.items():
        workload, step = plan.workload(model), statistics.median(seconds)
        found.append({
            "bench": "training", "model": model, "contender": contender, "first_k": ks[model, contender],
            "seconds": step, "low": min(seconds),
            "high": max(seconds), "compute": plan.seconds, "goodput": goodput, "unit": workload.unit,
            "bytes": workload.nbytes, "processor": statistics.median(processor[model, contender]),
            "per_second": workers * workload.batch / step,
        })  # fmt: skip
    return found


def show(arguments: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """A table for each model, with ratios to gloo's DDP, to whole tensors first in, first out, and to partitions so."""
    for model in arguments.models:
        mine = [row for row in found if row["model"] == model]
        times = {row["contender"]: row["seconds"] for row in mine}
        cells = []
        for row in mine:
            name = row["contender"] + (f" k={row['first_k']}" if row["first_k"] >= 0 else "")
            fifo = times.get(f"{row['contender'].partition(' ')[0]} fifo")
            cells.append((
                name, report.show_time(row["seconds"]), f"{row['compute'] / row['seconds']:.2f}",
                f"{row['per_second']:.0f}", f"{times[BASE] / row['seconds']:.2f}" if BASE in times else "",
                f"{times[PLAIN] / row['seconds']:.2f}" if PLAIN in times else "",
                f"{fifo / row['seconds']:.2f}" if fifo else "", report.show_time(row["processor"]),
            ))  # fmt: skip
        title = (
            f"{model}: {mine[0]['bytes'] / 1e6:.0f} MB, compute {mine[0]['compute']:.2f} s, {arguments.workers} workers"
            f" at {arguments.rate}, {arguments.servers} spare servers"
        )
        unit = f"{mine[0]['unit']}/s"
        report.print_table(
            title, ("contender", "step", "compute/step", unit, "vs gloo DDP", "vs plain", "vs fifo", "processor"), cells
        )


def plot(path: Path, found: list[dict[str, Any]]) -> None:
    """Throughput of each contender over that of the first, grouped by model."""
    models = list(dict.fromkeys(row["model"] for row in found))
    contenders = list(dict.fromkeys(row["contender"] for row in found))
    step = {(row["model"], row["contender"]): row["seconds"] for row in found}
    base = contenders[0]
    series = {name: [step[model, base] / step[model, name] for model in models] for name in contenders}
    report.plot_bars(path, "emulated training steps", f"throughput / that of {base}", models, series)


def main() -> None:
    arguments = parse_arguments()
    found = measure(arguments)
    show(arguments, found)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, found)
    plot(arguments.plot, found)
    print(f"wrote {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
