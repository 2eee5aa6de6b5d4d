"""What recording a timeline costs a training step: blocks of steps with and without, in turns, in one job.

    python -m bench.internals.trace_overhead                       (2 workers and a server on this host, over TCP)
    python -m bench.internals.trace_overhead --rounds 20 --layers 12

Each worker trains a stack of linear layers, whose compute is emulated by sleeping, so that a step is that of a larger
model with as many layers, hooks and partitions. Blocks take turns: on, off, off, on, ...; rank 0 compares their
medians. While it is off, nothing is installed and hooks in the core are one relaxed load. Rings,
files and Python's hooks are all on in "on", on the server too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.processes import again, module

STEPS = 20  # of a block


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="pairs of blocks")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--width", type=int, default=512, help="of each layer")
    parser.add_argument("--compute", type=float, default=0.04, help="seconds of a step that are emulated by sleeping")
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    known = arguments()
    if known.worker is not None:
        work(known)
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [*module("byteps_like", "run", "-n", "2", "-s", "1", "-q", "--"), *again("--worker", folder)]
        environ = os.environ | {"BYTEPS_LIKE_TRANSPORT": "tcp", "BYTEPS_LIKE_PARTITION_BYTES": str(1 << 20)}
        subprocess.run(command, check=True, env=environ)
        result = json.loads((Path(folder) / "result.json").read_text())
    show(result)
    if known.json is not None:
        known.json.write_text(json.dumps(result, indent=1))


def show(result: dict[str, Any]) -> None:
    from byteps_like.bench.report import print_table

    rows = [(name, f"{result[name]['median_ms']:.3f}", f"{result[name]['iqr_ms']:.3f}") for name in ("off", "on")]
    print_table("A step (ms)", ("timeline", "median", "quartiles apart"), rows)
    print(f"overhead {result['overhead']:+.2%} in the median of {result['pairs']} pairs of blocks of {STEPS} steps")
    print(f"{result['bytes_per_step']:.0f} bytes per step and rank")


def work(known: argparse.Namespace) -> None:
    import torch

    import byteps_like.torch as bps

    bps.init()
    torch.manual_seed(0)
    layers = [emulated(known.width, known.compute / known.layers / 3) for _ in range(known.layers)]
    model = torch.nn.Sequential(*layers)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4), model.named_parameters())
    images = torch.randn(4, known.width)

    def block(on: bool) -> list[float]:
        bps.barrier()
        if on:
            bps.trace(str(known.worker), steps=STEPS)
        times = []
        for _ in range(STEPS):
            begin = time.perf_counter()
            optimizer.zero_grad()
            model(images).square().mean().backward()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        if on:
            time.sleep(0.7)  # the server goes on for half a second
        return times[1:]

    block(False)
    found: dict[str, list[list[float]]] = {"off": [], "on": []}
    for turn in range(known.rounds):
        for name in ("off", "on") if turn % 2 else ("on", "off"):
            found[name].append(block(name == "on"))
    if bps.rank() == 0:
        (known.worker / "result.json").write_text(json.dumps(summary(found, known)))


def summary(found: dict[str, list[list[float]]], known: argparse.Namespace) -> dict[str, Any]:
    pairs = zip(found["on"], found["off"], strict=True)
    ratios = [statistics.median(on) / statistics.median(off) for on, off in pairs]
    result: dict[str, Any] = {"pairs": len(ratios), "overhead": statistics.median(ratios) - 1}
    for name, blocks in found.items():
        times = [seconds for block in blocks for seconds in block]
        low, middle, high = statistics.quantiles(times, n=4)
        result[name] = {"median_ms": middle * 1e3, "iqr_ms": (high - low) * 1e3}
    written = sum(part.stat().st_size for part in known.worker.glob("*.part")) / 3
    return result | {"bytes_per_step": written / (STEPS * known.rounds)}


def emulated(width: int, seconds: float) -> Any:
    """A linear layer that takes `seconds` longer forward, and twice that backward."""
    import torch

    class Sleep(torch.autograd.Function):
        """Nothing, slowly."""

        @staticmethod
        def forward(_: Any, tensor: torch.Tensor) -> torch.Tensor:
            time.sleep(seconds)
            return tensor.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            time.sleep(2 * seconds)
            return gradients[0]

    class Layer(torch.nn.Linear):
        """A linear layer behind that."""

        def forward(self, tensor: torch.Tensor) -> torch.Tensor:
            return super().forward(Sleep.apply(tensor))

    return Layer(width, width)


if __name__ == "__main__":
    main()
