"""Block-sparse sums through servers (OmniReduce) against dense all-reduces: our ring and gloo's, in one run, in turn.

    python -m bench.compression.blocksparse                         8 workers, 8 servers of their own at 200 Mb/s (root)
    python -m bench.compression.blocksparse --servers 0             servers beside the workers
    python -m bench.compression.blocksparse --only --densities .04  one density, without the dense ones

Each rank has numbers in blocks of its own choice, as many as the density says; every sum is checked. A reduction lasts
from the last rank's start to the last rank's end, medians. The prediction is what the bytes leave: a ring's 2 (n - 1)/n
of the tensor against max(rho, D), the share of a rank's blocks and of the union's; with servers beside the workers
those add up, less what stays on the host. Leaves out/blocksparse.jsonl.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import report
from bench.processes import again
from byteps_like.launch.fleet import Fleet
from byteps_like.launch.lab.hosts import Lab
from byteps_like.launch.lab.job import run_in_lab
from byteps_like.launch.options import RunOptions

GLOO, RING = "gloo", "our ring"
TARGETS = {0.01: 12.0, 0.1: 2.8, 0.4: 1.6}
TIMEOUT = 300.0  # seconds for the whole job


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=8, help="worker hosts")
    parser.add_argument("--servers", type=int, default=8, help="hosts of servers; 0: one beside each worker")
    parser.add_argument("--rate", default="200mbit", help="speed of the links")
    parser.add_argument("--size", type=int, default=1 << 26, metavar="BYTES", help="of the tensor (64 MB)")
    parser.add_argument("--densities", type=float, nargs="+", default=list(TARGETS), help="shares of blocks not zero")
    parser.add_argument("--codec", default="blocksparse", help="as compression= takes it; its `block` counts")
    parser.add_argument("--only", action="store_true", help="leave the dense ones out")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.worker:
        run_rank(arguments)
        return
    ranks, goodput = measure(arguments)
    found = [row(arguments, goodput, [rank[number] for rank in ranks]) for number in range(len(ranks[0]))]
    show(arguments, goodput, found)
    report.write_json_lines(report.OUT / "blocksparse.jsonl", {k: str(v) for k, v in vars(arguments).items()}, found)


def measure(arguments: argparse.Namespace) -> tuple[list[list[dict[str, Any]]], float]:
    """What each rank has found of each contender, and the line's measured goodput in bytes per second."""
    beside = arguments.servers == 0
    with tempfile.TemporaryDirectory(prefix="blocksparse-") as folder:
        hosts = arguments.workers + arguments.servers
        with Lab(hosts, rate=arguments.rate) as lab:
            goodput = max(lab.goodput() for _ in range(3))
            command = again("--worker", folder)
            servers = arguments.workers if beside else arguments.servers
            options = RunOptions(command, arguments.workers, servers, quiet=True, timeout=TIMEOUT)
            fleet = Fleet(tuple(range(arguments.workers)), "asked for") if beside else None
            if code := run_in_lab(lab, options, 1, fleet):
                sys.exit(code)
        found = [(Path(folder) / f"rank{rank}.json").read_text() for rank in range(arguments.workers)]
    return [json.loads(text) for text in found], goodput


