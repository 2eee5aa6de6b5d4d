"""One exchange of values between a site's servers and those above: what travels, and in which order. On rank 0.

Of a tensor x(p) is the value that is read, u what comes back from above, x(m) the value when u is merged, which has
gone on meanwhile. Servers compute u - x(m), then add merge·(u - x(m)) to the value: whatever is contributed between the
two stays whole. The next contribution to the upper group begins at `last` = x(p) + merge·(u - x(m)), so that it has all
that was contributed to the site since x(p), and nothing of what came from above.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from byteps_like.errors import BytePSLikeError, CorruptError
from byteps_like.store.arrays import Array
from byteps_like.store.functions.calling import begin_call, end_call
from byteps_like.store.future import Future
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.keeping import KeepHandle, Keeps, KeptTensor


class ValuesAbove(Protocol):
    """The upper group's store."""

    def push(self, name: str, value: Any) -> Future:
        """See Store.push."""

    def pull(self, name: str, out: Any) -> Future:
        """See Store.pull."""


@dataclass(frozen=True)
class Site:
    """What a site's store can do for an exchange."""

    name: str
    pull: Callable[[str, Array], Future]
    versions: Callable[[], Mapping[str, int]]
    """Of each tensor, the version that servers have by now: the least of its partitions'. Blocks."""
    keeper: Keeps
    gate: threading.RLock
    """Held while this rank's contributions must not come in between."""


class AboveLost(Exception):
    """The upper group can't be reached, or has failed."""

    def __init__(self, error: BytePSLikeError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _above() -> Iterator[None]:
    try:
        yield
    except BytePSLikeError as error:
        raise AboveLost(error) from error


class TensorBelow:
    """A tensor of a site's store. `beside`: the place on its servers where the upper group's value is put. `first`:
    the value that both begin with."""

    def __init__(self, name: str, kept: KeptTensor, beside: KeptTensor, first: Array) -> None:
        self.name, self.kept, self.beside = name, kept, beside
        self.last = first.copy()
        """Where the next contribution to the upper group begins."""
        self.value, self.change, self.upper = (np.empty_like(first) for _ in range(3))
        self.sent = 0
        """Versions that contributions have made of it, when it was exchanged last."""
        self._others = 0
        """Versions that are not made of contributions: restored ones, and what was merged."""

    def made(self, version: int) -> int:
        """Versions that contributions have made of it."""
        return version - self._others

    def merged(self) -> None:
        """That has made a version."""
        self._others += 1

    def begin_at(self, value: Array, version: int) -> None:
        """That was restored."""
        self.last = value
        self._others, self.sent = version, 0


class Exchange:
    """One at a time. `turned`: the upper group takes gradients."""

    def __init__(
        self, site: Site, above: ValuesAbove, tensors: Sequence[TensorBelow], merge: float, *, turned: bool
    ) -> None:
        self.tensors = tensors
        self._site, self._above = site, above
        self._merge, self._turned = merge, turned
        self._beginnings = 0
        """How often all was restored: what was under way then is void."""

    def run(self, tensors: Sequence[TensorBelow]) -> None:
        """Contributes to the upper group how far these have come, and merges what it has. Blocks. Raises AboveLost, and
        the errors of the site's own job."""
        beginning = self._beginnings
        versions = self._read(tensors)
        with self._site.gate:
            if beginning != self._beginnings:
                return
            made = {one.name: one.made(versions[one.name]) for one in tensors}
            changed = [one for one in tensors if made[one.name] > one.sent]
            for one in changed:
                self._compute_change(one)
        left_out = self._meet(tensors, changed)
        jumps = self._merged(tensors, beginning) if self._merge else {one.name: 0 for one in tensors}
        with self._site.gate:
            if beginning != self._beginnings or jumps is None:
                return
            for one in tensors:
                np.add(one.last if one.name in left_out else one.value, jumps[one.name], out=one.last)
                one.sent = made[one.name]

    def begin_anew(self) -> None:
        """All was restored. The caller holds the gate; what was under way changes nothing any more."""
        self._beginnings += 1
        values = [np.empty_like(one.last) for one in self.tensors]
        reads = [self._site.pull(one.name, value) for one, value in zip(self.tensors, values, strict=True)]
        for one, value, read in zip(self.tensors, values, reads, strict=True):
            one.begin_at(value, read.version)

    def _read(self, tensors: Sequence[TensorBelow]) -> dict[str, int]:
        """The site's values; their versions."""
        reads = {one.name: self._site.pull(one.name, one.value) for one in tensors}
        return {name: future.version for name, future in reads.items()}

    def _compute_change(self, one: TensorBelow) -> None:
        """How far it has come, as the upper group's update takes it."""
        first, second = (one.last, one.value) if self._turned else (one.value, one.last)
        np.subtract(first, second, out=one.change)

    def _meet(self, tensors: Sequence[TensorBelow], changed: Sequence[TensorBelow]) -> set[str]:
        """Contributes to the upper group, and reads what it has; the names of contributions that are no part of it."""
        with _above():
            pushes = {one.name: self._above.push(one.name, one.change) for one in changed}
            for read in [self._above.pull(one.name, one.upper) for one in tensors]:
                read.wait()
            return {name for name, push in pushes.items() if not push.counted}

    def _merged(self, tensors: Sequence[TensorBelow], beginning: int) -> dict[str, Any] | None:
        """By how much it has moved each value. None: all was restored meanwhile."""
        _settle([one.beside.push(one.upper.ctypes.data, Note()) for one in tensors])
        for one in tensors:
            if not self._call(beginning, [one.kept, one.beside], -1.0):
                return None
        for one in tensors:
            if not self._call(beginning, [one.beside, one.kept], self._merge):
                return None
            one.merged()
        _settle([one.beside.pull(one.upper.ctypes.data) for one in tensors])
        return {one.name: one.upper * one.upper.dtype.type(self._merge) for one in tensors}

    def _call(self, beginning: int, tensors: Sequence[KeptTensor], a: float) -> bool:
        """Adds a times the first to the second, on the site's servers, unless all was restored meanwhile."""
        with self._site.gate:
            if beginning != self._beginnings:
                return False
            handle = begin_call(self._site.keeper, [one.declared for one in tensors], "axpy", {"a": a})
        end_call("axpy", handle)
        return True


def _settle(handles: Sequence[KeepHandle]) -> None:
    for handle in handles:
        handle.wait()
        if any(outcome.applied is not Applied.COUNTED for outcome in handle.outcomes()):
            raise CorruptError("what has come from the upper group is not finite")
