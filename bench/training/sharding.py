"""A step with shard="optimizer" against an all-reduce followed by the whole update, on a lab of shaped links.

    python -m bench.training.sharding --hosts 4 --rate 400mbit        (root: builds a lab of network namespaces)

The update is emulated: it sleeps for so long per element that the whole takes `--update` times what the all-reduce
takes, measured first in the same run. The two take turns; parameters are compared at the end. Leaves
out/sharding.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from bench import report
from bench.lab_ranks import ranks_found

WAYS: dict[str, dict[str, Any]] = {"all-reduce, whole update": {}, "sharded": {"shard": "optimizer"}}
TARGET = 0.85


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--megabytes", type=float, default=16.0, help="parameters, in float32")
    parser.add_argument("--update", type=float, default=0.5, help="time of the whole update to that of an all-reduce")
    parser.add_argument("--steps", type=int, default=5, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--partition-bytes", type=int, default=1 << 20)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    environment = {"BYTEPS_LIKE_PARTITION_BYTES": str(arguments.partition_bytes)}
    show(arguments, ranks_found(arguments, worker, environment))


def show(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """A turn lasts as long as on its slowest rank; of the turns, the median."""
    bare = ranks[0]["all_reduce"]
    medians, rows, cells = {}, [], []
    for way in WAYS:
        turns = [max(times) for times in zip(*(rank["times"][way] for rank in ranks), strict=True)]
        medians[way] = statistics.median(turns)
        state, gradients = (max(rank[what][way] for rank in ranks) for what in ("state", "gradients"))
        row = {"bench": "sharding", "way": way, "seconds": medians[way], "low": min(turns), "high": max(turns)}
        rows.append({**row, "all_reduce": bare, "rate": arguments.rate, "hosts": arguments.hosts, "state": state})
        ratio = medians[way] / medians[next(iter(WAYS))]
        spread = f"{report.show_time(min(turns))} to {report.show_time(max(turns))}"
        kept = f"{state / 1e6:.1f} MB", f"{gradients / 1e6:.1f} MB"
        cells.append((way, report.show_time(medians[way]), spread, f"{ratio:.2f}", *kept))
    title = (
        f"{arguments.megabytes:g} MB on {arguments.hosts} hosts at {arguments.rate}; all-reduce alone"
        f" {report.show_time(bare)}, whole update {report.show_time(bare * arguments.update)}; target {TARGET}"
    )
    report.print_table(title, ("way", "step", "turns", "ratio", "state per rank", "gradients"), cells)
    report.write_json_lines(report.OUT / "sharding.jsonl", vars(arguments), rows)


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    """One rank."""
    import torch

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    bps.init()
    bare = _agreed(bps, _Trained(arguments, {}, 0.0).run(arguments.steps))
    per_element = bare * arguments.update / (arguments.megabytes * 1e6 / 4)
    trained = {way: _Trained(arguments, options, per_element) for way, options in WAYS.items()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(arguments.rounds):
        for way, one in trained.items():
            one.run(1)
            times[way].append(one.run(arguments.steps))
    first, second = (one.flat() for one in trained.values())
    torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
    sharded = trained["sharded"].optimizer.shard_memory()
    whole = 4 * first.numel()
    found = {
        "times": times, "all_reduce": bare, "state": dict(zip(WAYS, (whole, sharded.state), strict=True)),
        "gradients": dict(zip(WAYS, (whole, sharded.gradients), strict=True)),
    }  # fmt: skip
    bps.barrier()
    bps.shutdown()
    return found


def _agreed(bps: Any, seconds: float) -> float:
    return max(bps.allgather_object(seconds))


class _Trained:
    """32 parameters of one size, whose gradients are there at once, and an optimizer whose update takes its time."""

    def __init__(self, arguments: argparse.Namespace, options: dict[str, Any], per_element: float) -> None:
        import torch

        import byteps_like.torch as bps

        class Slow(torch.optim.SGD):
            """Momentum SGD, and for each element some time more."""

            def step(self, closure: Any = None) -> Any:
                elements = sum(p.numel() for g in self.param_groups for p in g["params"] if p.grad is not None)
                time.sleep(elements * per_element)
                return super().step(closure)

        each = int(arguments.megabytes * 1e6 / 4 / 32) // 64 * 64
        self.parameters = [torch.nn.Parameter(torch.zeros(each)) for _ in range(32)]
        self._gradient = torch.linspace(-1, 1, each) * (bps.rank() + 1)
        self.optimizer: Any = bps.DistributedOptimizer(Slow(self.parameters, lr=0.1, momentum=0.9), **options)
        self.run(2)

    def run(self, steps: int) -> float:
        """Seconds per step."""
        import byteps_like.torch as bps

        bps.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            sum((parameter * self._gradient).sum() for parameter in self.parameters).backward()  # type: ignore[union-attr]
            self.optimizer.step()
        return (time.perf_counter() - start) / steps

    def flat(self) -> Any:
        """All parameters."""
        import torch

        return torch.cat([parameter.detach() for parameter in self.parameters])


if __name__ == "__main__":
    main()
