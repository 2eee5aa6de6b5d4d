"""Trying several consistencies while training runs, to keep the fastest."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from byteps_like.errors import ConfigError
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import text_of
from byteps_like.torch.adapt.tuning import ON, Tune
from byteps_like.torch.calls.handles import synchronize
from byteps_like.torch.calls.reductions import Reduction, Sum
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.ops.single import start
from byteps_like.tuner.consistencies import Rate, choice_of, load_choice, save_choice, table
from byteps_like.tuner.rounds import TrialPace, TrialRounds

if TYPE_CHECKING:
    from byteps_like.torch.stored.pushes import Contributed, Pushes

logger = logging.getLogger(__name__)

PACE = TrialPace(discard=2, measure=20)
_FIRST = 1 << 30  # priority: everybody waits for it
_RATE, _ENDS, _SAVED, _REFUSED, _WORDS = range(5)


class ConsistencyTrials:
    """Trains under each of `policies` for some of this rank's own steps, the first being in force already.

    Each rank measures how many of its steps counted per second, without the time in which it waits for others to end
    the trial; what they say together is compared, and is the same on all ranks, which therefore decide alike. It ends
    when a rank trains no more, with the best so far. On the wire: a push_pull of four float64 per trial.

    `tune` is "on", or a path: what was saved there is used after the first step; if nothing was, what is found will be.
    Rank 0 alone looks at the file. If it is broken, or names another consistency, the first step of all ranks ends with
    ConfigError, and with the trials.
    """

    def __init__(self, pushes: Pushes, policies: Sequence[Policy], tune: Tune, pace: TrialPace = PACE) -> None:
        self._pushes, self._policies = pushes, tuple(policies)
        self._texts = tuple(text_of(policy) for policy in policies)
        self._path = None if tune == ON else Path(os.fspath(tune))
        self._runtime = _runtime.current()
        self._name = f"consistencies.{self._runtime.count('consistencies')}"
        self._rounds = TrialRounds(pace)
        self._rates: list[Rate] = []
        self._saved, self._refusal = self._read()
        self.ended = False
        self._before = pushes.contributed()
        self._mark()

    def _read(self) -> tuple[int | None, str]:
        """Of rank 0: which was saved, or why that can't be told."""
        if self._runtime.worker.rank or self._path is None or not self._path.exists():
            return None, ""
        try:
            return load_choice(self._path, self._texts), ""
        except ConfigError as error:
            return None, str(error)

    def _mark(self) -> None:
        """Time is taken from here."""
        self._last = self._runtime.clock()

    def after_step(self) -> None:
        """Of all ranks, each at its own pace."""
        if self.ended:
            return
        now = self._runtime.clock()
        if self._rounds.note(now - self._last):
            self._decide(leaves=False)
        elif not self._rounds.seconds:
            self._before = self._pushes.contributed()
        self._mark()

    def before_finish(self) -> None:
        """This rank trains no more, so others shall not wait for it at the end of a trial."""
        if not self.ended:
            self._decide(leaves=True)

    def end(self) -> None:
        """Whatever is in force stays. All ranks say so at the same point."""
        self.ended = True

    def _decide(self, leaves: bool) -> None:
        said = self._exchanged(leaves)
        if said[_REFUSED]:
            self._refuse()
        if self._rounds.seconds and not said[_ENDS]:  # else it was the first step
            self._rates.append(Rate(self._texts[len(self._rates)], said[_RATE]))
        if said[_SAVED]:
            self._keep(int(said[_SAVED]) - 1)
        elif said[_ENDS] or len(self._rates) == len(self._policies):
            self._keep(choice_of(self._rates) if self._rates else 0)
        else:
            self._try(len(self._rates))

    def _exchanged(self, leaves: bool) -> list[float]:
        """What all ranks say, added up. Until all have come here, nobody's servers wait for those who have."""
        rate = self._own_rate()
        self._pushes.settle()
        words = torch.zeros(_WORDS, dtype=torch.float64, device="cpu")
        words[_RATE], words[_ENDS] = rate, float(leaves)
        words[_SAVED] = 0 if self._saved is None else 1 + self._saved
        words[_REFUSED] = float(bool(self._refusal))
        alike = Reduction(Sum, _FIRST, purpose=f"trying {' '.join(self._texts)}")
        found: list[float] = synchronize(start(words, self._name, alike, 0)).tolist()
        return found

    def _own_rate(self) -> float:
        seconds = sum(self._rounds.seconds)
        if seconds <= 0:
            return 0.0
        return _share(self._before, self._pushes.contributed()) * len(self._rounds.seconds) / seconds

    def _refuse(self) -> None:
        self.ended = True
        raise ConfigError(self._refusal or "rank 0 can't use the saved consistency; its own error says why")

    def _try(self, number: int) -> None:
        self._pushes.adopt(self._policies[number])
        self._rounds.begin()

    def _keep(self, number: int) -> None:
        self.ended = True
        self._pushes.adopt(self._policies[number])
        if not self._rates or self._runtime.worker.rank:
            return
        logger.info("consistency=%r stays\n%s", self._texts[number], table(self._rates, number))
        if self._path is not None:
            save_choice(self._path, self._texts[number], self._rates)


def _share(before: Contributed, after: Contributed) -> float:
    """Of contributions between the two, how many counted."""
    made = after.made - before.made
    return 1.0 - (after.left_out - before.left_out) / made if made else 1.0
