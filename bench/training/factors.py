"""A Linear layer's gradient as its factors against the matrix, on a lab of shaped links.

    python -m bench.training.factors --hosts 8 --rate 200mbit        (root: builds a lab of network namespaces)

One layer, forward and backward computed in earnest. A way's first step is not counted: it tells the ranks how many rows
there are. The gradients are compared with those of all batches in one process. Leaves out/factors.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from bench import report
from bench.lab_ranks import ranks_found

WAYS: dict[str, bool | str] = {"matrix": False, "factors": True, "auto": "auto"}
TARGET_TIME, TARGET_BYTES = 5.0, 14.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--outputs", type=int, default=4096)
    parser.add_argument("--inputs", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=32, help="of batch on each rank")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    show(arguments, ranks_found(arguments, worker))


def show(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """A step lasts as long as on its slowest rank; of the steps, the median. Bytes are the mean over the ranks."""
    found: dict[str, dict[str, Any]] = {}
    for way in WAYS:
        steps = [max(times) for times in zip(*(rank[way]["seconds"] for rank in ranks), strict=True)]
        moved = sum(rank[way]["bytes"] for rank in ranks) / len(ranks)
        found[way] = {"bench": "factors", "way": way, "seconds": statistics.median(steps), "low": min(steps)}
        found[way] |= {"high": max(steps), "bytes": moved, "error": ranks[0][way]["error"]}
    base = found["matrix"]
    cells = [
        (
            way, report.show_time(row["seconds"]), f"{report.show_time(row['low'])} to {report.show_time(row['high'])}",
            f"{base['seconds'] / row['seconds']:.2f}", f"{row['bytes'] / 1e6:.2f} MB",
            f"{base['bytes'] / row['bytes']:.2f}", f"{row['error']:.1e}",
        )
        for way, row in found.items()
    ]  # fmt: skip
    title = (
        f"{arguments.outputs} x {arguments.inputs}, {arguments.rows} rows on each of {arguments.hosts} hosts at"
        f" {arguments.rate}; targets {TARGET_TIME} x faster, {TARGET_BYTES} x fewer bytes"
    )
    columns = ("way", "step", "steps", "faster", "sent and received", "fewer", "error")
    report.print_table(title, columns, cells)
    report.write_json_lines(report.OUT / "factors.jsonl", vars(arguments), found.values())


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    """One rank."""
    import torch

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    bps.init()
    found = {way: measure(arguments, wanted) for way, wanted in WAYS.items()}
    bps.barrier()
    bps.shutdown()
    return found


def measure(arguments: argparse.Namespace, wanted: bool | str) -> dict[str, Any]:
    """Seconds of each step, bytes of the last, and the error of the gradient."""
    import torch

    import byteps_like.torch as bps

    def batch(rank: int) -> torch.Tensor:
        return torch.randn(arguments.rows, arguments.inputs, generator=torch.Generator().manual_seed(rank))

    torch.manual_seed(0)
    model = torch.nn.Linear(arguments.inputs, arguments.outputs, bias=False)
    plain = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = bps.DistributedOptimizer(plain, model=model, sufficient_factors=wanted)
    mine, seconds, moved = batch(bps.rank()), [], 0
    for _ in range(arguments.steps + 1):
        optimizer.zero_grad()
        bps.barrier()
        before, start = sum(_moved(bps)), time.perf_counter()
        model(mine).square().sum().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        bps.barrier()
        moved = sum(_moved(bps)) - before
    error = 0.0
    if bps.rank() == 0:
        ours, model.weight.grad = model.weight.grad, None
        optimizer.close()
        for rank in range(bps.size()):
            (model(batch(rank)).square().sum() / bps.size()).backward()
        error = float((ours - model.weight.grad).norm() / model.weight.grad.norm())
    optimizer.close()
    return {"seconds": seconds[1:], "bytes": moved, "error": error}


def _moved(bps: Any) -> tuple[int, int]:
    stats = bps.stats()
    return stats["payload_sent"], stats["payload_received"]


if __name__ == "__main__":
    main()
