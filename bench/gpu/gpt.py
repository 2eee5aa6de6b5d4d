"""A training step of the GPT of examples/gpt.py on one GPU by two processes, through one summation server of this host.

Part of `python -m bench.gpu`, which starts it as the job's workers. Contenders train the same model from the same
weights on the same windows, and take turns: plain DDP on gloo, ours raw, in bf16 and by THC, and the model without a
network, which is the limit. Their losses, the mean over the ranks, are compared step by step with gloo's, in the first
turn: kernels of backward add in an order of their own in every run, so two trainings by gloo, too, part after a dozen
steps of Adam, by some thousandths.
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
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job
from examples._gpt import CHARACTERS, GPT

ALONE, BASE = "no network", "gloo DDP"
CODECS = {"none": None, "bf16": "bf16", "thc": "thc4"}
CONTENDERS = (ALONE, BASE, *CODECS)
APART = {BASE: 0.0, "none": 1e-3, "bf16": 1e-2, "thc": 0.5}
"""How far losses may be from gloo's in the first turn, in which they jump by 2: sums in another order, and what the
codecs lose."""


class Contender:
    """The model on this rank's device, its optimizer and its windows."""

    def __init__(self, name: str, arguments: argparse.Namespace, corpus: torch.Tensor, device: torch.device) -> None:
        self.name, self.seconds = name, []
        self._losses: list[torch.Tensor] = []
        self._arguments, self._corpus, self._device = arguments, corpus, device
        self._windows = torch.Generator().manual_seed(dist.get_rank())
        torch.manual_seed(0)
        self._model: torch.nn.Module = GPT(arguments.window, arguments.width).to(device)
        self._optimizer: Any = torch.optim.AdamW(self._model.parameters(), lr=1e-3)
        if name == BASE:
            self._model = torch.nn.parallel.DistributedDataParallel(self._model)
        elif name in CODECS:
            named = list(self._model.named_parameters())
            self._optimizer = bps.DistributedOptimizer(self._optimizer, named, CODECS[name], route="server")

    @property
    def losses(self) -> torch.Tensor:
        """By step, on the host."""
        return torch.stack(self._losses).double().cpu()

    def run(self, steps: int) -> None:
        """So many steps, timed until the device has done them; the first turn is to warm up."""
        self._settle()
        start = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._settle()
        self.seconds.append((time.perf_counter() - start) / steps)

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        dist.barrier()

    def _step(self) -> None:
        window, batch = self._arguments.window, self._arguments.batch
        starts = torch.randint(len(self._corpus) - window - 1, (batch,), generator=self._windows)
        windows = torch.stack([self._corpus[start : start + window + 1] for start in starts]).to(self._device).long()
        self._optimizer.zero_grad()
        loss = functional.cross_entropy(self._model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        loss.backward()
        self._optimizer.step()
        self._losses.append(loss.detach())  # read at the end: a host that waits for it would start no work ahead


def rank(arguments: argparse.Namespace) -> None:
    """What each worker does."""
    number, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{arguments.folder}/meet", rank=number, world_size=size)
    bps.init()
    device = torch.device("cpu")
    if arguments.device == "cuda":
        device = torch.device("cuda", (arguments.index + bps.local_rank()) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    corpus = torch.tensor(list(b"".join(module.read_bytes() for module in modules)), dtype=torch.uint8) % CHARACTERS
    contenders = [Contender(name, arguments, corpus, device) for name in CONTENDERS]
    for _ in range(arguments.rounds + 1):
        for contender in contenders:
            contender.run(arguments.steps)
    found = []
    for contender in contenders:
        losses = contender.losses
        dist.all_reduce(losses)
        found.append({"losses": (losses / size).tolist(), "seconds": contender.seconds[1:]})
    Path(arguments.folder, f"rank{number}.json").write_text(json.dumps(found))
    bps.shutdown()
    dist.destroy_process_group()


def measure(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per contender."""
    with tempfile.TemporaryDirectory(prefix="gpu-gpt-") as folder:
        command = again("--folder", folder)
        options = RunOptions(command, arguments.workers, 1, timeout=arguments.timeout, quiet=True)
        if code := run_job(options):
            sys.exit(code)
        ranks = [json.loads(Path(folder, f"rank{number}.json").read_text()) for number in range(arguments.workers)]
    found = list(zip(*ranks, strict=True))
    turns = [[max(turn) for turn in zip(*(item["seconds"] for item in items), strict=True)] for items in found]
    losses = [items[0]["losses"] for items in found]
    return [_row(number, turns, losses) for number in range(len(CONTENDERS))]


def _row(number: int, turns: list[list[float]], losses: list[list[float]]) -> dict[str, Any]:
    base, limit = CONTENDERS.index(BASE), CONTENDERS.index(ALONE)
    name, own = CONTENDERS[number], turns[number]
    first = slice(len(losses[number]) // (len(own) + 1))
    apart = max(abs(ours - theirs) for ours, theirs in zip(losses[number][first], losses[base][first], strict=True))

    def over(other: int) -> list[float]:
        return [theirs / ours for theirs, ours in zip(turns[other], own, strict=True)]

    return {
        "part": "gpt", "what": name, "seconds": statistics.median(own), "vs_gloo": statistics.median(over(base)),
        "low": min(over(base)), "high": max(over(base)), "of_limit": statistics.median(over(limit)),
        "apart": apart if name != ALONE else None, "last_loss": losses[number][-1],
    }  # fmt: skip


def check(rows: list[dict[str, Any]]) -> None:
    """Ends the process if losses are further from gloo's than they may be."""
    for item in rows:
        name, apart = item["what"], item["apart"] or 0.0
        if apart > APART.get(name, float("inf")):
            raise SystemExit(f"GPT, {name}: losses are {apart:.2g} from those of {BASE}, more than {APART[name]}")


def show(name: str, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The table."""
    tokens = arguments.workers * arguments.batch * arguments.window
    cells = [
        (item["what"], report.show_time(item["seconds"]), f"{tokens / item['seconds']:.0f}", f"{item['vs_gloo']:.2f}",
         f"{item['low']:.2f}-{item['high']:.2f}", f"{item['of_limit']:.2f}", f"{item['last_loss']:.4f}",
         "" if item["apart"] is None else f"{item['apart']:.1e}")
        for item in rows
    ]  # fmt: skip
    columns = ("", "step", "tokens/s", f"vs {BASE}", "from-to", f"of {ALONE}", "last loss", "apart from gloo's")
    title = f"{name}: GPT of width {arguments.width}, {arguments.workers} processes, one server of this host"
    report.print_table(title, columns, cells)
