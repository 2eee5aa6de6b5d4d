"""Which setting to try next: Optuna's tree of Parzen estimators, which maximizes expected improvement. Seeded."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

from byteps_like.errors import ConfigError
from byteps_like.tuner.setting import Setting, Space

_STARTUP = 7  # trials before the model counts: the given one, and a spread of others
_EXPLORE = 10  # trials before the neighbours of the best have their turn
_DUPLICATES = 20  # proposals in a row that were tried before, until one is tried again


@dataclass(frozen=True)
class Trial:
    """One setting, and the seconds of the rounds that were counted."""

    setting: Setting
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """What settings are compared by."""
        return statistics.median(self.seconds)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"setting": asdict(self.setting), "seconds": list(self.seconds)}


class Search(Protocol):
    """Proposes settings."""

    def ask(self) -> Setting:
        """The next to try."""

    def tell(self, trial: Trial) -> None:
        """What came of the last."""

    def keep(self, trials: Sequence[Trial]) -> Setting:
        """Which of those tried (one at least) stays."""


def best_of(trials: Sequence[Trial]) -> Trial:
    """That with the least median; of equals the first."""
    return min(trials, key=lambda trial: trial.median)


class Listed:
    """Proposes those given, in their order; for grids, and tests."""

    def __init__(self, settings: Iterable[Setting]) -> None:
        self._settings = iter(settings)

    def ask(self) -> Setting:
        """Raises StopIteration after the last."""
        return next(self._settings)

    def tell(self, trial: Trial) -> None:
        """Not needed."""

    def keep(self, trials: Sequence[Trial]) -> Setting:
        """The best."""
        return best_of(trials).setting


class ParzenSearch:
    """Proposes by what the trials before say. Equal seeds and times give equal proposals.

    `first` is tried first, then a coarse spread, then what the model expects most of, and from the tenth on whatever
    lies next to the best so far: so few trials find a valley, but not its floor.
    """

    def __init__(self, space: Space, first: Setting, seed: int = 0) -> None:
        """Raises ConfigError without Optuna."""
        try:
            import optuna
        except ModuleNotFoundError:
            raise ConfigError("tuning needs Optuna: pip install optuna, or tune='off'") from None
        self._space = space
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_STARTUP, multivariate=True, group=True)
        self._study: Any = optuna.create_study(direction="minimize", sampler=sampler)
        for setting in (first, *_spread(space, first)):
            self._study.enqueue_trial(_parameters(space, setting), skip_if_exists=True)
        self._told: dict[Setting, float] = {}
        self._open: Any = None

    def ask(self) -> Setting:
        """A setting that was not tried before, if one comes up soon."""
        if len(self._told) >= _EXPLORE:
            best = min(self._told, key=lambda setting: self._told[setting])
            near = [setting for setting in _neighbours(self._space, best) if setting not in self._told]
            if near:
                self._study.enqueue_trial(_parameters(self._space, near[0]))
        for _ in range(_DUPLICATES):
            self._open = self._study.ask()
            setting = self._space.normal(_suggested(self._space, self._open))
            if setting not in self._told:
                return setting
            self._study.tell(self._open, self._told[setting])
        self._open = self._study.ask()
        return self._space.normal(_suggested(self._space, self._open))

    def tell(self, trial: Trial) -> None:
        """See Search."""
        self._told[trial.setting] = trial.median
        self._study.tell(self._open, trial.median)

    def keep(self, trials: Sequence[Trial]) -> Setting:
        """The best."""
        return best_of(trials).setting


def _suggested(space: Space, trial: Any) -> Setting:
    """Sizes are chosen by their place in the ascending list, so that neighbours are near each other."""

    def one(name: str, values: Sequence[int]) -> int:
        place: int = trial.suggest_int(name, 0, len(values) - 1)
        return values[place]

    route = trial.suggest_categorical("route", space.routes)
    partition = one(f"{route} partition", space.partitions)
    segment = one(f"{route} segment", space.segments)
    coded = trial.suggest_categorical("coded", space.codings) if len(space.codings) > 1 else space.codings[0]
    if route == "server":
        return Setting(route, partition, one("server credit", space.credits), segment, coded=coded)
    algorithm = trial.suggest_categorical("algorithm", space.algorithms)
    return Setting(route, partition, segment_bytes=segment, algorithm=algorithm, coded=coded)


def _parameters(space: Space, setting: Setting) -> dict[str, Any]:
    """The inverse of _suggested, with sizes rounded to what there is."""

    def place(value: int, values: Sequence[int]) -> int:
        return min(range(len(values)), key=lambda at: abs(values[at] - value))

    found: dict[str, Any] = {
        "route": setting.route,
        f"{setting.route} partition": place(setting.partition_bytes, space.partitions),
        f"{setting.route} segment": place(setting.segment_bytes or 128 << 10, space.segments),
    }
    if len(space.codings) > 1:
        found["coded"] = setting.coded
    if setting.route == "server":
        return found | {"server credit": place(setting.credit_bytes, space.credits)}
    return found | {"algorithm": setting.algorithm}


def _neighbours(space: Space, setting: Setting) -> list[Setting]:
    """One step away in one thing; in partition and credit together, too, since the one may need the other."""
    sizes = {
        "partition_bytes": space.partitions,
        "credit_bytes": space.credits if setting.route == "server" else (setting.credit_bytes,),
        "segment_bytes": space.segments,
    }

    def moved(**steps: int) -> list[Setting]:
        found = {name: values.index(getattr(setting, name)) + steps.get(name, 0) for name, values in sizes.items()}
        if not all(0 <= at < len(sizes[name]) for name, at in found.items()):
            return []
        chosen: dict[str, Any] = {name: sizes[name][at] for name, at in found.items()}
        return [replace(setting, **chosen)]

    near = [one for by in (1, -1) for one in moved(partition_bytes=by, credit_bytes=by)]
    near += [one for name in sizes for by in (1, -1) for one in moved(**{name: by})]
    near += [replace(setting, coded=coded) for coded in space.codings if coded != setting.coded]
    others = space.algorithms if setting.route == "allreduce" else ()
    return near + [replace(setting, algorithm=name) for name in others if name != setting.algorithm]


def _spread(space: Space, first: Setting) -> list[Setting]:
    """Smaller and larger partitions than `first` by each route, and more credit: what a model needs to begin with."""
    small, large = space.partitions[len(space.partitions) // 4], space.partitions[-len(space.partitions) // 4]
    found = [replace(first, coded=coded) for coded in space.codings if coded != first.coded]
    for route in space.routes:
        for partition in (small, large):
            credit = min(max(2 * partition, first.credit_bytes), space.credits[-1])
            found.append(Setting(route, partition, credit, first.segment_bytes))
    return found
