"""A language model's step, four fifths of whose parameters are an embedding, by rows against all dense, in a lab.

    python -m bench.compression.sparse --hosts 4 --rate 400mbit               (root: builds a lab of network namespaces)
    python -m bench.compression.sparse --hosts 4 --servers 4 --rate 400mbit   with as many hosts more that sum

Words are drawn by Zipf's law. Forward and backward are computed in earnest. The ways take turns. The first two steps of
each turn are not counted: after them the rows are known to be few. Weights are compared with those of the all-dense
way. Leaves out/sparse.jsonl.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

from bench import report
from bench.lab_ranks import ranks_found

UNCOUNTED, TARGET = 2, 3.0


@dataclass(frozen=True)
class Way:
    """How gradients travel: whether the embedding's are sparse, and whether their rows may go to servers."""

    sparse: bool = False
    compression: object = None
    route: str = "auto"
    asks_servers: bool = True


ROWS = {"0.*": "rows"}
AMONG_WORKERS = {"dense": Way(), "rows": Way(compression=ROWS), "sparse=True": Way(sparse=True)}
WITH_SERVERS = {
    "all-reduce": Way(route="allreduce"),
    "servers": Way(),
    "all-reduce, entries among workers": Way(True, route="allreduce", asks_servers=False),
    "servers, entries among workers": Way(True, asks_servers=False),
    "all-reduce, rows by servers (Parallax)": Way(True, route="allreduce"),
    "servers, rows by servers": Way(True),
    "servers, rows of dense gradients by servers": Way(compression=ROWS),
}


def ways(arguments: argparse.Namespace) -> dict[str, Way]:
    """Those that the job has; the first is what the others are compared with."""
    return WITH_SERVERS if arguments.servers else AMONG_WORKERS


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--servers", type=int, default=0, help="each on a host of its own")
    parser.add_argument("--rate", default="400mbit")
    parser.add_argument("--words", type=int, default=100_000, help="of the embedding")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64, help="sentences on each rank, of 64 words")
    parser.add_argument("--common", type=float, default=0.0, help="share of the sentences that all ranks have alike")
    parser.add_argument("--steps", type=int, default=3, help="of each turn")
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    show(arguments, ranks_found(arguments, worker, servers=arguments.servers))


