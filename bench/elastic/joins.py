"""What it costs the others that a worker joins them, and how long it takes to be one of them.

    python -m bench.elastic.joins                                          (root; 4 workers and 1 more on a lab)
    python -m bench.elastic.joins --hosts 4 --servers 2 --rate 400mbit --megabytes 8

All train linear layers by Adam, whose state is three times as large as the gradients, in steps of so many seconds that
results fill a part of the links (`--fill`). Then one more process comes. In some turns it catches up before it joins,
in the others it joins at once and all wait while it takes the state. Prints, of both, the mean step until it is one of
them as a multiple of one before, the longest one, and the time from `elastic.run` to its first step. A line goes to
out/joins.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.processes import again
from bench.report import OUT, print_table, write_json_lines

WIDTH = 512
BEFORE = 10
"""Steps before the newcomer comes, of which the first are not counted."""
WARM_UP = 4
AFTER = 3
"""Steps with it."""
STATE = 3
"""Tensors of the parameters' size that Adam has, with the parameters."""
TIMEOUT = 240.0
"""Seconds for a job."""
KINDS = ("at once", "catches up")
Found = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4, help="with a worker each, before one more comes")
    parser.add_argument("--servers", type=int, default=0, help="on a host each; 0: the workers sum by themselves")
    parser.add_argument("--rate", default="1gbit", help="of the hosts' links")
    parser.add_argument("--megabytes", type=float, default=16, help="of the parameters")
    parser.add_argument("--fill", type=float, default=0.2, help="part of a step in which results fill the links")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    known = arguments()
    if known.worker is not None:
        work(known)
        return
    found: dict[str, list[Found]] = {kind: [] for kind in KINDS}
    for _ in range(known.turns):
        for kind in KINDS:
            found[kind].append(run(known, kind))
    rows = [(kind, *row(known, turns)) for kind, turns in found.items()]
    title = (
        f"{known.megabytes:g} MB of parameters, {known.hosts} workers and 1 more, {known.servers} servers, {known.rate}"
    )
    print_table(
        title, ("the newcomer", "step before", "mean step / that", "longest", "to its first step", "target"), rows
    )
    write_json_lines(OUT / "joins.jsonl", vars(known), [{"kind": kind, "turns": found[kind]} for kind in KINDS])


def row(known: argparse.Namespace, turns: list[Found]) -> tuple[str, ...]:
    """Medians over turns."""
    before, until, longest, join = (
        statistics.median(turn[name] for turn in turns) for name in ("before", "until", "longest", "join")
    )
    target = 1.3 * STATE * known.megabytes * 1e6 / bytes_per_second(known) + 2 * before
    return f"{before:.3f} s", f"{until / before:.3f}", f"{longest:.3f} s", f"{join:.2f} s", f"{target:.2f} s"


def bytes_per_second(known: argparse.Namespace) -> float:
    """Of a link."""
    from byteps_like.launch.lab.network import parse_rate

    return parse_rate(known.rate) / 8


def run(known: argparse.Namespace, kind: str) -> Found:
    """What rank 0 has seen of one job, and the newcomer."""
    from byteps_like.launch.elastic.crew import ElasticOptions
    from byteps_like.launch.fleet import Fleet
    from byteps_like.launch.lab.hosts import Lab
    from byteps_like.launch.lab.job import run_in_lab
    from byteps_like.launch.options import RunOptions

    workers = known.hosts + 1
    elastic = ElasticOptions(min_workers=known.hosts, max_workers=workers, spares=1)
    with (
        tempfile.TemporaryDirectory(prefix="joins-") as folder,
        Lab(workers + known.servers, rate=known.rate) as lab,
    ):
        command = again("--worker", folder, "--kind", kind)
        options = RunOptions(
            command, known.hosts, known.servers, environment=elastic.environment(), elastic=elastic, timeout=TIMEOUT,
            quiet=True,
        )  # fmt: skip
        fleet = Fleet(tuple(range(workers, workers + known.servers)), "behind the workers")
        if code := run_in_lab(lab, options, fleet=fleet):
            sys.exit(code)
        steps, came, first = (json.loads((Path(folder) / name).read_text()) for name in ("steps", "came", "first"))
    before = [end - begin for begin, end in steps if end < came][WARM_UP:]
    until = [end - begin for begin, end in steps if end >= came and begin < first]
    mean = statistics.mean(before)
    return {"before": mean, "until": statistics.mean(until), "longest": max(until), "join": first - came}


def work(known: argparse.Namespace) -> None:
    import torch

    import byteps_like.torch as bps

    is_newcomer = place_in(known.worker) == known.hosts
    torch.set_num_threads(1)
    layers = max(1, round(known.megabytes * 1e6 / 4 / WIDTH**2))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if is_newcomer:
        come(known)
    bps.init()
    optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())
    state = bps.elastic.TorchState(model, optimizer, step=0, last=0)
    if is_newcomer:
        (known.worker / "came").write_text(json.dumps(time.time()))
    train(known, state, is_newcomer)
    bps.shutdown()


def place_in(folder: Path) -> int:
    """0, 1, ... for each process that asks."""
    place = 0
    while True:
        try:
            (folder / f"place{place}").touch(exist_ok=False)
            return place
        except FileExistsError:
            place += 1


def come(known: argparse.Namespace) -> None:
    """Blocks until the newcomer is to come."""
    from byteps_like.torch.elastic.catching_up import arriving

    while not (known.worker / "go").exists():
        time.sleep(0.01)
    if known.kind == "at once":
        arriving.follow = lambda *_: None  # type: ignore[assignment]


def train(known: argparse.Namespace, state: Any, is_newcomer: bool) -> None:
    import torch

    import byteps_like.torch as bps

    inputs, ends = torch.randn(1, WIDTH), list[float]()
    pace = known.megabytes * 1e6 / bytes_per_second(known) / known.fill

    @bps.elastic.run
    def steps(state: Any) -> None:
        while state.last < AFTER:
            began = time.time()
            if is_newcomer and not (known.worker / "first").exists():
                (known.worker / "first").write_text(json.dumps(began))
            state.optimizer.zero_grad()
            loss = state.model(inputs).sum()
            time.sleep(max(0.0, pace - (time.time() - began)))
            loss.backward()
            state.optimizer.step()
            state.step += 1
            state.last += bps.size() > known.hosts
            if state.step == BEFORE:
                (known.worker / "go").touch()
            ends.append(time.time())
            state.commit()

    steps(state)
    if bps.rank() == 0:
        gapless = [(one, two) for one, two in pairwise(ends)]  # worlds form between steps
        (known.worker / "steps").write_text(json.dumps(gapless))


if __name__ == "__main__":
    main()
