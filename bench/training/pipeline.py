"""Steps of a GPT in a pipeline whose sends are as they are or encoded (Optimus-CC), on a lab of shaped links.

    python -m bench.training.pipeline --hosts 4 --rate 200mbit        (root: builds a lab of network namespaces)

One stage per host, torch's own schedule, one block of the GPT per stage, AdamW, the text of Python's standard library.
The ways take turns in one run; each trains a model of its own from the same weights. `error`: of all gradients of the
first step, against those without compression. Bytes are those of a step, of all ranks, with headers. Leaves
out/pipeline.jsonl.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path
from typing import Any

from bench import report
from bench.lab_ranks import join_process_group, ranks_found, slowest

PLAIN = "as it is"
WAYS: dict[str, dict[str, Any] | None] = {
    "gloo": None,
    PLAIN: None,
    "gradients, epilogue": {},
    "gradients": {"epilogue_only": False},
    "gradients, activations": {"activations": "int8", "epilogue_only": False},
    "powersgd, activations": {"gradients": "powersgd:rank=8", "activations": "int8", "epilogue_only": False},
}
"""By way, what compress_pipeline is given, whose codec is int8."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--schedule", default="Schedule1F1B", help="of torch.distributed.pipelining, of one stage each")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--window", type=int, default=64, help="characters that each is predicted from")
    parser.add_argument("--rows", type=int, default=8, help="windows of a micro-batch")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2, help="of each turn")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    show(arguments, ranks_found(arguments, worker))


def show(arguments: argparse.Namespace, ranks: list[dict[str, Any]]) -> None:
    """A turn lasts as long as on its slowest rank; of the turns, the median."""
    first, rows, cells = statistics.median(slowest(ranks, PLAIN)), [], []
    for way in WAYS:
        turns = slowest(ranks, way)
        median, sent = statistics.median(turns), sum(rank["sent"][way] for rank in ranks)
        found = {"error": ranks[0]["error"][way], "loss": ranks[-1]["loss"][way], "sent": sent}
        rows.append(
            {"bench": "pipeline", "way": way, "seconds": median, "low": min(turns), "high": max(turns), **found}
        )
        spread = f"{report.show_time(min(turns))} to {report.show_time(max(turns))}"
        shown = (f"{sent / 1e6:.2f} MB" if sent else "", f"{found['error']:.1e}", f"{found['loss']:.3f}")
        cells.append((way, report.show_time(median), spread, f"{first / median:.2f} x", *shown))
    title = (
        f"{arguments.schedule}, {arguments.hosts} stages at {arguments.rate}, {arguments.microbatches} micro-batches of"
        f" {4 * arguments.rows * arguments.window * arguments.width / 1024:.0f} KiB"
    )
    columns = ("way", "step", "turns", "faster", "sent", "error", "loss")
    report.print_table(title, columns, cells)
    report.write_json_lines(report.OUT / "pipeline.jsonl", vars(arguments), rows)


def worker(arguments: argparse.Namespace) -> dict[str, Any]:
    """One rank."""
    import torch.distributed as dist

    import byteps_like.torch as bps

    join_process_group()
    trained = {way: _Trained(arguments, way) for way in WAYS}
    error = {way: one.error(trained[PLAIN]) for way, one in trained.items()}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    sent = {way: one.sent() for way, one in trained.items()}
    for _ in range(arguments.rounds):
        for way, one in trained.items():
            times[way].append(one.run(arguments.steps))
    loss = {way: one.loss for way, one in trained.items()}
    dist.destroy_process_group()
    bps.shutdown()
    return {"times": times, "sent": sent, "error": error, "loss": loss}


class _Trained:
    """A stage of a model of its own, sent in one of the ways."""

    def __init__(self, arguments: argparse.Namespace, way: str) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed.pipelining import PipelineStage, schedules

        import byteps_like.torch as bps

        rank, ranks, self.way = dist.get_rank(), dist.get_world_size(), way
        if way == "gloo":
            os.environ["GLOO_SOCKET_IFNAME"] = "eth0"  # a lab host's only one
        group = dist.new_group(backend="gloo") if way == "gloo" else None
        self.model = _stage(arguments, rank, ranks)
        stage = PipelineStage(self.model, rank, ranks, torch.device("cpu"), group=group)
        self._pipe = getattr(schedules, arguments.schedule)(stage, arguments.microbatches, loss_fn=_loss)
        if (options := WAYS[way]) is not None:
            bps.compress_pipeline(self._pipe, **options)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self._text, self._random = _text(), torch.Generator().manual_seed(3)
        self._rows, self._window = arguments.rows * arguments.microbatches, arguments.window
        self._first, self._last, self.loss = rank == 0, rank == ranks - 1, 0.0
        self._step()
        self.gradients = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])

    def error(self, plain: _Trained) -> float:
        """Of the first step's gradients, of all ranks, relative to those of `plain`."""
        import torch
        import torch.distributed as dist

        both = torch.stack([(self.gradients - plain.gradients).square().sum(), plain.gradients.square().sum()])
        dist.all_reduce(both)
        return float((both[0] / both[1]).sqrt())

    def run(self, steps: int) -> float:
        """Seconds per step."""
        import torch.distributed as dist

        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            self._step()
        return (time.perf_counter() - start) / steps

    def _step(self) -> None:
        import torch

        self._optimizer.zero_grad()
        starts = torch.randint(len(self._text) - self._window - 1, (self._rows,), generator=self._random)
        windows = self._text[starts[:, None] + torch.arange(self._window + 1)]
        losses: list[torch.Tensor] = []
        named = {"target": windows[:, 1:], "losses": losses} if self._last else {}
        self._pipe.step(*((windows[:, :-1],) if self._first else ()), **named)
        self._optimizer.step()
        self.loss = sum(loss.item() for loss in losses) / max(len(losses), 1)

    def sent(self) -> int:
        """Bytes of this rank in one step, with headers; 0 where gloo sends them."""
        import torch.distributed as dist

        group: Any = dist.group.WORLD
        far = [peer for peer in range(group.size()) if peer != group.rank()]
        before = sum(group.world.counters(peer)["bytes_sent"] for peer in far)
        self.run(1)
        return sum(group.world.counters(peer)["bytes_sent"] for peer in far) - before if self.way != "gloo" else 0


def _stage(arguments: argparse.Namespace, rank: int, ranks: int) -> Any:
    """A block of the GPT; the embedding before the first, the scores after the last."""
    import torch

    from examples._gpt import CHARACTERS, GPT

    torch.manual_seed(rank)
    whole = GPT(arguments.window, arguments.width, layers=1)

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.characters = torch.nn.Embedding(CHARACTERS, arguments.width) if rank == 0 else None
            self.block, self.head = whole.blocks.layers[0], whole.head if rank == ranks - 1 else None
            mask = torch.nn.Transformer.generate_square_subsequent_mask(arguments.window)
            self.register_buffer("mask", mask)

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            hidden = hidden if self.characters is None else self.characters(hidden)
            hidden = self.block(hidden, self.mask, is_causal=True)
            return hidden if self.head is None else self.head(hidden)

    return Stage()


def _loss(scores: Any, following: Any) -> Any:
    from torch.nn import functional

    return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


def _text() -> Any:
    import torch

    return torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long() % 128


if __name__ == "__main__":
    main()
