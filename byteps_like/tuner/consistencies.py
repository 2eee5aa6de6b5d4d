"""Several consistencies to train with: how fast it was under each, which one stays, and its saved form. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from byteps_like.errors import ConfigError
from byteps_like.tuner.setting import save_json

ENOUGH = 0.95
"""Of the rate of the fastest: who has as much, and was named before it, is preferred."""


@dataclass(frozen=True)
class Rate:
    """What came of a consistency."""

    consistency: str
    steps: float
    """That counted, of all ranks, per second."""


def choice_of(rates: Sequence[Rate]) -> int:
    """Which of them, one at least, stays: the first of those that are about as fast as the fastest."""
    best = max(rate.steps for rate in rates)
    return next(number for number, rate in enumerate(rates) if rate.steps >= ENOUGH * best)


def table(rates: Sequence[Rate], chosen: int) -> str:
    """One line for each, the chosen one marked."""
    width = max(len(rate.consistency) for rate in rates)
    lines = (
        f"{'*' if number == chosen else ' '} {rate.consistency:{width}}  {rate.steps:8.2f} steps/s"
        for number, rate in enumerate(rates)
    )
    return "\n".join(lines)


def save_choice(path: Path, chosen: str, rates: Sequence[Rate]) -> None:
    """Writes it, and how it was found, as JSON; the file appears whole or not at all."""
    save_json(path, {"version": 1, "consistency": chosen, "trials": [asdict(rate) for rate in rates]})


def load_choice(path: Path, known: Sequence[str]) -> int:
    """Which of `known` was saved there. Raises ConfigError, naming the file, for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["consistency"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a consistency saved by a tuner: {error!r}") from None
    if found not in known:
        raise ConfigError(
            f"{path}: consistency {found!r} is none of {', '.join(map(repr, known))}, which may be tried here; remove"
            " the file, or give tune another path"
        )
    return known.index(found)
