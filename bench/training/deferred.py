"""What deferring weight gradients does to a step: every so many first layers k, the k that is searched, and without.

    python -m bench.training.deferred --model bert-base    4 workers, 4 spare servers at 100 Mb/s each (root)

As bench/training/steps.py, with contenders of its own: barrier and first in first out; crossing the barrier by
priority; the same with deferral. Leaves out/deferred.jsonl and a PNG.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bench import report
from bench.training import steps
from byteps_like.planner.workloads import load


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--model", choices=steps.MODELS, default="bert-base")
    parser.add_argument("--route", choices=("servers", "ring"), default="servers")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--servers", type=int, default=4, help="on hosts of their own")
    parser.add_argument("--rate", default="100mbit", help="speed of the links of the lab")
    parser.add_argument("--ratio", type=float, default=1.0, help="communication (one way) to compute")
    parser.add_argument("--megabytes", type=float, default=10.0, help="gradients of a step, scaled")
    parser.add_argument("--points", type=int, default=6, help="values of k, evenly spread")
    parser.add_argument("--partition-bytes", type=int, default=1 << 17)
    parser.add_argument("--credit-bytes", type=int, default=1 << 17)
    parser.add_argument("--warm-up", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4, help="of a contender's turn")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=1200.0)
    parser.add_argument("--json", type=Path, default=report.OUT / "deferred.jsonl")
    parser.add_argument("--plot", type=Path, default=report.OUT / "deferred.png")
    return parser.parse_args()


def plot(path: Path, arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """Seconds of a step over k."""
    from matplotlib.figure import Figure

    named = {row["contender"].partition(" ")[2]: row for row in rows}
    fixed = sorted((row for way, row in named.items() if way.startswith("deferred ")), key=lambda row: row["first_k"])
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    axis = figure.subplots()
    axis.plot([row["first_k"] for row in fixed], [row["seconds"] for row in fixed], "o-", color="#3b6ea5", label="by k")
    for way, colour in {"fifo": "#d98032", "cross-barrier": "#4f9d69"}.items():
        axis.axhline(named[way]["seconds"], color=colour, linestyle="--", linewidth=1.2, label=f"{way}, not deferred")
    found = named["deferred"]
    axis.plot([found["first_k"]], [found["seconds"]], "*", color="#a8528a", markersize=14, label="searched")
    axis.set(xlabel="first layers that aren't deferred", ylabel="seconds per step", ylim=(0, None))
    axis.set_title(f"{arguments.model}-shaped, {arguments.workers} workers at {arguments.rate}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9, ncols=2, loc="lower right")
    figure.savefig(path, dpi=110)


def main() -> None:
    arguments = parse_arguments()
    layers = len(load(arguments.model).layers)
    ks = sorted({round(layers * point / (arguments.points - 1)) for point in range(arguments.points)})
    ways = ["fifo", "cross-barrier", "deferred", *(f"deferred {k}" for k in ks)]
    arguments.models = [arguments.model]
    arguments.contenders = [f"{arguments.route} {way}" for way in ways]
    rows = steps.measure(arguments)
    steps.show(arguments, rows)
    report.write_json_lines(arguments.json, {name: str(value) for name, value in vars(arguments).items()}, rows)
    plot(arguments.plot, arguments, rows)
    print(f"wrote {arguments.json} and {arguments.plot}")


if __name__ == "__main__":
    main()
