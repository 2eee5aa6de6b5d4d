"""What a cut costs the steps in which it is written: blocks of steps with one and without, in turns, in one job.

    python -m bench.internals.cuts                                (2 workers and 2 servers on this host)
    python -m bench.internals.cuts --megabytes 20 --compute 0.1 --rounds 20 --store

Each worker trains linear layers by Adam, so that a cut has three times the bytes of the model, and commits in every
step. A GPU's computation is emulated by sleeping. Blocks take turns: with, without, without, with, ...; a cut begins
with the first commit of a block. What is written is read back afterwards and compared. With --store servers keep as
many bytes, with Adam's moments, which ranks read from them when a cut begins.
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
    parser.add_argument("--megabytes", type=float, default=32, help="of the model")
    parser.add_argument("--compute", type=float, default=0.2, help="seconds of a step that are emulated by sleeping")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--store", action="store_true", help="servers keep as much as the model has")
    parser.add_argument("--directory", type=Path, help="of the cuts; by default a temporary one")
    parser.add_argument("--json", type=Path, help="also write the result there")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    known = arguments()
    if known.worker is not None:
        work(known)
        return
    with tempfile.TemporaryDirectory(dir=known.directory) as folder:
        run = module("byteps_like", "run", "-n", str(known.workers), "-s", "2", "-q", "--")
        subprocess.run([*run, *again("--worker", folder)], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        result = json.loads((Path(folder) / "result.json").read_text())
    show(result)
    if known.json is not None:
        known.json.write_text(json.dumps(result, indent=1))


def show(result: dict[str, Any]) -> None:
    from byteps_like.bench.report import print_table

    rows = [(name, *(f"{result[name][what]:.1f}" for what in ("step", "commit", "first"))) for name in ("none", "cut")]
    print_table("Medians (ms)", ("blocks with", "a step", "a commit", "the first commit"), rows)
    print(f"steps {result['overhead']:+.2%} in the median of {result['pairs']} pairs of blocks of {STEPS} steps")
    print(f"a cut of {result['bytes'] / 1e6:.0f} MB was whole {result['whole']:.1f} s after it had begun")


def work(known: argparse.Namespace) -> None:
    import torch

    import byteps_like.torch as bps

    bps.init()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    state, step = training(known, bps, torch)
    cuts = known.worker / "cuts"
    bps.elastic.save(cuts, state)  # imports what writes
    blocks: dict[str, list[dict[str, float]]] = {"none": [], "cut": []}
    for number in range(2 * known.rounds):
        kind = "cut" if number % 4 in (0, 3) else "none"
        blocks[kind].append(block(bps, state, step, wants=kind == "cut"))
    bps.elastic.save(cuts, state)
    check(torch, bps, state, cuts)
    if bps.rank() == 0:
        (known.worker / "result.json").write_text(json.dumps(summary(known, blocks, bps.elastic.latest(cuts))))
    bps.shutdown()


def training(known: argparse.Namespace, bps: Any, torch: Any) -> tuple[Any, Any]:
    """The state, and what makes a step."""
    width = 512
    layers = max(1, round(known.megabytes * 1e6 / 4 / width**2))
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)))
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters(), foreach=True), model.named_parameters())
    kept: dict[str, Any] = {}
    if known.store:
        values = {name: one.detach().numpy().copy() for name, one in model.named_parameters()}
        kept["store"] = bps.Store("kept", values, update="adam:lr=0.001")
    inputs = torch.randn(2, width)

    def step() -> None:
        time.sleep(known.compute)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return bps.elastic.TorchState(model, optimizer, step=0, **kept), step


def block(bps: Any, state: Any, step: Any, *, wants: bool) -> dict[str, float]:
    """Milliseconds of its median commit, its first commit and its mean step; seconds until its cut was written."""
    bps.barrier()
    if wants:
        state.saver.want()
    commits, began, whole = [], time.perf_counter(), 0.0
    for _ in range(STEPS):
        step()
        before = time.perf_counter()
        state.commit()
        commits.append(time.perf_counter() - before)
        if wants and not whole and len(commits) > 1 and not state.saver.is_under_way:
            whole = time.perf_counter() - began
    ended = time.perf_counter()
    state.finish_cut()
    times = {"commit": statistics.median(commits[1:]), "first": commits[0], "step": (ended - began) / STEPS}
    return {name: 1e3 * value for name, value in times.items()} | {"whole": whole}


def check(torch: Any, bps: Any, state: Any, cuts: Path) -> None:
    """What was written last is what there is."""
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.zero_()
    bps.elastic.load(cuts, state)
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def summary(known: argparse.Namespace, blocks: dict[str, list[dict[str, float]]], cut: Path) -> dict[str, Any]:
    pairs = zip(blocks["none"], blocks["cut"], strict=True)
    medians = {
        kind: {what: statistics.median(one[what] for one in some) for what in ("step", "commit", "first")}
        for kind, some in blocks.items()
    }
    return {
        **medians,
        "pairs": known.rounds,
        "overhead": statistics.median(with_one["step"] / without["step"] - 1 for without, with_one in pairs),
        "bytes": sum(path.stat().st_size for path in cut.rglob("*") if path.is_file()),
        "whole": statistics.median(one["whole"] for one in blocks["cut"]),
        "settings": {name: str(value) for name, value in vars(known).items()},
    }


if __name__ == "__main__":
    main()
