"""Training steps of models of many small tensors, where what counts is the time per tensor and not per byte.

    python -m bench.training.many_tensors                          2 workers and 1 server on this machine
    python -m bench.training.many_tensors --tensors 10000 --steps 3

Tensors have 16 to 1,015 elements. Contenders take turns in one job, a few steps each; of a turn, the slowest rank
counts, and of the turns, the median. A contender's limit is the step of a rank alone with one tensor of as many bytes
reduced after its backward, the same way: what it takes beside that, it takes for the tensors' number. Weights are
checked. Leaves out/many_tensors.jsonl.
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

from bench import report
from bench.processes import again
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job

ALONE, GLOO, OURS = "one rank alone", "gloo DDP", "byteps DDP"
ROUTES = {"servers": "server", "collectives": "allreduce"}
CONTENDERS = [ALONE, GLOO, OURS, *ROUTES]
SMALLEST, SIZES = 16, 1000
RATE = 0.5


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--steps", type=int, default=10, help="of a contender's turn")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path, default=report.OUT / "many_tensors.jsonl")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.folder is not None:
        found = worker(arguments)
        (arguments.folder / f"rank{os.environ['BYTEPS_LIKE_RANK']}.json").write_text(json.dumps(found))
        return
    with tempfile.TemporaryDirectory(prefix="many-tensors-") as folder:
        command = again("--folder", folder)
        if code := run_job(RunOptions(command, arguments.workers, arguments.servers, quiet=True)):
            sys.exit(code)
        ranks = [json.loads((Path(folder) / f"rank{rank}.json").read_text()) for rank in range(arguments.workers)]
    show(arguments, ranks)


def show(arguments: argparse.Namespace, ranks: list[dict[str, list[float]]]) -> None:
    """A line for each contender."""
    steps = {name: statistics.median(map(max, *(rank[name] for rank in ranks))) for name in ranks[0]}
    rows, cells = [], []
    for name in arguments.contenders:
        limit = steps[_limit(name)]
        beside = (steps[name] - limit) / arguments.tensors
        ratio = steps[name] / steps[GLOO] if GLOO in steps else 0.0
        rows.append({
            "bench": "many tensors", "contender": name, "tensors": arguments.tensors, "seconds": steps[name],
            "vs_gloo": ratio, "limit": limit, "beside": beside,
        })  # fmt: skip
        shown = () if name == ALONE else (report.show_time(limit), f"{beside * 1e6:.1f}")
        cells.append((name, report.show_time(steps[name]), f"{ratio:.2f}", *shown))
    title = f"{arguments.tensors} tensors, {arguments.workers} workers, {arguments.servers} servers"
    columns = "contender", "step", "vs gloo DDP", "limit", "µs per tensor beside it"
    report.print_table(title, columns, cells)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)


def _limit(name: str) -> str:
    return name if name == ALONE else f"{ALONE}, one tensor by {name}"


def worker(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of a step in each turn of each contender, on one rank."""
    import torch
    import torch.distributed as dist

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    bps.init()
    rank, size = bps.rank(), bps.size()
    dist.init_process_group("gloo", init_method=f"file://{arguments.folder}/store", rank=rank, world_size=size)
    groups = {GLOO: dist.group.WORLD, OURS: dist.new_group(backend="byteps")}
    sizes = [SMALLEST + index % SIZES for index in range(arguments.tensors)]
    trained = {name: _Trained(name, sizes, groups) for name in arguments.contenders}
    for name in [name for name in trained if name != ALONE]:
        trained[_limit(name)] = _Limit(name, sizes, groups)
    times: dict[str, list[float]] = {name: [] for name in sorted(trained)}
    for turn in range(arguments.rounds + 1):
        for name in times:
            dist.barrier()
            trained[name].run(1)
            seconds = trained[name].run(arguments.steps)
            times[name] += [seconds] if turn else []
    for name, one in trained.items():
        one.check(name, rank, size)
    dist.destroy_process_group()
    bps.shutdown()
    return times


class _Trained:
    """Parameters whose sum, times the rank's number, is the loss."""

    def __init__(self, name: str, sizes: list[int], groups: dict[str, Any]) -> None:
        import torch

        import byteps_like.torch as bps

        class Model(torch.nn.Module):
            """Parameters of those sizes."""

            def __init__(self) -> None:
                super().__init__()
                for index, size in enumerate(sizes):
                    self.register_parameter(f"p{index}", torch.nn.Parameter(torch.zeros(size)))
                self.own = list(self.parameters())

            def forward(self) -> torch.Tensor:
                return torch.stack([parameter.sum() for parameter in self.own]).sum()

        self._made, self._alone, self._number = 0, name == ALONE, bps.rank() + 1
        self._model = Model()
        self._wrapped: Any = self._model
        self._optimizer: Any = torch.optim.SGD(self._model.parameters(), lr=RATE, foreach=True)
        if name in groups:
            self._wrapped = torch.nn.parallel.DistributedDataParallel(self._model, process_group=groups[name])
        elif name in ROUTES:
            named = self._model.named_parameters()
            self._optimizer = bps.DistributedOptimizer(self._optimizer, named, route=ROUTES[name])

    def run(self, steps: int) -> float:
        """Seconds per step."""
        start = time.perf_counter()
        for _ in range(steps):
            self._optimizer.zero_grad()
            (self._wrapped() * self._number).backward()
            self._reduce()
            self._optimizer.step()
        self._made += steps
        return (time.perf_counter() - start) / steps

    def _reduce(self) -> None:
        """Nothing: the optimizer or the wrapped model does."""

    def check(self, name: str, rank: int, size: int) -> None:
        """Weights are what so many steps with the mean of the ranks' gradients make of zero."""
        mean = rank + 1 if self._alone else (size + 1) / 2
        if any(bool((parameter != -RATE * self._made * mean).any()) for parameter in self._model.own):
            raise RuntimeError(f"{name}: weights are not {-RATE * self._made * mean} everywhere")


class _Limit(_Trained):
    """A rank alone, which reduces one tensor of as many bytes in each step."""

    def __init__(self, name: str, sizes: list[int], groups: dict[str, Any]) -> None:
        import torch
        import torch.distributed as dist

        import byteps_like.torch as bps

        super().__init__(ALONE, sizes, {})
        whole = torch.nn.Parameter(torch.zeros(sum(sizes)))
        gradient = whole.grad = torch.zeros_like(whole)
        if name in groups:
            self._reduce = lambda: dist.all_reduce(gradient, group=groups[name])
        else:
            plain = torch.optim.SGD([whole], lr=RATE)
            self._reduce = bps.DistributedOptimizer(plain, [("whole", whole)], route=ROUTES[name]).synchronize


if __name__ == "__main__":
    main()
