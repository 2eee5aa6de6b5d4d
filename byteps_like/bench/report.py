"""What all benchmarks share: who measured what, medians with spread, JSON lines, tables and plots.

A figure is worth little without its rival and its limit beside it, taken in the same run: `interleave` runs the
contenders in turn, so that what the machine does meanwhile hits them alike.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[2]
IS_CHECKOUT = (ROOT / "pyproject.toml").is_file()
OUT = (ROOT if IS_CHECKOUT else Path.cwd()) / "out"


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of repeated measurements of one thing."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value; with fewer than four the extremes stand for the quartiles."""
        if len(values) < 4:
            return cls(statistics.median(values), min(values), max(values), len(values))
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high, len(values))

    @property
    def relative(self) -> float:
        """Distance between the quartiles as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0


def interleave(contenders: Mapping[str, Callable[[], float]], repeats: int, warm_up: int = 1) -> dict[str, list[float]]:
    """Calls "ours, rival, ours, rival, …"; each call returns its own time. The first `warm_up` turns don't count."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(warm_up + repeats):
        for name, contender in contenders.items():
            elapsed = contender()
            if turn >= warm_up:
                times[name].append(elapsed)
    return times


def context(config: Mapping[str, Any]) -> dict[str, Any]:
    """Commit, machine, versions and configuration: the part that every JSON line carries."""
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "machine": _machine(),
        "versions": _versions(),
        "config": dict(config),
    }


def write_json_lines(path: Path, config: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends one self-contained line per row."""
    path.parent.mkdir(parents=True, exist_ok=True)
    common = context(config)
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({**common, **row}) + "\n")


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table on the terminal; the first column to the left, numbers to the right. Wide enough for a log file."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    Console(width=max(console.width, 180) if not console.is_terminal else None).print(table)


def plot_lines(
    path: Path, title: str, axes: tuple[str, str], series: Mapping[str, tuple[list[float], list[float]]]
) -> None:
    """A PNG of `series` (name to x and y values), both axes logarithmic. Without matplotlib it says so and goes on."""
    _plot_lines(path, series, {"title": title, "xlabel": axes[0], "ylabel": axes[1], "xscale": "log", "yscale": "log"})


def plot_curves(
    path: Path, title: str, axes: tuple[str, str], series: Mapping[str, tuple[list[float], list[float]]]
) -> None:
    """The same with plain axes from 0 on, as PNG or SVG."""
    _plot_lines(path, series, {"title": title, "xlabel": axes[0], "ylabel": axes[1], "ylim": (0, None)})


def plot_points(
    path: Path, title: str, axes: tuple[str, str], series: Mapping[str, tuple[list[float], list[float]]]
) -> None:
    """A PNG of points, both axes logarithmic, and the line on which y is x."""
    values = [value for points in series.values() for axis in points for value in axis]
    ends = [min(values), max(values)]
    settings = {"title": title, "xlabel": axes[0], "ylabel": axes[1], "xscale": "log", "yscale": "log"}
    _plot_lines(path, {**series, "limit: equal": (ends, ends)}, settings, "o")


def plot_scatter(path: Path, title: str, axes: tuple[str, str], points: Mapping[str, tuple[float, float]]) -> None:
    """A PNG of single points with their names beside them, both axes logarithmic."""

    def draw(axis: Any) -> None:
        for name, (x, y) in points.items():
            axis.plot([x], [y], "o")
            axis.annotate(name, (x, y), textcoords="offset points", xytext=(5, 3), fontsize=8)
        axis.set(title=title, xlabel=axes[0], ylabel=axes[1], xscale="log", yscale="log")
        axis.grid(which="major", alpha=0.3)

    _plot(path, draw)


def _plot_lines(
    path: Path,
    series: Mapping[str, tuple[list[float], list[float]]],
    settings: Mapping[str, Any],
    style: str = "o-",
) -> None:
    def draw(axis: Any) -> None:
        for name, (x, y) in series.items():
            axis.plot(x, y, "--" if name.startswith("limit") else style, label=name)
        axis.set(**settings)
        axis.grid(which="major", alpha=0.3)
        axis.legend()

    _plot(path, draw)


def plot_bars(
    path: Path, title: str, ylabel: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]
) -> None:
    """A PNG with a bar for each of `series` (name to one value per group) in each group, and a line at 1."""

    def draw(axis: Any) -> None:
        width = 0.8 / max(len(series), 1)
        for number, (name, values) in enumerate(series.items()):
            shift = (number - len(series) / 2 + 0.5) * width
            axis.bar([place + shift for place in range(len(groups))], values, width, label=name)
        axis.axhline(1.0, color="black", linewidth=0.8)
        axis.set_xticks(range(len(groups)), groups)
        axis.set(title=title, ylabel=ylabel)
        axis.figure.legend(loc="outside lower center", fontsize=8, ncols=min(len(series), 4), frameon=False)

    _plot(path, draw)


def _plot(path: Path, draw: Callable[[Any], None]) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        Console().print("no plot: matplotlib is not installed")
        return
    figure = Figure(figsize=(8, 5), layout="constrained")
    draw(figure.subplots())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def show_bytes(count: float) -> str:
    """ "64 KB", "4 MB": powers of 1024, as message sizes are usually given."""
    for unit in ("B", "KB", "MB"):
        if count < 1024:
            return f"{count:g} {unit}"
        count /= 1024
    return f"{count:g} GB"


def show_time(seconds: float) -> str:
    """Three figures, in the unit that fits."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3f} s"


def show_spread(spread: Spread) -> str:
    """The median and how far the quartiles are apart."""
    return f"{show_time(spread.median)} ±{spread.relative * 50:.0f}%"


def cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0))


def _commit() -> str:
    if not IS_CHECKOUT:
        return "installed"
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or "unknown"


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": _cpu_model(),
        "cores": cores(),
        "memory": memory,
        "kernel": platform.release(),
        "architecture": platform.machine(),
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("byteps_like", "torch", "numpy", "pyzmq", "mpi4py"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