def row(arguments: argparse.Namespace, goodput: float, ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Of one contender: `ranks` are its results on each."""
    n = arguments.workers
    times = [
        max(one["ends"][turn] for one in ranks) - max(one["starts"][turn] for one in ranks)
        for turn in range(arguments.repeats)
    ]
    spread = report.Spread.of(times)
    density, union = ranks[0]["density"], ranks[0]["union"]
    share = 2 * (n - 1) / n
    if density:
        share = max(density, union) if arguments.servers else (density + union) * (n - 1) / n
    return {
        "bench": "blocksparse", "contender": ranks[0]["contender"], "workers": n, "servers": arguments.servers,
        "rate": arguments.rate, "bytes": arguments.size, "density": density, "union": union,
        "seconds": spread.median, "low": spread.low, "high": spread.high, "count": spread.count,
        "limit": share * arguments.size / goodput, "goodput": goodput,
        "wire_sent": max(one["sent"] for one in ranks), "wire_received": max(one["received"] for one in ranks),
    }  # fmt: skip


def show(arguments: argparse.Namespace, goodput: float, found: list[dict[str, Any]]) -> None:
    """The table: each density beside the dense ones."""
    where = f"{arguments.servers} servers" if arguments.servers else "a server beside each"
    title = (
        f"{report.show_bytes(arguments.size)} of fp32, {arguments.workers} workers, {where}, links of {arguments.rate}"
        f" (goodput {goodput / 1e6:.1f} MB/s)"
    )
    report.print_table(title, COLUMNS, cells(found))


COLUMNS = (
    "blocks", "union", "time", "limit", "time/limit", "vs ring", "vs gloo", "predicted vs ring", "target", "sent/M",
    "received/M",
)  # fmt: skip


def cells(found: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """A line of the table for each contender, with texts for COLUMNS."""
    dense = {one["contender"]: one for one in found if one["density"] == 0}
    lines = []
    for one in found:
        ratios = [f"{dense[name]['seconds'] / one['seconds']:.2f}" if name in dense else "" for name in (RING, GLOO)]
        ring = 2 * (one["workers"] - 1) / one["workers"] * one["bytes"] / one["goodput"]
        sparse, target = one["density"] != 0, TARGETS.get(one["density"]) if one["servers"] else None
        lines.append((
            f"{one['contender']}, {one['density']:.0%}" if sparse else one["contender"],
            f"{one['union']:.3f}" if sparse else "",
            report.show_spread(report.Spread(one["seconds"], one["low"], one["high"], one["count"])),
            report.show_time(one["limit"]), f"{one['seconds'] / one['limit']:.2f}", *ratios,
            f"{ring / one['limit']:.2f}", f"{target}" if target else "",
            f"{one['wire_sent'] / one['bytes']:.4f}", f"{one['wire_received'] / one['bytes']:.4f}",
        ))  # fmt: skip
    return lines


def run_rank(arguments: argparse.Namespace) -> None:
    """One rank: all contenders in turn, after one turn to warm up; a wrong sum ends the benchmark."""
    import torch
    import torch.distributed as dist

    import byteps_like.torch as bps

    rank, size = int(os.environ["BYTEPS_LIKE_RANK"]), int(os.environ["BYTEPS_LIKE_WORLD_SIZE"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{arguments.worker}/rendezvous", rank=rank, world_size=size)
    bps.init()
    contenders = _contenders(arguments, rank, size)
    found: list[dict[str, Any]] = [
        {"contender": one.name, "density": one.density, "union": one.union, "starts": [], "ends": []}
        for one in contenders
    ]
    for turn in range(arguments.repeats + 1):
        for one, record in zip(contenders, found, strict=True):
            one.load()
            dist.barrier()
            before, start = _wire(), time.perf_counter()
            one.reduce()
            end, after = time.perf_counter(), _wire()
            dist.barrier()
            one.check()
            if turn:
                record["starts"].append(start)
                record["ends"].append(end)
                record["sent"], record["received"] = (b - a for a, b in zip(before, after, strict=True))
    (arguments.worker / f"rank{rank}.json").write_text(json.dumps(found))
    bps.shutdown()
    dist.destroy_process_group()


class Contender:
    """One way to reduce one rank's tensor; all share its memory. `density` 0: a dense way, with the densest numbers."""

    def __init__(self, name: str, density: float, tensor: Any, weights: Any, rank: int, reduce: Callable[[], None]):
        import torch

        self.name, self.density, self.reduce = name, density, reduce
        self._tensor = tensor.view(weights.shape[1], -1)
        self._own, self._sum = weights[rank].unsqueeze(1), weights.sum(0).unsqueeze(1)
        self._pattern = torch.arange(1, self._tensor.shape[1] + 1, dtype=torch.float32).unsqueeze(0)
        self.union = float((self._sum != 0).float().mean())

    def load(self) -> None:
        """What is to be reduced: not timed."""
        import torch

        torch.mul(self._own, self._pattern, out=self._tensor)

    def check(self) -> None:
        """Raises RuntimeError unless every element is the exact sum."""
        wrong = int((self._tensor != self._sum * self._pattern).sum())
        if wrong:
            raise RuntimeError(f"{self.name}: {wrong} of {self._tensor.numel()} sums are wrong")


def _contenders(arguments: argparse.Namespace, rank: int, size: int) -> list[Contender]:
    import torch
    import torch.distributed as dist

    from byteps_like.collectives.api import CallOptions
    from byteps_like.compression.registry import codec_of
    from byteps_like.dtypes import DType, Op
    from byteps_like.torch.job import runtime
    from byteps_like.worker.api import TensorSpec

    worker: Any = runtime.current().worker
    codec = codec_of(arguments.codec)
    block, numel = getattr(codec, "block", 256), arguments.size // 4
    memory = worker.allocate(arguments.size)
    tensor = torch.frombuffer((ctypes.c_byte * arguments.size).from_address(memory.address), dtype=torch.float32)
    weights = {density: _weights(numel // block, size, density) for density in arguments.densities}
    group = worker.group("dense")

    def ring() -> None:
        place = memory.address
        group.all_reduce(place, place, numel, DType.FLOAT32, Op.SUM, CallOptions(algorithm="ring")).wait()

    def sparse(declared: Any) -> Callable[[], None]:
        return lambda: worker.push_pull(declared, memory.address, Op.SUM).wait()

    densest = weights[max(weights)]
    found = [] if arguments.only else [
        Contender(GLOO, 0, tensor, densest, rank, lambda: dist.all_reduce(tensor)),
        Contender(RING, 0, tensor, densest, rank, ring),
    ]  # fmt: skip
    for density, mine in weights.items():
        spec = TensorSpec(f"blocks.{density}", DType.FLOAT32, (numel,), codec=codec.spec())
        (declared,) = worker.declare([spec])
        found.append(Contender(codec.name, density, tensor, mine, rank, sparse(declared)))
    return found


def _weights(blocks: int, size: int, density: float) -> Any:
    """Of each rank and block, a small number that isn't zero where the rank has the block: the same on all ranks."""
    import torch

    generator = torch.Generator().manual_seed(round(density * 1000))
    weights = torch.zeros(size, blocks)
    for rank in range(size):
        weights[rank, torch.randperm(blocks, generator=generator)[: round(density * blocks)]] = rank + 1.0
    return weights


def _wire() -> tuple[int, int]:
    """Bytes that this host's card has sent and received."""
    folder = Path("/sys/class/net/eth0/statistics")
    return int((folder / "tx_bytes").read_text()), int((folder / "rx_bytes").read_text())


if __name__ == "__main__":
    main()
