"""Codecs timed against none while training runs: rank 0's clock decides, and all ranks change in the same round."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.job.routes import Route
from byteps_like.torch.job.shadows import TUNE
from byteps_like.tuner.probe import MARGIN, PACE, Probe, medians
from byteps_like.tuner.search import Search
from byteps_like.tuner.setting import Setting

if TYPE_CHECKING:
    from byteps_like.torch.reduction.api import Adaptable
    from byteps_like.tuner.rounds import TrialPace

logger = logging.getLogger(__name__)


class Probing(Tuning):
    """Steps of `reducer` with its codecs and without them, by turns; what is faster stays. See tuner.probe and Tuning.

    It touches nothing that other optimizers share, so each may have its own. Where `tune` is on, the tuner does this.
    """

    ending = f".codecs{TUNE}"

    def __init__(self, reducer: Adaptable, pace: TrialPace = PACE, search: Search | None = None) -> None:
        super().__init__(reducer, pace=pace, search=search)

    def _decide(self, reducer: Adaptable, last: bool) -> None:
        """Whether there is anything to time is asked after the first round, when all ranks have the same arenas."""
        check = reducer.runtime.config.compression_check
        asked = check == "on" or (check == "auto" and reducer.codecs.selects)
        if self.setting is None and not (asked and reducer.codecs.switchable):
            self._ended = True
        else:
            super()._decide(reducer, last)

    def _new_search(self) -> Search:
        return Probe(Setting(*self._cut, credit_bytes=0))

    def _routes_of(self, reducer: Adaptable) -> list[Route]:
        return [reducer.route]

    def _use(self, reducer: Adaptable, route: Route, setting: Setting) -> None:
        """Links stay as they are."""

    def _report(self, reducer: Adaptable) -> None:
        coded, raw = medians(self.log.trials)
        stays = self.setting is None or self.setting.coded
        logger.log(
            logging.INFO if stays else logging.WARNING,
            "%s: a step takes %.4f s with %s and %.4f s raw, medians of %d rounds: %s",
            reducer.label, coded, ", ".join(reducer.codecs.names), raw, len(self.log.trials) * self._pace.measure,
            "encoding goes on" if stays else f"encoding is switched off (raw is faster by more than {MARGIN:.0%})",
        )  # fmt: skip


def probe(reducer: Adaptable) -> None:
    """Times its codecs if `compression_check` says so, in this world or another."""
    if reducer.codecs.may_encode:
        Probing(reducer)
