"""One exchange of a table's rows between a site's servers and those above: what travels, and in which order. On rank 0.

Only rows travel that have changed since the last exchange: those of the site, to be contributed above; and those above,
to be merged. Beside each row x the site's servers have a place. It holds `last`, where the next contribution of that
row begins, so that x - last is how far it has come. While rows are merged it holds u, what the upper group has: servers
compute u - x there, and add merge·(u - x) to x, so that whatever is contributed meanwhile stays whole. Then it is
last + merge·(u - x): what came from above is no change of this site.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from byteps_like.errors import CorruptError
from byteps_like.store.arrays import Array
from byteps_like.store.dependent import RowsFuture
from byteps_like.store.functions.calling import begin_call_on_rows, end_call
from byteps_like.store.upper.progress import Below, above
from byteps_like.store.upper.upper import Upper
from byteps_like.worker.tables import KeptTable

ROWS = "rows"
"""What all rows of a table are called."""
END = (1 << 64) - 1
"""The end of the greatest range of keys."""

Ids = NDArray[np.uint64]


PullAll = Callable[[RowsFuture | None], Iterator[RowsFuture]]
"""All rows, in pieces, in the order of their keys; with an earlier piece, those that have changed since."""


class PulledRows(Protocol):
    """A KV."""

    def push(self, keys: Any, values: Any) -> RowsFuture:
        """See KV.push."""

    def pull(self, keys: Any) -> RowsFuture:
        """See KV.pull."""

    def pull_all(self, since: RowsFuture | None = None) -> Iterator[RowsFuture]:
        """See KV.pull_all."""


@dataclass(frozen=True)
class RowsSite:
    """What a site's table can do for an exchange."""

    pull_all: PullAll
    """Which counts as no pull of the user's."""
    kept: KeptTable
    beside: PulledRows
    """Rows on the shards of the site's own, which are assigned."""
    kept_beside: KeptTable
    version: Callable[[], int]
    """That servers have by now: the least of all shards. Blocks."""
    gate: threading.RLock
    """Held while this rank's contributions must not come in between."""


class _BegunAnew(Exception):
    """All was restored during an exchange."""


@dataclass(frozen=True)
class _Reached:
    """How far an exchange has read, of the site and of the upper group: the next one reads what is newer."""

    below: RowsFuture | None = None
    above: RowsFuture | None = None


class RowsExchange:
    """See Exchange. Each piece of a table is a contribution."""

    def __init__(self, site: RowsSite, store: PulledRows, upper: Upper) -> None:
        self._site, self._above = site, store
        self._merge, self._turned = upper.merge, not upper.takes_changes
        self._rows = Below(ROWS)
        self.all = [self._rows]
        self._reached = _Reached()
        self._beginnings = 0
        """How often all was restored: what was under way then is void."""

    def run(self, due: Sequence[Below]) -> None:
        """See Exchange."""
        if not due:
            return
        beginning = self._beginnings
        with suppress(_BegunAnew):
            self._exchange(beginning)

    def begin_anew(self) -> None:
        """See Exchange: where contributions begin is where the rows are."""
        self._beginnings += 1
        self._call([self._site.kept_beside], "scale", a=0.0)
        self._call([self._site.kept, self._site.kept_beside], "copy")
        self._rows.begins_at(self._site.version())
        self._reached = _Reached(next(self._site.pull_all(None)), self._reached.above)

    def _exchange(self, beginning: int) -> None:
        reached, made = self._reached, self._rows.made(self._site.version())
        if made > self._rows.sent:
            below = list(self._contributed(beginning))
            if all(counts for _, counts in below):
                reached = replace(reached, below=below[0][0])
        if self._merge:
            merged = list(self._merged(beginning))
            reached = replace(reached, above=merged[0])
        with self._still(beginning):
            self._rows.sent, self._reached = made, reached

    def _contributed(self, beginning: int) -> Iterator[tuple[RowsFuture, bool]]:
        """How far the rows have come; of each piece whether it counts above."""
        for piece in self._site.pull_all(self._reached.below):
            ids, value = piece.keys, piece.value
            change = value - self._site.beside.pull(ids).value
            moved = change.any(axis=1)
            with above():
                counts = self._above.push(ids[moved], (-change if self._turned else change)[moved]).counted
            if counts:
                self._assign(beginning, ids[moved], value[moved])
            yield piece, counts

    def _merged(self, beginning: int) -> Iterator[RowsFuture]:
        """What the upper group has, piece by piece."""
        pieces = self._above.pull_all(self._reached.above)
        while True:
            with above():
                piece = next(pieces, None)
            if piece is None:
                return
            self._merge_here(beginning, piece)
            yield piece

    def _merge_here(self, beginning: int, piece: RowsFuture) -> None:
        """On the site's servers."""
        with above():
            ids, value = piece.keys, piece.value
        beside = self._site.beside
        last = beside.pull(ids).value
        push = self._assign(beginning, ids, value)
        with self._still(beginning):
            self._call([self._site.kept_beside, self._site.kept], "merge", since=push.version - 1, a=self._merge)
            self._rows.merged()
        apart = beside.pull(ids).value
        self._assign(beginning, ids, last + apart * apart.dtype.type(self._merge))

    def _assign(self, beginning: int, ids: Ids, rows: Array) -> RowsFuture:
        """To the places beside."""
        with self._still(beginning):
            push = self._site.beside.push(ids, rows)
        if not push.counted:
            raise CorruptError("what has come from the upper group is not finite")
        return push

    def _call(self, tables: Sequence[KeptTable], function: str, since: int = 0, **scalars: float) -> None:
        end_call(function, begin_call_on_rows(tables, (0, END), function, scalars, since=since))

    @contextmanager
    def _still(self, beginning: int) -> Iterator[None]:
        """In the block nothing is restored. Raises _BegunAnew if all was."""
        with self._site.gate:
            if beginning != self._beginnings:
                raise _BegunAnew
            yield
