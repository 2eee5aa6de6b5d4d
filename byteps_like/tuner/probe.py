"""Whether encoding pays, by the clock: rounds with codecs and rounds without them, by turns. Pure.

HiPress (Bai et al., SOSP 2021) decides by a model alone; what a step really takes has the last word here.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from byteps_like.tuner.rounds import TrialPace
from byteps_like.tuner.search import Trial
from byteps_like.tuner.setting import Setting

MARGIN = 0.05
"""Rounds without codecs have to be faster by so much: they carry more bytes, which others may miss."""
PACE = TrialPace(trials=4, discard=1, measure=4)
"""Coded, raw, coded, raw: what drifts meanwhile meets both. 21 rounds with the first, which doesn't count."""


class Probe:
    """Tries `setting` with codecs and without them, and keeps what is faster. See search.Search."""

    def __init__(self, setting: Setting) -> None:
        self._coded = replace(setting, coded=True)
        self._asked = 0

    def ask(self) -> Setting:
        """By turns, beginning with codecs."""
        self._asked += 1
        return replace(self._coded, coded=self._asked % 2 == 1)

    def tell(self, trial: Trial) -> None:
        """Not needed."""

    def keep(self, trials: Sequence[Trial]) -> Setting:
        """Without codecs if the median of all rounds with them is above that of the others by more than MARGIN.

        With codecs, too, if only one of the two was tried.
        """
        coded, raw = medians(trials)
        return replace(self._coded, coded=not (raw and coded and coded > (1.0 + MARGIN) * raw))


def medians(trials: Sequence[Trial]) -> tuple[float, float]:
    """Seconds per round with codecs and without them; 0 for what was not tried."""
    found = []
    for coded in (True, False):
        seconds = [second for trial in trials if trial.setting.coded is coded for second in trial.seconds]
        found.append(statistics.median(seconds) if seconds else 0.0)
    return found[0], found[1]
