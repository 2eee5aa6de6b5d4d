"""The live tuner against a grid, in one training run on the lab: how near its best comes to the grid's.

    python -m bench.plan.tuner --workers 4 --servers 2 --rate 1gbit         (root; --servers 0: among the workers only)

One run of an emulated model (true layer sizes, scaled; compute is sleeping): each point of a grid for a few steps, then
the tuner's trials, each step timed by rank 0; then the best of both in turn, several times. All without a restart, and
the weights at the end are checked to the bit. Leaves out/tuner.jsonl, and the tuner's own out/tuned.json and PNG.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import report
from bench.plan.tuner_worker import Plan
from bench.processes import module
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from byteps_like.tuner.log import Log
from byteps_like.tuner.search import Trial
from byteps_like.tuner.setting import Setting


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=2, help="0: allreduce is the only route")
    parser.add_argument("--route", choices=["auto", "server", "allreduce"], default="auto", help="auto: both")
    parser.add_argument("--rate", default="1gbit", help="of every host's link")
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--megabytes", type=float, default=32.0, help="of gradients, to which the model is scaled")
    parser.add_argument("--ratio", type=float, default=1.0, help="time of the bytes on one line to that of compute")
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--measure", type=int, default=3, help="steps that count of each trial")
    parser.add_argument("--turns", type=int, default=3, help="of the comparison at the end")
    parser.add_argument("--json", type=Path, default=report.OUT / "tuner.jsonl")
    parser.add_argument("--saved", type=Path, default=report.OUT / "tuned.json")
    return parser.parse_args()


def measure(arguments: argparse.Namespace) -> tuple[float, dict[str, Log]]:
    """The line's goodput, and the logs of one run."""
    arguments.saved.unlink(missing_ok=True)
    hosts = arguments.workers + arguments.servers
    with Lab(hosts, rate=arguments.rate) as lab, tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        goodput = max(lab.goodput() for _ in range(2))
        total = int(arguments.megabytes * 1e6)
        plan = Plan(
            model=arguments.model, total_bytes=total, seconds=total / goodput / arguments.ratio,
            servers=arguments.servers, route=arguments.route, trials=arguments.trials, measure=arguments.measure,
            turns=arguments.turns,
            folder=folder, saved=str(arguments.saved.resolve()),
        )  # fmt: skip
        path = Path(folder) / "plan.json"
        path.write_text(json.dumps(asdict(plan)))
        command = module("bench.plan.tuner_worker", str(path))
        if code := run_in_lab(lab, RunOptions(command, arguments.workers, arguments.servers, quiet=True)):
            sys.exit(code)
        found = json.loads((Path(folder) / "logs.json").read_text())
    return goodput, {name: Log([_trial(item) for item in trials]) for name, trials in found.items()}


def _trial(item: dict[str, Any]) -> Trial:
    return Trial(Setting(**item["setting"]), tuple(item["seconds"]))


def compare(logs: dict[str, Log]) -> dict[str, Any]:
    """Medians over the turns in which the two bests were measured one after the other."""
    turns = [trial.median for trial in logs["in turn"].trials]
    grid, tuned = statistics.median(turns[::2]), statistics.median(turns[1::2])
    worst = max(trial.median for trial in logs["grid"].trials)
    return {"grid": grid, "tuned": tuned, "ratio": tuned / grid, "worst": worst / grid, "turns": turns}


def main() -> None:
    arguments = parse_arguments()
    goodput, logs = measure(arguments)
    console, found = Console(width=120), compare(logs)
    for name in ("grid", "tuner"):
        console.print(f"{name}, {len(logs[name].trials)} settings")
        console.print(logs[name].table())
    console.print(f"best of the grid: {logs['grid'].best.setting}: {found['grid']:.4f} s per step")
    console.print(f"best of {arguments.trials} trials: {logs['tuner'].best.setting}: {found['tuned']:.4f} s")
    console.print(
        f"tuned / grid in turn: {found['ratio']:.3f}; worst point of the grid / its best: {found['worst']:.2f}"
    )
    config = {name: str(value) for name, value in vars(arguments).items()}
    trials = {name: [trial.as_dict() for trial in log.trials] for name, log in logs.items()}
    report.write_json_lines(arguments.json, config, [{"bench": "tuner", "goodput": goodput, **found, "trials": trials}])


if __name__ == "__main__":
    main()
