"""What a tuner has tried: as a table, as a plot, as a file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from byteps_like.tuner.search import Trial, best_of
from byteps_like.tuner.setting import Setting, save, show

if TYPE_CHECKING:
    from rich.table import Table


@dataclass
class Log:
    """Trials in their order."""

    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial:
        """See best_of."""
        return best_of(self.trials)

    def table(self) -> Table:
        """One row per trial; the best is marked."""
        from rich.table import Table  # which workers that aren't tuned don't wait for

        table = Table(title="settings tried", title_justify="left")
        for name in ("", "route", "partition", "segment", "credit or algorithm", "seconds", "to best"):
            table.add_column(name, justify="right" if name in ("", "seconds", "to best") else "left", no_wrap=True)
        best = self.best if self.trials else None
        for number, trial in enumerate(self.trials):
            setting = trial.setting
            own = show(setting.credit_bytes) if setting.route == "server" else setting.algorithm or "by size"
            own += "" if setting.coded else ", raw"
            segment = show(setting.segment_bytes) if setting.segment_bytes else "default"
            table.add_row(
                str(number), setting.route, show(setting.partition_bytes), segment, own, f"{trial.median:.4f}",
                f"{trial.median / best.median:.3f}" if best else "", style="bold" if trial is best else None,
            )  # fmt: skip
        return table

    def text(self) -> str:
        """The table as plain text."""
        from rich.console import Console

        console = Console(width=120, no_color=True)
        with console.capture() as capture:
            console.print(self.table())
        return capture.get()

    def save(self, path: Path, setting: Setting) -> None:
        """Writes the JSON that `tune=path` takes, and a plot beside it."""
        save(path, setting, [trial.as_dict() for trial in self.trials])
        self.plot(path.with_suffix(".png"))

    def plot(self, path: Path) -> bool:
        """Each trial's seconds, the best so far, and where each size stood. False without matplotlib."""
        try:
            from matplotlib.figure import Figure
            from matplotlib.ticker import MaxNLocator
        except ModuleNotFoundError:
            return False
        figure = Figure(figsize=(8, 6), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        numbers = range(len(self.trials))
        medians = [trial.median for trial in self.trials]
        for route, marker in (("server", "o"), ("allreduce", "s")):
            mine = [number for number in numbers if self.trials[number].setting.route == route]
            if mine:
                above.plot(mine, [medians[number] for number in mine], marker, label=route)
        above.step(numbers, [min(medians[: number + 1]) for number in numbers], where="post", label="best so far")
        above.set(ylabel="seconds per step")
        above.legend()
        for name in ("partition_bytes", "credit_bytes", "segment_bytes"):
            values = [getattr(trial.setting, name) / (1 << 10) for trial in self.trials]
            below.plot(numbers, values, ".-", label=name.removesuffix("_bytes"))
        below.set(xlabel="trial", ylabel="KiB", yscale="log")
        below.xaxis.set_major_locator(MaxNLocator(integer=True))
        below.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
        return True
