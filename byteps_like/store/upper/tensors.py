"""One exchange of tensors between a site's servers and those above: what travels, and in which order. On rank 0.

Of a tensor x(p) is the value that is read, u what comes back from above, x(m) the value when u is merged, which has
gone on meanwhile. Servers compute u - x(m), and add merge·(u - x(m)) to the value: whatever is contributed meanwhile
stays whole. The next contribution to the upper group begins at `last` = x(p) + merge·(u - x(m)), so that it has all
that was contributed to the site since x(p), and nothing of what came from above.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from byteps_like.errors import CorruptError
from byteps_like.store.arrays import Array
from byteps_like.store.combining.registry import combining_by
from byteps_like.store.functions.calling import begin_call, end_call
from byteps_like.store.future import Future
from byteps_like.store.policies.bounded import Asp
from byteps_like.store.terms import StoreTerms
from byteps_like.store.updates.plain import Assign
from byteps_like.store.upper.progress import Below, above
from byteps_like.store.upper.upper import Upper
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.api import Worker
from byteps_like.worker.keeping import KeepHandle, Keeps, KeepSpec, KeptTensor


class ValuesAbove(Protocol):
    """The upper group's store."""

    def push(self, name: str, value: Any) -> Future:
        """See Store.push."""

    def pull(self, name: str, out: Any) -> Future:
        """See Store.pull."""


MakeStore = Callable[..., ValuesAbove]
"""Store itself."""


def tensors_above(
    upper: Upper, name: str, values: Mapping[str, Array], make: MakeStore, worker: Worker
) -> ValuesAbove:  # fmt: skip
    """The upper group's store: `values` become those that it has."""
    store = make(
        name, values, consistency=upper.consistency, update=upper.update, combine=upper.combine,
        whole=upper.update.whole, together=False, worker=worker,
    )  # fmt: skip
    for future in [store.pull(key, value) for key, value in values.items()]:
        future.wait()
    return store


@dataclass(frozen=True)
class TensorSite:
    """What a site's store can do for an exchange."""

    kept: Mapping[str, KeptTensor]
    pull: Callable[[str, Array], Future]
    """Which counts as no pull of the user's."""
    keeper: Keeps
    gate: threading.RLock
    """Held while this rank's contributions must not come in between."""


def exchange_tensors(
    upper: Upper, site: TensorSite, worker: Worker, values: Mapping[str, Array], store: ValuesAbove | None
) -> TensorExchange | None:
    """All ranks call it. `values`: where the site's and the upper group's begin; `store`: the latter's, on rank 0."""
    some = {name: one for name, one in site.kept.items() if one.declared.partitions}
    beside = _beside(site, worker, list(some.values()))
    if store is None:
        return None
    tensors = [
        TensorBelow(name, one, other, values[name]) for (name, one), other in zip(some.items(), beside, strict=True)
    ]
    return TensorExchange(site, store, tensors, upper.merge, turned=not upper.takes_changes)


def _beside(site: TensorSite, worker: Worker, kept: Sequence[KeptTensor]) -> list[KeptTensor]:
    """Places for the upper group's values, on the shards of the site's own."""
    texts = StoreTerms(Asp(), Assign(), combining_by("sum", None, None)).texts
    specs = [
        replace(one.declared.spec, name=f"{one.declared.spec.name}/above", beside=one.declared.spec.name)
        for one in kept
    ]  # fmt: skip
    return [site.keeper.keep(declared, KeepSpec(*texts)) for declared in worker.declare(specs)]


class TensorBelow(Below):
    """A tensor of a site's store. `beside`: the place on its servers where the upper group's value is put. `first`:
    the value that both begin with."""

    def __init__(self, name: str, kept: KeptTensor, beside: KeptTensor, first: Array) -> None:
        super().__init__(name)
        self.kept, self.beside = kept, beside
        self.last = first.copy()
        """Where the next contribution to the upper group begins."""
        self.value, self.change, self.upper = (np.empty_like(first) for _ in range(3))

    def begin_at(self, value: Array, version: int) -> None:
        """That was restored."""
        self.last = value
        self.begins_at(version)


class TensorExchange:
    """See Exchange. `turned`: the upper group takes gradients."""

    def __init__(
        self, site: TensorSite, store: ValuesAbove, tensors: Sequence[TensorBelow], merge: float, *, turned: bool
    ) -> None:
        self.all = tensors
        self._site, self._above = site, store
        self._merge, self._turned = merge, turned
        self._beginnings = 0
        """How often all was restored: what was under way then is void."""

    def run(self, due: Sequence[Below]) -> None:
        """See Exchange."""
        beginning, tensors = self._beginnings, [one for one in self.all if one in due]
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
        """See Exchange."""
        self._beginnings += 1
        values = [np.empty_like(one.last) for one in self.all]
        reads = [self._site.pull(one.name, value) for one, value in zip(self.all, values, strict=True)]
        for one, value, read in zip(self.all, values, reads, strict=True):
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
        with above():
            pushes = {one.name: self._above.push(one.name, one.change) for one in changed}
            for read in [self._above.pull(one.name, one.upper) for one in tensors]:
                read.wait()
            return {name for name, push in pushes.items() if not push.counted}

    def _merged(self, tensors: Sequence[TensorBelow], beginning: int) -> dict[str, Any] | None:
        """By how much it has moved each value. None: all was restored meanwhile."""
        _settle([one.beside.push(one.upper.ctypes.data, Note()) for one in tensors])
        for one in tensors:
            if not self._merge_here(beginning, one):
                return None
            one.merged()
        _settle([one.beside.pull(one.upper.ctypes.data) for one in tensors])
        return {one.name: one.upper * one.upper.dtype.type(self._merge) for one in tensors}

    def _merge_here(self, beginning: int, one: TensorBelow) -> bool:
        """On the site's servers, unless all was restored meanwhile."""
        with self._site.gate:
            if beginning != self._beginnings:
                return False
            handle = begin_call(
                self._site.keeper, [one.beside.declared, one.kept.declared], "merge", {"a": self._merge}
            )
        end_call("merge", handle)
        return True


def _settle(handles: Sequence[KeepHandle]) -> None:
    for handle in handles:
        handle.wait()
        if any(outcome.applied is not Applied.COUNTED for outcome in handle.outcomes()):
            raise CorruptError("what has come from the upper group is not finite")
