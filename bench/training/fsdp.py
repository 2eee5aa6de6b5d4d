"""Steps of FSDP2 as it is and with what goes between hosts encoded (ZeRO++), on a lab of shaped links.

    python -m bench.training.fsdp --hosts 2 --per-host 2 --rate 200mbit      (root: builds a lab of network namespaces)

A chain of square Linear layers on a few rows, so that the network is what a step takes; weights and gradients travel in
bfloat16 where nothing encodes them. The ways take turns in one run. Bytes are those of a step that ranks send to other
hosts, in M, the bytes of the weights in bfloat16. Leaves out/fsdp.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from bench import report
from bench.lab_ranks import join_process_group, ranks_found, slowest

WAYS: dict[str, dict[str, Any] | None] = {
    "FSDP2": None,
    "hpZ": {"weights": None, "gradients": None, "secondary": True},
    "int8, int8": {"weights": "int8", "gradients": "int8"},
    "int8, int4, hpZ": {"weights": "int8", "gradients": "int4", "secondary": True},
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--per-host", type=int, default=2)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--width", type=int, default=1021, help="of the layers")
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    show(arguments, ranks_found(arguments, worker, per_host=arguments.per_host))


def show(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """A turn lasts as long as on its slowest rank; of the turns, the median."""
    model = 2 * ranks[0]["numel"]
    first, rows, cells = 0.0, [], []
    for way in WAYS:
        turns = slowest(ranks, way)
        median, sent = statistics.median(turns), sum(rank["sent"][way] for rank in ranks) / model
        first = first or median
        row = {"bench": "fsdp", "way": way, "seconds": median, "low": min(turns), "high": max(turns), "sent": sent}
        rows.append({**row, "model": model, "rate": arguments.rate, "hosts": arguments.hosts})
        spread = f"{report.show_time(min(turns))} to {report.show_time(max(turns))}"
        cells.append((way, report.show_time(median), spread, f"{first / median:.2f} x", f"{sent:.3f} M"))
    title = f"M = {model / 1e6:.1f} MB, {arguments.hosts} hosts x {arguments.per_host} ranks at {arguments.rate}"
    report.print_table(title, ("way", "step", "turns", "faster", "between hosts"), cells)
    report.write_json_lines(report.OUT / "fsdp.jsonl", vars(arguments), rows)


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    """One rank."""
    import torch.distributed as dist

    import byteps_like.torch as bps

    join_process_group()
    trained = {way: _Trained(arguments, options) for way, options in WAYS.items()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    sent = {way: one.sent() for way, one in trained.items()}
    for _ in range(arguments.rounds):
        for way, one in trained.items():
            times[way].append(one.run(arguments.steps))
    dist.destroy_process_group()
    bps.shutdown()
    return {"times": times, "sent": sent, "numel": trained["FSDP2"].numel}


class _Trained:
    """A model, sharded in one of the ways."""

    def __init__(self, arguments: argparse.Namespace, options: dict[str, Any] | None) -> None:
        import torch
        from torch import nn
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        import byteps_like.torch as bps

        torch.manual_seed(0)
        half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        within = bps.ranks_per_host() if options and options.get("secondary") else True
        self.model = nn.Sequential(*(nn.Linear(arguments.width, arguments.width) for _ in range(arguments.layers)))
        self.numel = sum(parameter.numel() for parameter in self.model.parameters())
        for layer in self.model:
            fully_shard(layer, reshard_after_forward=within, mp_policy=half)
        fully_shard(self.model, mp_policy=half)
        if options is not None:
            bps.compress_fsdp(self.model, **options)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self._x = torch.ones(4, arguments.width)
        self.run(1)

    def run(self, steps: int) -> float:
        """Seconds per step."""
        import torch.distributed as dist

        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(self._x).float().square().mean().backward()
            self.optimizer.step()
        return (time.perf_counter() - start) / steps

    def sent(self) -> int:
        """Bytes of this rank to others' hosts in one step, with headers."""
        import torch.distributed as dist

        group: Any = dist.group.WORLD
        hosts, own = group.lanes.first.hosts, group.lanes.first.hosts[group.rank()]
        far = [peer for peer, host in enumerate(hosts) if host != own]
        before = sum(group.world.counters(peer)["bytes_sent"] for peer in far)
        self.run(1)
        return sum(group.world.counters(peer)["bytes_sent"] for peer in far) - before


if __name__ == "__main__":
    main()
