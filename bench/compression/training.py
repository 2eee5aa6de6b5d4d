"""Training with codecs: loss against steps and against time, on a lab of shaped links, several seeds.

    python -m bench.compression.training                          2 workers, 2 servers at 200 Mb/s (root)

The GPT of the examples (AdamW) and their CNN on digits (SGD with momentum), each from the same weights on the same
batches with every codec. The final loss is the mean of the last tenth of the steps and over ranks; `apart` is how far
it lies from that of exact sums, and what two standard deviations of exact's seeds allow beside 1 %. Leaves
out/compression_training.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

import byteps_like.torch as bps
from bench import report
from bench.processes import again
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from examples._gpt import CHARACTERS, GPT

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import digits  # which imports what is beside it by bare names

EXACT = "exact"
CONTENDERS: dict[str, Any] = {
    EXACT: None,
    "bf16": "bf16",
    "thc4": "thc4",
    "int8": "int8",
    "onebit": "onebit",
    "topk 1 %": "topk:ratio=0.01",
    "powersgd": bps.Compression.powersgd(4),
    "blocksparse": "blocksparse",
}
WINDOW, BATCH = 64, 8
Losses = Callable[[], torch.Tensor]
"""The loss of the next batch of this rank."""


def gpt(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Losses]:
    """Model, optimizer, losses."""
    torch.manual_seed(seed)
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    corpus = torch.tensor(list(b"".join(module.read_bytes() for module in modules)), dtype=torch.uint8) % CHARACTERS
    model = GPT(WINDOW, 128)
    own = torch.Generator().manual_seed(1000 * seed + bps.rank())

    def loss() -> torch.Tensor:
        starts = torch.randint(len(corpus) - WINDOW - 1, (BATCH,), generator=own)
        windows = torch.stack([corpus[start : start + WINDOW + 1] for start in starts]).long()
        return functional.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    return model, torch.optim.AdamW(model.parameters(), lr=2e-3), loss


def cnn(seed: int) -> tuple[nn.Module, torch.optim.Optimizer, Losses]:
    """Model, optimizer, losses."""
    torch.manual_seed(seed)
    images, _, labels, _ = (part.float() if part.is_floating_point() else part for part in digits.data())
    model = digits.network()
    own = torch.Generator().manual_seed(1000 * seed + bps.rank())

    def loss() -> torch.Tensor:
        batch = torch.randint(len(images), (32,), generator=own)
        return functional.cross_entropy(model(images[batch]), labels[batch])

    return model, torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9), loss


TASKS = {"gpt": gpt, "digits": cnn}


def train(task: str, name: str, seed: int, steps: int) -> dict[str, Any]:
    """Losses of this rank, and when each step had ended, in seconds from the first."""
    model, plain, next_loss = TASKS[task](seed)
    more = {} if name == EXACT else {"compression": CONTENDERS[name]}
    optimizer = bps.DistributedOptimizer(plain, named_parameters=list(model.named_parameters()), **more)
    losses, ends = [], []
    begin = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = next_loss()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        ends.append(time.perf_counter() - begin)
    optimizer.close()
    return {"task": task, "contender": name, "seed": seed, "losses": losses, "ends": ends}


def rank(arguments: argparse.Namespace) -> None:
    """What each worker does."""
    torch.set_num_threads(1)
    bps.init()
    found = [
        train(task, name, seed, arguments.steps)
        for task in arguments.tasks
        for seed in range(arguments.seeds)
        for name in CONTENDERS
    ]
    Path(arguments.folder, f"rank{bps.rank()}.json").write_text(json.dumps(found))
    bps.shutdown()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per task, contender and seed; losses are means over the ranks."""
    with tempfile.TemporaryDirectory(prefix="codecs-") as folder:
        with Lab(arguments.workers + arguments.servers, rate=arguments.rate) as lab:
            command = again("--folder", folder)
            options = RunOptions(command, arguments.workers, arguments.servers, timeout=arguments.timeout)
            if code := run_in_lab(lab, options):
                sys.exit(code)
        ranks = [json.loads(Path(folder, f"rank{number}.json").read_text()) for number in range(arguments.workers)]
    rows = []
    for turns in zip(*ranks, strict=True):
        losses = [statistics.mean(values) for values in zip(*(one["losses"] for one in turns), strict=True)]
        last = losses[-max(1, len(losses) // 10) :]
        rows.append({"bench": "compression_training", **turns[0], "losses": losses, "final": statistics.mean(last)})
    return rows


def summary(rows: list[dict[str, Any]], task: str) -> list[tuple[str, ...]]:
    """A line per contender: final loss over seeds, distance from exact, what is allowed, time of a step."""
    finals = {
        name: [row["final"] for row in rows if (row["task"], row["contender"]) == (task, name)] for name in CONTENDERS
    }
    exact = statistics.mean(finals[EXACT])
    allowed = 0.01 * exact + 2 * (statistics.stdev(finals[EXACT]) if len(finals[EXACT]) > 1 else 0.0)
    lines = []
    for name, values in finals.items():
        ends = [row["ends"] for row in rows if (row["task"], row["contender"]) == (task, name)]
        step = statistics.median((end[-1] - end[0]) / (len(end) - 1) for end in ends)
        mean = statistics.mean(values)
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        verdict = "yes" if mean - exact <= allowed else "no"
        lines.append((name, f"{mean:.4f} ± {spread:.4f}", f"{mean - exact:+.4f}", f"{allowed:.4f}", verdict,
                      report.show_time(step)))  # fmt: skip
    return lines


def draw(path: Path, rows: list[dict[str, Any]], title: str) -> None:
    """Losses of seed 0, smoothed, over steps and over time: one row of pictures per task."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = pyplot.subplots(len(tasks), 2, figsize=(11, 4 * len(tasks)), squeeze=False)
    for row in rows:
        if row["seed"]:
            continue
        span = 10
        smooth = [statistics.mean(row["losses"][max(0, at - span) : at + 1]) for at in range(len(row["losses"]))]
        line = tasks.index(row["task"])
        axes[line][0].plot(range(1, len(smooth) + 1), smooth, label=row["contender"])
        axes[line][1].plot(row["ends"], smooth, label=row["contender"])
        axes[line][0].set(title=f"{row['task']}, by step", xlabel="step", ylabel="loss")
        axes[line][1].set(title=f"{row['task']}, by time", xlabel="seconds")
    axes[0][0].legend()
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=2, help="on hosts of their own")
    parser.add_argument("--rate", default="200mbit", help="speed of the links of the lab")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=1200.0)
    parser.add_argument("--json", type=Path, default=report.OUT / "compression_training.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "compression_training.png")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.folder:
        return rank(arguments)
    rows = measure(arguments)
    title = f"{arguments.workers} workers, {arguments.servers} servers at {arguments.rate}"
    columns = ("codec", "final loss", "apart", "allowed", "within", "step")
    for task in arguments.tasks:
        report.print_table(f"{task}: {title}, {arguments.seeds} seeds", columns, summary(rows, task))
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    draw(arguments.plot, rows, title)
    print(f"wrote {arguments.json} and {arguments.plot}")
    return None


if __name__ == "__main__":
    main()
