"""What goes on between a site's servers and those above, on a thread of rank 0's process."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from byteps_like.errors import BytePSLikeError, from_code
from byteps_like.store.upper.progress import AboveLost, Below, Exchange
from byteps_like.store.upper.upper import Upper

logger = logging.getLogger(__name__)

_SHORTEST, _LONGEST = 0.001, 0.1
"""Seconds between two looks at what versions there are."""
_SHARE = 0.25
"""Of the time that the missing versions are expected to take, until they are looked for."""


class _Pace:
    """How long versions take, by looks at how many there are."""

    def __init__(self) -> None:
        self._made, self._at = 0, time.monotonic()
        self._seconds = 0.0

    def pause(self, made: int, missing: int) -> float:
        """Seconds until the next look."""
        now = time.monotonic()
        if made > self._made:
            self._seconds = (now - self._at) / (made - self._made)
            self._made, self._at = made, now
        return min(max(_SHARE * missing * self._seconds, _SHORTEST), _LONGEST)


VersionsNow = Callable[[], Mapping[str, int]]
"""Of each thing to exchange, the version that servers have by now: the least of its parts'. Blocks."""


class SiteRelay:
    """Exchanges each tensor, or rows, whenever `every` more versions were made."""

    def __init__(self, upper: Upper, name: str, versions: VersionsNow, exchange: Exchange) -> None:
        """`upper` has been joined; it is left when this ends. `name`: of whose values they are."""
        self.lock = threading.Lock()
        """Held during an exchange. Whoever holds the site's gate, too, takes this first."""
        self.exchanges = 0
        self.error: BytePSLikeError | None = None
        self._upper, self._name, self._versions, self._exchange = upper, name, versions, exchange
        self._pace, self._ends = _Pace(), threading.Event()
        self._thread = threading.Thread(target=self._main, name="byteps_like-site", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Blocks until an exchange that is under way is over. Idempotent."""
        self._ends.set()
        self._thread.join()

    def exchange_last(self) -> None:
        """All once more. The caller holds the lock. Raises what this has ended with."""
        if self.error is not None:
            raise self.error
        try:
            self._run(self._exchange.all)
        except AboveLost as lost:
            raise self._lost(lost.error) from lost

    def begin_anew(self) -> None:
        """All was restored. The caller holds the site's gate."""
        self._exchange.begin_anew()

    def _main(self) -> None:
        try:
            pause = _SHORTEST
            while not self._ends.wait(pause):
                with self.lock:
                    pause = self._look()
        except AboveLost as lost:
            if not self._ends.is_set() and self._upper.joined:
                self._lost(lost.error)
        except BytePSLikeError as error:  # of the site's own job, all of whose ranks hear of it
            self.error = self.error or error
        finally:
            self._upper.leave()

    def _look(self) -> float:
        """Exchanges what is due; seconds until the next look."""
        versions = self._versions()
        if due := [one for one in self._exchange.all if self._missing(one, versions) <= 0]:
            self._run(due)
        made = sum(one.made(versions[one.name]) for one in self._exchange.all)
        missing = min((self._missing(one, versions) for one in self._exchange.all), default=1)
        return self._pace.pause(made, missing)

    def _missing(self, one: Below, versions: Mapping[str, int]) -> int:
        """Versions until its next exchange."""
        every = self._upper.every
        return (one.sent // every + 1) * every - one.made(versions[one.name])

    def _run(self, due: Sequence[Below]) -> None:
        self._exchange.run(due)
        self.exchanges += 1

    def _lost(self, error: BytePSLikeError) -> BytePSLikeError:
        """The error that this ends with; it is logged."""
        if self.error is None:
            text = f"{self._name!r} has lost the upper group at {self._upper.address}: {error}"
            self.error = from_code(error.code, text)
            logger.error("%s; training goes on without it", text)
        return self.error
