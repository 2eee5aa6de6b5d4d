"""What it costs that a job could go on without any worker or server, while none of them dies.

    python -m bench.elastic.calm                              (root; 4 workers and 2 servers on a lab of 1 Gb/s)
    python -m bench.elastic.calm --rate none --hosts 2 --servers 1                                   (on this host)

Jobs with and without `elastic` take turns; in each, all ranks train linear layers, whose gradients servers sum. Prints
the median step of both, and the ratio with its quartiles over the turns. A line goes to out/calm.jsonl.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from bench.processes import again
from bench.report import OUT, Spread, interleave, print_table, write_json_lines

WIDTH = 512
WARM_UP = 5
"""Steps before any is measured."""
TIMEOUT = 120.0
"""Seconds for a job."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4, help="with a worker each")
    parser.add_argument("--servers", type=int, default=2, help="on a host each")
    parser.add_argument("--rate", default="1gbit", help="of the hosts' links; none: all run on this host")
    parser.add_argument("--megabytes", type=float, default=16, help="of the model")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30, help="of a job")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    known = arguments()
    if known.worker is not None:
        work(known)
        return
    kinds = {"fixed": False, "elastic": True}
    times = interleave({name: lambda elastic=elastic: step_of(known, elastic) for name, elastic in kinds.items()},
                       known.turns)  # fmt: skip
    ratios = Spread.of([two / one for one, two in zip(times["fixed"], times["elastic"], strict=True)])
    where = "this host" if known.rate == "none" else known.rate
    title = f"a step of {known.megabytes:g} MB, {known.hosts} workers, {known.servers} servers, {where}"
    rows = [(name, f"{1e3 * statistics.median(found):.1f} ms") for name, found in times.items()]
    print_table(
        title, ("job", "median"), [*rows, ("ratio", f"{ratios.median:.3f} ({ratios.low:.3f}-{ratios.high:.3f})")]
    )
    row = {"ratio": ratios.median, "quartiles": [ratios.low, ratios.high], "seconds": times}
    write_json_lines(OUT / "calm.jsonl", vars(known), [row])


def step_of(known: argparse.Namespace, elastic: bool) -> float:
    """Seconds of the median step of the slowest rank of one job."""
    from byteps_like.launch.elastic.crew import ElasticOptions
    from byteps_like.launch.lab.hosts import Lab
    from byteps_like.launch.lab.job import run_in_lab
    from byteps_like.launch.options import RunOptions
    from byteps_like.launch.run import run_job

    given = ElasticOptions(min_workers=known.hosts, max_workers=known.hosts) if elastic else None
    with tempfile.TemporaryDirectory(prefix="calm-") as folder:
        options = RunOptions(
            again("--worker", folder), known.hosts, known.servers, elastic=given, quiet=True, timeout=TIMEOUT,
            environment=given.environment() if given else {},
        )  # fmt: skip
        if known.rate == "none":
            code = run_job(options)
        else:
            with Lab(known.hosts + known.servers, rate=known.rate) as lab:
                code = run_in_lab(lab, options)
        if code:
            sys.exit(code)
        return max(float(path.read_text()) for path in Path(folder).iterdir())


def work(known: argparse.Namespace) -> None:
    import torch

    import byteps_like.torch as bps

    bps.init()
    torch.set_num_threads(1)
    layers = max(1, round(known.megabytes * 1e6 / 4 / WIDTH**2))
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    inputs, seconds = torch.randn(1, WIDTH), list[float]()
    for _ in range(WARM_UP + known.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).sum().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    (known.worker / str(bps.rank())).write_text(json.dumps(statistics.median(seconds[WARM_UP:])))
    bps.shutdown()


if __name__ == "__main__":
    main()
