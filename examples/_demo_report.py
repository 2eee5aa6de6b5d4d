"""The plot and the table of demo.py."""

import math
from pathlib import Path
from typing import Any

import matplotlib
from rich.table import Table

matplotlib.use("Agg")
from matplotlib import pyplot

Result = dict[str, Any]
"""What digits.py writes with --json, and "seconds" from start to end."""


def difference(one: Result, many: Result) -> list[float]:
    """Of the two losses, step by step."""
    return [abs(a - b) for a, b in zip(one["loss"], many["loss"], strict=True)]


def plot(one: Result, many: Result, title: str, path: Path) -> None:
    """Both losses on top of each other, and how far they are apart."""
    figure, (top, bottom) = pyplot.subplots(
        2, 1, sharex=True, figsize=(9, 6), height_ratios=(3, 1), layout="constrained", dpi=120
    )
    steps = range(1, one["steps"] + 1)
    top.plot(steps, one["loss"], color="#f2a65a", linewidth=5, label="one process, whole batch")
    top.plot(steps, many["loss"], color="#17607a", linewidth=1.4, label=f"{many['workers']} workers, a part of it each")
    top.set(ylabel="training loss (cross-entropy)", ylim=(0, None), title=title)
    top.legend(frameon=False)
    apart = difference(one, many)
    bottom.semilogy(steps, [value or math.nan for value in apart], ".", color="#8a3033", markersize=3)
    bottom.set(xlabel="step", ylabel="difference", ylim=(1e-9, 1), title=f"largest difference {max(apart):.1e}")
    bottom.title.set(fontsize="medium", y=0.7)
    for axes in (top, bottom):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def summary(one: Result, many: Result, servers: int, path: Path) -> Table:
    """Both runs side by side."""
    table = Table("", "one process", f"{many['workers']} workers + {servers} servers", title="byteps_like demo: digits")
    row = table.add_row
    row("test accuracy", *(f"{run['accuracy']:.1%}" for run in (one, many)))
    row("last loss", *(f"{run['loss'][-1]:.6f}" for run in (one, many)))
    row("largest difference in loss", "", f"{max(difference(one, many)):.1e} in {one['steps']} steps")
    row("steps per second", *(f"{run['steps_per_second']:.0f}" for run in (one, many)))
    row(
        "share of communication",
        "",
        f"{many['communication_share']:.0%} of a step of {many['step_seconds'] * 1e3:.1f} ms",
    )
    row(
        "payload pushed, pulled",
        "",
        f"{many['payload_sent'] / 1e9:.3f} GB, {many['payload_received'] / 1e9:.3f} GB (TCP)",
    )
    row("from start to end", *(f"{run['seconds']:.1f} s" for run in (one, many)))
    row("plot", "", str(path))
    return table
