"""A language model's step, four fifths of whose parameters are an embedding, by rows against all dense, in a lab.

    python bench/sparse.py --hosts 4 --rate 400mbit        (root: builds a lab of network namespaces)

Words are drawn by Zipf's law. Forward and backward are computed in earnest. The first two steps of each way are not
counted: after them the rows are known to be few. Weights are compared with those of the all-dense way. Leaves
out/sparse.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import report
from lab_ranks import ranks_found

WAYS: dict[str, tuple[bool, object]] = {
    "dense": (False, None),
    "rows": (False, {"0.*": "rows"}),
    "sparse=True": (True, None),
}
UNCOUNTED, TARGET = 2, 3.0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--words", type=int, default=100_000, help="of the embedding")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64, help="sentences on each rank, of 64 words")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    show(arguments, ranks_found(arguments, worker))


def show(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """A step lasts as long as on its slowest rank; of the steps, the median. Bytes are the mean over the ranks."""
    found = []
    for way in WAYS:
        steps = [max(times) for times in zip(*(rank[way]["seconds"] for rank in ranks), strict=True)]
        moved = sum(rank[way]["bytes"] for rank in ranks) / len(ranks)
        row = {"bench": "sparse", "way": way, "seconds": statistics.median(steps), "low": min(steps), "bytes": moved}
        found.append(row | {"high": max(steps), "touched": ranks[0][way]["touched"], "apart": ranks[0][way]["apart"]})
    base = found[0]
    cells = [
        (
            row["way"], report.show_time(row["seconds"]),
            f"{report.show_time(row['low'])} to {report.show_time(row['high'])}",
            f"{base['seconds'] / row['seconds']:.2f}", f"{row['bytes'] / 1e6:.2f} MB",
            f"{base['bytes'] / row['bytes']:.2f}", f"{row['touched']:.3f}", f"{row['apart']:.1e}",
        )
        for row in found
    ]  # fmt: skip
    title = (
        f"{arguments.words} words of {arguments.width}, a fifth of the parameters dense; {arguments.batch} x 64 words"
        f" on each of {arguments.hosts} hosts at {arguments.rate}; target {TARGET} x"
    )
    columns = ("way", "step", "steps", "faster", "sent and received", "fewer", "rows touched by a rank", "apart")
    report.print_table(title, columns, cells)
    report.write_json_lines(report.OUT / "sparse.jsonl", vars(arguments), found)


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    """One rank."""
    import torch

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    bps.init()
    found, weights = {}, None
    for way, (sparse, compression) in WAYS.items():
        found[way], landed = measure(arguments, sparse, compression)
        weights = landed if weights is None else weights
        found[way]["apart"] = float((landed - weights).abs().max())
    bps.barrier()
    bps.shutdown()
    return found


def measure(arguments: argparse.Namespace, sparse: bool, compression: object) -> tuple[dict[str, Any], Any]:
    """Seconds of each step, bytes of the last, and the embedding's weights after it."""
    import torch

    import byteps_like.torch as bps

    torch.manual_seed(0)
    table = torch.nn.Embedding(arguments.words, arguments.width, sparse=sparse)
    outputs = table.weight.numel() // 4 // (64 * arguments.width)
    model = torch.nn.Sequential(table, torch.nn.Flatten(), torch.nn.Linear(64 * arguments.width, outputs))
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), compression=compression)
    frequency = 1.0 / torch.arange(1, arguments.words + 1)
    draws = torch.Generator().manual_seed(1 + bps.rank())
    seconds, moved, touched = [], 0, 0.0
    for _ in range(arguments.steps + UNCOUNTED):
        words = torch.multinomial(frequency, arguments.batch * 64, True, generator=draws).view(-1, 64)
        touched = len(words.unique()) / arguments.words
        optimizer.zero_grad()
        bps.barrier()
        before, start = _moved(bps), time.perf_counter()
        model(words).square().sum().div(arguments.batch).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        bps.barrier()
        moved = _moved(bps) - before
    optimizer.close()
    return {"seconds": seconds[UNCOUNTED:], "bytes": moved, "touched": touched}, table.weight.detach()


def _moved(bps: Any) -> int:
    stats = bps.stats()
    return int(stats["payload_sent"] + stats["payload_received"])


if __name__ == "__main__":
    main()
