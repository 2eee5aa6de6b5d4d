"""Which versions a rank knows of a value that has several parts, each with versions of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import groupby

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.future import PartsFlight
from byteps_like.worker.keeping import Outcome

Found = Sequence[tuple[PartsFlight, Sequence[Outcome]]]


class Versions:
    """Of `count` parts of `name`. Thread-safe; nothing is waited for while the lock is held."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._pulled = [0] * count
        """By part, the version that was read last."""
        self._newest = [0] * count
        """By part, the newest version that this rank knows of."""
        self._lock = threading.Lock()

    def pulled(self) -> tuple[int, ...]:
        """By part, the version that was read last; 0 before."""
        with self._lock:
            return tuple(self._pulled)

    def newest(self) -> tuple[int, ...]:
        """By part, the newest version that this rank knows of."""
        with self._lock:
            return tuple(self._newest)

    def heard(self, found: Found) -> None:
        """What has become of an operation."""
        with self._lock:
            for flight, outcomes in found:
                for part, outcome in zip(flight.parts, outcomes, strict=True):
                    self._newest[part] = max(self._newest[part], outcome.version)
                    if flight.base is None:
                        self._pulled[part] = max(self._pulled[part], outcome.version)

    def noticed(self, found: Found) -> None:
        """What there is of it by now: this rank knows of that, and has not read it."""
        with self._lock:
            for flight, outcomes in found:
                for part, outcome in zip(flight.parts, outcomes, strict=True):
                    self._newest[part] = max(self._newest[part], outcome.version)

    def restored(self, part: int, version: int) -> None:
        """A part was made what it was at a version: it is as if this rank had just read that."""
        with self._lock:
            self._pulled[part] = self._newest[part] = version

    def by_base(self, parts: range, base: int | None) -> list[tuple[range, int]]:
        """Runs of parts that are computed on one version: `base`, or of each the one that was read last."""
        if base is not None:
            self.check(parts, base)
            return [(parts, base)]
        runs = [(list(run), known) for known, run in groupby(parts, key=self.pulled().__getitem__)]
        return [(range(chosen[0], chosen[-1] + 1, parts.step), known) for chosen, known in runs]

    def check(self, parts: range, base: int) -> None:
        """Raises InvalidArgumentError for a version of these that this rank can't know."""
        with self._lock:
            known = min((self._newest[part] for part in parts), default=base)
        if not 0 <= base <= known:
            raise InvalidArgumentError(
                f"base={base} of {self._name!r}: this rank knows of versions 0 to {known};"
                " pull the one that the contribution is computed on"
            )
