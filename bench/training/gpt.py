"""The GPT of examples/gpt.py on a lab of shaped links, against gloo's DDP: tokens per second, and equal losses.

    python -m bench.training.gpt --rate 200mbit                          4 workers, 4 spare servers (root)

Contenders train the same model from the same weights on the same windows, and take turns. Their losses, the mean over
the ranks, are compared step by step. Leaves out/training_gpt.jsonl and a PNG with the loss curves.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn import functional

import byteps_like.torch as bps
from bench import report
from bench.processes import again
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions
from examples._gpt import CHARACTERS, GPT

BASE = "gloo DDP"
CONTENDERS = (BASE, "ring", "servers", "servers cross-barrier")


class Contender:
    """The model, its optimizer and its windows."""

    def __init__(self, name: str, arguments: argparse.Namespace, corpus: torch.Tensor) -> None:
        self.name, self.losses, self.seconds = name, [], []
        self._arguments, self._corpus = arguments, corpus
        self._windows = torch.Generator().manual_seed(dist.get_rank())
        torch.manual_seed(0)
        self._model: torch.nn.Module = GPT(arguments.window, arguments.width)
        plain: Any = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        if name == BASE:
            self._model, self._optimizer = torch.nn.parallel.DistributedDataParallel(self._model), plain
        else:
            route, _, crosses = name.partition(" ")
            more = {"cross_barrier": True, "model": self._model} if crosses else {}
            named = list(self._model.named_parameters())
            route = "allreduce" if route == "ring" else "server"
            self._optimizer = bps.DistributedOptimizer(plain, named, route=route, **more)

    def run(self, steps: int) -> None:
        """So many steps; the first is not timed."""
        for step in range(steps):
            if step == 1:
                start = time.perf_counter()
            self._step()
        self.seconds.append((time.perf_counter() - start) / (steps - 1))

    def _step(self) -> None:
        window, batch = self._arguments.window, self._arguments.batch
        starts = torch.randint(len(self._corpus) - window - 1, (batch,), generator=self._windows)
        windows = torch.stack([self._corpus[start : start + window + 1] for start in starts]).long()
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())


def rank(arguments: argparse.Namespace) -> None:
    """What each worker does."""
    number, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{arguments.folder}/meet", rank=number, world_size=size)
    bps.init()
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    corpus = torch.tensor(list(b"".join(module.read_bytes() for module in modules)), dtype=torch.uint8) % CHARACTERS
    contenders = [Contender(name, arguments, corpus) for name in CONTENDERS]
    for _ in range(arguments.rounds):
        for contender in contenders:
            dist.barrier()
            contender.run(arguments.steps)
    found = []
    for contender in contenders:
        losses = torch.tensor(contender.losses, dtype=torch.float64)
        dist.all_reduce(losses)
        found.append({"name": contender.name, "losses": (losses / size).tolist(), "seconds": contender.seconds})
    Path(arguments.folder, f"rank{number}.json").write_text(json.dumps(found))
    bps.shutdown()
    dist.destroy_process_group()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per contender."""
    with tempfile.TemporaryDirectory(prefix="gpt-") as folder:
        with Lab(arguments.workers + arguments.servers, rate=arguments.rate) as lab:
            command = again("--folder", folder)
            options = RunOptions(command, arguments.workers, arguments.servers, timeout=arguments.timeout)
            if code := run_in_lab(lab, options):
                sys.exit(code)
        ranks = [json.loads(Path(folder, f"rank{number}.json").read_text()) for number in range(arguments.workers)]
    base, rows = ranks[0][0]["losses"], []
    for turns in zip(*ranks, strict=True):
        losses = turns[0]["losses"]
        step = statistics.median(max(turn) for turn in zip(*(item["seconds"] for item in turns), strict=True))
        apart = max(abs(ours - theirs) for ours, theirs in zip(losses, base, strict=True))
        tokens = arguments.workers * arguments.batch * arguments.window
        rows.append({
            "bench": "training_gpt", "contender": turns[0]["name"], "seconds": step, "tokens_per_second": tokens / step,
            "first_loss": losses[0], "last_loss": losses[-1], "apart": apart, "losses": losses,
        })  # fmt: skip
    return rows


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=4, help="on hosts of their own")
    parser.add_argument("--rate", default="200mbit", help="speed of the links of the lab")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10, help="of a contender's turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=500.0)
    parser.add_argument("--json", type=Path, default=report.OUT / "training_gpt.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "training_gpt.png")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.folder:
        return rank(arguments)
    rows = measure(arguments)
    cells = [
        (row["contender"], report.show_time(row["seconds"]), f"{row['tokens_per_second']:.0f}",
         f"{rows[0]['seconds'] / row['seconds']:.2f}", f"{row['last_loss']:.5f}", f"{row['apart']:.1e}")
        for row in rows
    ]  # fmt: skip
    title = f"GPT of width {arguments.width}, {arguments.workers} workers at {arguments.rate}"
    columns = ("contender", "step", "tokens/s", "vs gloo DDP", "last loss", "apart from gloo's")
    report.print_table(f"{title}, {arguments.servers} spare servers", columns, cells)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    curves = {row["contender"]: (list(range(1, len(row["losses"]) + 1)), row["losses"]) for row in rows}
    report.plot_lines(arguments.plot, title, ("step", "loss"), curves)
    print(f"wrote {arguments.json} and {arguments.plot}")
    return None


if __name__ == "__main__":
    main()
