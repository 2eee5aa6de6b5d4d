"""Tuning while training runs: rank 0 times the steps and says what all ranks use from the next round on."""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import ConfigError, InvalidArgumentError
from byteps_like.torch.job.routes import Request, Route
from byteps_like.torch.job.shadows import TUNE
from byteps_like.tuner.log import Log
from byteps_like.tuner.rounds import TrialPace, TrialRounds
from byteps_like.tuner.search import ParzenSearch, Search, Trial
from byteps_like.tuner.setting import Setting, Space, load, pack, unpack
from byteps_like.worker.api import Links, TensorSpec, Tunable

if TYPE_CHECKING:
    from byteps_like.torch.reduction.api import Adaptable

logger = logging.getLogger(__name__)

OFF, ON = "off", "on"
PACE = TrialPace()
_NUMBERS = 7  # of a decision: whether it is the last, and a packed setting
_FIRST = 1 << 30  # priority: everybody waits for it

Tune = str | os.PathLike[str]


class Tuning:
    """Varies how `reducer` sends gradients, over `pace.trials` settings, and keeps the best.

    `tune` is "on", or a path: what was saved there is used; if there is nothing, what is found will be saved there.
    Rank 0 alone looks at the file and the clock. Where steps overlap (cross_barrier), the last of a setting waits, so
    that nothing is in flight when the next comes into force; the median forgives it its time. A round in which some
    rank took no part (it has joined) is not counted; once all have joined, the best so far is kept. In another world it
    begins anew. Results don't change: the same numbers are summed over the same ranks, in other pieces.

    Raises InvalidArgumentError for a worker that has nothing to tune. Where rank 0 has no Optuna, or a file that is
    broken or doesn't fit, the first round of all ranks ends with ConfigError, and with the tuning.
    """

    def __init__(
        self, reducer: Adaptable, tune: Tune = ON, pace: TrialPace = PACE, search: Search | None = None
    ) -> None:
        self.log = Log()
        self.setting: Setting | None = None
        """What is in force; None before the first decision."""
        self._ended = False
        self._tune, self._pace = tune, pace
        self._reference = weakref.ref(reducer)  # which holds this
        self._begin(reducer, search)
        reducer.watchers.add(self)

    ending = TUNE
    """Of the name under which decisions are handed out."""

    def _begin(self, reducer: Adaptable, search: Search | None = None) -> None:
        runtime = self._runtime = reducer.runtime
        self._routes = self._routes_of(reducer)
        self._route = self._routes[0]
        self._space = Space(
            tuple(route.name for route in self._routes),
            algorithms=reducer.algorithms,
            codings=(True, False) if reducer.codecs.switchable else (True,),
        )
        self._name = f"{reducer.label}{self.ending}"
        self._rounds = TrialRounds(self._pace)
        self._generation = runtime.generation
        self._last = runtime.clock()
        self._cut = (reducer.route.name, reducer.partition_bytes)
        self.setting, self._ended = None, False
        self.log.trials.clear()
        self._saved: Setting | None = None
        self._search: Search | None = None
        self._refusal = b""
        """Why rank 0 can't tune, for all ranks to raise."""
        if self._route.worker.rank == 0 and not self.done:
            self._prepare(search)

    def _prepare(self, search: Search | None) -> None:
        try:
            self._saved = self._read()
            if self._saved is None:
                self._search = search or self._new_search()
        except (ConfigError, OSError) as error:
            self._refusal = str(error).encode()

    def _read(self) -> Setting | None:
        """What was saved, if anything was, and can be used here."""
        if self._path is None or not self._path.exists():
            return None
        found = load(self._path)
        self._space.check(found, self._path)
        return found

    def _new_search(self) -> Search:
        return ParzenSearch(self._space, Setting(*self._cut))

    def _routes_of(self, reducer: Adaptable) -> list[Route]:
        """Where gradients may go; servers or not is tuned if both are there and nobody has chosen."""
        runtime = reducer.runtime
        if not reducer.free or runtime.route.name != "server" or runtime.joiner is None:
            routes = [reducer.route]
        else:
            routes = [runtime.route, runtime.route_for("allreduce")]
        if runtime.worker.size > 1 and not all(isinstance(route.worker, Tunable) for route in routes):
            raise InvalidArgumentError("tune: this kind of worker has nothing to tune; use tune='off'")
        return routes

    @property
    def done(self) -> bool:
        """Whether nothing is tried any more, or now: a world of one has nothing to tune."""
        return self._ended or self._runtime.worker.size == 1

    @property
    def waits(self) -> bool:
        """Whether the step under way has to end with nothing in flight, for another setting may follow it."""
        return not self.done and (self._rounds.last or self._runtime.generation != self._generation)

    @property
    def _path(self) -> Path | None:
        return None if self._tune == ON else Path(self._tune)

    # Rounds

    def after_round(self) -> None:
        """On all ranks alike: each sees the same rounds, and in them the same ranks."""
        reducer = self._reference()
        if reducer is None:
            return
        now = reducer.runtime.clock()
        if reducer.runtime is not self._runtime:
            self._begin(reducer)
        if not self.done and reducer.complete:
            joined = self._runtime.generation != self._generation
            if self._rounds.note(now - self._last) or joined:
                self._decide(reducer, last=joined)
                now = reducer.runtime.clock()
        self._last = now

    def _decide(self, reducer: Adaptable, last: bool) -> None:
        message = torch.zeros(_NUMBERS, dtype=torch.int64, device="cpu")
        if self._refusal:
            message[0] = -len(self._refusal)
        elif self._route.worker.rank == 0:
            setting, last = self._next(last)
            message.copy_(torch.tensor([int(last), *pack(setting, self._space)], device="cpu"))
        self._hand_out(TensorSpec(self._name, DType.INT64, (_NUMBERS,)), message)
        is_last, *numbers = (int(number) for number in message)
        if is_last < 0:
            self._refuse(-is_last)
        self._apply(reducer, unpack(numbers, self._space))
        self._ended = bool(is_last)
        if self.done and self._search is not None:
            self._report(reducer)

    def _hand_out(self, spec: TensorSpec, message: torch.Tensor) -> None:
        """To all ranks what rank 0 has there."""
        (declared,) = self._route.declare([spec])
        self._route.push_pull(declared, message.data_ptr(), Op.BROADCAST, Request(priority=_FIRST)).wait()

    def _refuse(self, length: int) -> NoReturn:
        """Raises ConfigError, with rank 0's text of so many bytes, on all ranks alike."""
        self._ended = True
        text = torch.tensor(list(self._refusal or bytes(length)), dtype=torch.uint8, device="cpu")
        self._hand_out(TensorSpec(f"{self._name}.refusal{self.ending}", DType.UINT8, (length,)), text)
        raise ConfigError(bytes(text.tolist()).decode())

    def _next(self, last: bool) -> tuple[Setting, bool]:
        """Of rank 0: the next setting, and whether it is to be kept."""
        if self._saved is not None or self._search is None:
            return self._saved or Setting(*self._cut), True
        if self.setting is not None and not last:
            trial = Trial(self.setting, tuple(self._rounds.seconds))
            self.log.trials.append(trial)
            self._search.tell(trial)
        if not last and len(self.log.trials) < self._pace.trials:
            return self._search.ask(), False
        return self._search.keep(self.log.trials) if self.log.trials else Setting(*self._cut), True

    def _apply(self, reducer: Adaptable, setting: Setting) -> None:
        route = self._routes[self._space.routes.index(setting.route)]
        self._use(reducer, route, setting)
        cut = (setting.route, setting.partition_bytes)
        if cut != self._cut:
            as_usual = setting.partition_bytes == self._runtime.partition_bytes
            reducer.recut(route, 0 if as_usual else setting.partition_bytes)
            self._cut = cut
        reducer.codecs.switch(setting.coded)
        self.setting = setting
        self._rounds.begin()

    def _use(self, reducer: Adaptable, route: Route, setting: Setting) -> None:
        reducer.use(route, Links(setting.credit_bytes, setting.segment_bytes, setting.algorithm))

    def _report(self, reducer: Adaptable) -> None:  # noqa: ARG002 - for those who see it otherwise
        logger.info("tuned: %s\n%s", self.setting, self.log.text())
        if self._path is not None and self.setting is not None:
            self.log.save(self._path, self.setting)


def attach(reducer: Adaptable, tune: Tune | None) -> bool:
    """Tunes `reducer`, if that is asked for. One optimizer of a process is tuned: links are common to all."""
    runtime = reducer.runtime
    wanted = runtime.config.tune if tune is None else tune
    if wanted == OFF:
        return False
    if runtime.count("tuned"):
        logger.info("%s is not tuned: another optimizer is being tuned, and they share links", reducer.label)
        return False
    Tuning(reducer, wanted)
    return True


def check_tune(tune: Tune | None) -> None:
    """Raises InvalidArgumentError for what is neither "off", "on" nor a path."""
    if tune is not None and (not isinstance(tune, str | os.PathLike) or not str(tune)):
        raise InvalidArgumentError(f"tune={tune!r} must be 'off', 'on' or the path of a saved setting")