def show(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """A step lasts as long as on its slowest rank; of the steps, the median. Bytes are the mean over the ranks."""
    found = []
    for way in ways(arguments):
        steps = [max(times) for times in zip(*(rank[way]["seconds"] for rank in ranks), strict=True)]
        moved = sum(rank[way]["bytes"] for rank in ranks) / len(ranks)
        row = {"bench": "sparse", "way": way, "seconds": statistics.median(steps), "low": min(steps), "bytes": moved}
        kept = {name: ranks[0][way][name] for name in ("touched", "apart", "went")}
        found.append(row | {"high": max(steps)} | kept)
    base = found[0]
    cells = [
        (
            row["way"], report.show_time(row["seconds"]),
            f"{report.show_time(row['low'])} to {report.show_time(row['high'])}",
            f"{base['seconds'] / row['seconds']:.2f}", f"{row['bytes'] / 1e6:.2f} MB",
            f"{base['bytes'] / row['bytes']:.2f}", f"{row['touched']:.3f}", row["went"], f"{row['apart']:.1e}",
        )
        for row in found
    ]  # fmt: skip
    title = (
        f"{arguments.words} words of {arguments.width}, a fifth of the parameters dense; {arguments.batch} x 64 words"
        f" on each of {arguments.hosts} hosts at {arguments.rate}, {arguments.common:.0%} of them alike,"
        f" {arguments.servers} more with servers; target {TARGET} x"
    )
    columns = (
        "way",
        "step",
        "steps",
        "faster",
        "sent and received",
        "fewer",
        "rows touched by a rank",
        "they go",
        "apart",
    )
    report.print_table(title, columns, cells)
    found += show_sums(ranks)
    report.write_json_lines(report.OUT / "sparse.jsonl", vars(arguments), found)


def show_sums(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One sum of the embedding's rows by each way, beside what the choice between them believes."""
    found = []
    for way, one in ranks[0]["sums"].items():
        times = [max(turn) for turn in zip(*(rank["sums"][way]["seconds"] for rank in ranks), strict=True)]
        sent, came = (sum(rank["sums"][way][kind] for rank in ranks) / len(ranks) for kind in ("sent", "received"))
        row = {"bench": "sparse sum", "way": way, "seconds": statistics.median(times), "low": min(times)}
        found.append(row | {"high": max(times), "sent": sent, "received": came, "believed": one["believed"]})
    cells = [
        (
            row["way"], report.show_time(row["seconds"]), report.show_time(row["low"]), report.show_time(row["high"]),
            report.show_time(row["believed"]), f"{row['sent'] / 1e6:.2f} MB", f"{row['received'] / 1e6:.2f} MB",
        )
        for row in found
    ]  # fmt: skip
    columns = ("way", "time", "least", "most", "by the model", "sent", "received")
    shares = f"{ranks[0]['own']:.3f} of the rows touched by a rank, {ranks[0]['union']:.3f} by any"
    report.print_table(f"push_pull of the rows alone: {shares}", columns, cells)
    return found


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    """One rank."""
    import torch

    import byteps_like.torch as bps

    torch.set_num_threads(1)
    bps.init()
    found: dict[str, dict[str, Any]] = {}
    weights = None
    for _ in range(arguments.turns):
        for name, way in ways(arguments).items():
            one, landed = measure(arguments, way)
            weights = landed if weights is None else weights
            one["seconds"] = found.get(name, {"seconds": []})["seconds"] + one["seconds"]
            found[name] = one | {"apart": float((landed - weights).abs().max())}
    bps.barrier()
    own, union, sums = measure_sums(arguments)
    bps.barrier()
    bps.shutdown()
    return found | {"own": own, "union": union, "sums": sums}


class Draws:
    """Words of a batch by Zipf's law, of which some sentences are the same on all ranks."""

    def __init__(self, arguments: argparse.Namespace, rank: int) -> None:
        import torch

        self._frequency = 1.0 / torch.arange(1, arguments.words + 1)
        alike = round(arguments.common * arguments.batch)
        self._draws = [
            (torch.Generator().manual_seed(seed), 64 * sentences)
            for seed, sentences in ((0, alike), (1 + rank, arguments.batch - alike))
            if sentences
        ]

    def words(self) -> Any:
        """The next batch's, one after another."""
        import torch

        return torch.cat([torch.multinomial(self._frequency, n, True, generator=draws) for draws, n in self._draws])


def measure(arguments: argparse.Namespace, way: Way) -> tuple[dict[str, Any], Any]:
    """Seconds of each step, bytes of the last, and the embedding's weights after it."""
    import torch

    import byteps_like.torch as bps
    from byteps_like.torch.job import runtime
    from byteps_like.torch.sparse import sums as sparse

    current = runtime.current()
    cards, current.cards = current.cards, current.cards if way.asks_servers else None
    torch.manual_seed(0)
    table = torch.nn.Embedding(arguments.words, arguments.width, sparse=way.sparse)
    outputs = table.weight.numel() // 4 // (64 * arguments.width)
    model = torch.nn.Sequential(table, torch.nn.Flatten(), torch.nn.Linear(64 * arguments.width, outputs))
    plain = torch.optim.SGD(model.parameters(), lr=0.01)
    named = model.named_parameters()
    optimizer = bps.DistributedOptimizer(plain, named, compression=way.compression, route=way.route)
    draws = Draws(arguments, bps.rank())
    seconds, moved, touched = [], 0, 0.0
    for _ in range(arguments.steps + UNCOUNTED):
        words = draws.words().view(-1, 64)
        touched = len(words.unique()) / arguments.words
        optimizer.zero_grad()
        bps.barrier()
        before, start = _moved(bps), time.perf_counter()
        model(words).square().sum().div(arguments.batch).backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
        bps.barrier()
        moved = _moved(bps) - before
    sums = current.of(sparse.SparseHistory)
    went = [seen.way.value for seen in sums.seen.values()]
    optimizer.close()
    current.cards = cards
    sums.seen.clear()
    found = {"seconds": seconds[UNCOUNTED:], "bytes": moved, "touched": touched, "went": ", ".join(went) or "dense"}
    return found, table.weight.detach()


def measure_sums(arguments: argparse.Namespace) -> tuple[float, float, dict[str, Any]]:
    """Rows touched by this rank and by all, as shares; and of each way, seconds and bytes of a push_pull of them."""
    import torch

    import byteps_like.torch as bps
    from byteps_like.torch.job import runtime
    from byteps_like.torch.sparse import choice as sparse_choice
    from byteps_like.torch.sparse import sums as sparse
    from byteps_like.torch.sparse.rows import Rows

    words = Draws(arguments, bps.rank()).words().unique()
    shape = (arguments.words, arguments.width)
    rows = torch.sparse_coo_tensor(words[None], torch.ones(len(words), arguments.width), shape, check_invariants=False)
    bps.push_pull(rows, op=bps.Sum, name="sum")
    seen = runtime.current().of(sparse.SparseHistory).seen["sparse_push_pull.sum"]
    believed = sparse_choice.times(Rows.of(rows), bps.size(), seen, runtime.current().cards)
    found: dict[str, Any] = {}
    chooses = sparse.choose
    for turn in range(arguments.steps + UNCOUNTED):
        for way, seconds in believed.items():
            sparse.choose = lambda rows, ranks, seen, cards, way=way: way if seen else chooses(rows, ranks, seen, cards)
            bps.barrier()
            before, start = bps.stats(), time.perf_counter()
            bps.push_pull(rows, op=bps.Sum, name=f"sum by {way.value}")
            one = found.setdefault(way.value, {"seconds": [], "believed": seconds})
            one["seconds"] += [time.perf_counter() - start] * (turn >= UNCOUNTED)
            bps.barrier()
            after = bps.stats()
            one |= {kind: after[f"payload_{kind}"] - before[f"payload_{kind}"] for kind in ("sent", "received")}
    sparse.choose = chooses
    return len(words) / arguments.words, seen.union / arguments.words, found


def _moved(bps: Any) -> int:
    stats = bps.stats()
    return int(stats["payload_sent"] + stats["payload_received"])


if __name__ == "__main__":
    main()
