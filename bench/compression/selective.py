"""compression="auto" on links of several rates and on one host: what it takes, and what steps take with and without it.

    python -m bench.compression.selective        2 workers, 2 servers at 100 Mb/s, 1 Gb/s, and all on one host (root)

The GPT of the examples. One job per rate trains it raw and with "auto" by turns; a row has the median of the steps
after the probe, and how long the optimizer took to be made, which is when "auto" measures. Leaves
out/selective.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import byteps_like.torch as bps
from bench import report
from bench.compression.training import gpt
from bench.processes import again
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job
from byteps_like.tuner.probe import PACE

HOST = "host"
"""In place of a rate: no lab."""
PROBED = 1 + PACE.trials * (PACE.discard + PACE.measure)
CONTENDERS: dict[str, Any] = {"raw": None, "auto": "auto"}


def train(name: str, steps: int) -> dict[str, Any]:
    """Seconds of this rank's steps, and what it trained with."""
    model, plain, next_loss = gpt(0)
    begin = time.perf_counter()
    optimizer = bps.DistributedOptimizer(plain, list(model.named_parameters()), compression=CONTENDERS[name])
    made, seconds = time.perf_counter() - begin, []
    for _ in range(PROBED + steps):
        begin = time.perf_counter()
        optimizer.zero_grad()
        next_loss().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - begin)
    told = "; ".join(f"{one.codec}, {one.raw or 'stays'}" for one in optimizer.compression_report()) or "raw"
    optimizer.close()
    return {"contender": name, "seconds": seconds[PROBED:], "made": made, "told": told}


def rank(arguments: argparse.Namespace) -> None:
    """What each worker does."""
    torch.set_num_threads(1)
    bps.init()
    found = [train(name, arguments.steps) for _ in range(arguments.turns) for name in CONTENDERS]
    Path(arguments.folder, f"rank{bps.rank()}.json").write_text(json.dumps(found))
    bps.shutdown()


def measure(arguments: argparse.Namespace, rate: str) -> list[dict[str, Any]]:
    """A row per contender: all its turns together, of rank 0."""
    with tempfile.TemporaryDirectory(prefix="selective-") as folder:
        command = again("--folder", folder)
        options = RunOptions(command, arguments.workers, arguments.servers, timeout=arguments.timeout)
        if rate == HOST:
            code = run_job(options)
        else:
            with Lab(arguments.workers + arguments.servers, rate=rate) as lab:
                code = run_in_lab(lab, options)
        if code:
            sys.exit(code)
        turns = json.loads(Path(folder, "rank0.json").read_text())
    rows = []
    for name in CONTENDERS:
        own = [turn for turn in turns if turn["contender"] == name]
        seconds = [second for turn in own for second in turn["seconds"]]
        quarters = statistics.quantiles(seconds, n=4)
        rows.append({"bench": "selective", "rate": rate, "contender": name, "median": quarters[1],
                     "quartiles": [quarters[0], quarters[2]], "made": own[0]["made"],
                     "told": [turn["told"] for turn in own]})  # fmt: skip
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2, help="on hosts of their own in the lab")
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", HOST])
    parser.add_argument("--steps", type=int, default=20, help="that count, after the probe's")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300.0)
    parser.add_argument("--json", type=Path, default=report.OUT / "selective.jsonl")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.folder:
        return rank(arguments)
    rows = [row for rate in arguments.rates for row in measure(arguments, rate)]
    lines = [
        (row["rate"], row["contender"], report.show_time(row["median"]), report.show_time(row["made"]), *row["told"])
        for row in rows
    ]
    title = f"{arguments.workers} workers, {arguments.servers} servers"
    report.print_table(title, ("rate", "compression", "step", "made in", *["turn"] * arguments.turns), lines)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    return None


if __name__ == "__main__":
    main()
