"""Rows of a table by id: the reference of what servers do. Twin of server/store/content/rows.h, to the last bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.store.content import Content, VersionCall, added_up
from byteps_like.store.tables.first_values import FirstValues, Zeros
from byteps_like.store.updates.plain import NoUpdate
from byteps_like.store.updates.update import Values, ValueUpdate, is_finite
from byteps_like.wire.frame import UNKNOWN

Ids = NDArray[np.uint64]


@dataclass(frozen=True)
class RowGradients:
    """What a contribution brings: a row of `rows` for each of `ids`, which ascend."""

    ids: Ids
    rows: Values


@dataclass(frozen=True)
class Row:
    """One that exists."""

    value: Values
    """Of shape [1, width]."""
    state: Values
    version: int
    """Of the table, when the row was last updated."""
    updates: int
    """How many there were."""


@dataclass(frozen=True)
class StaleRows:
    """Those of a list that a reader has too old."""

    chosen: NDArray[np.bool_]
    """For each id."""
    versions: NDArray[np.uint32]
    """Of the chosen ones."""
    rows: Values


class TableRows(Content[RowGradients]):
    """Rows of `width` elements by u64 id, none at first.

    A row has first values, and exists once a version was made of a contribution that names it. All contributions of a
    version are merged by id: what those that have the row bring is added up, from the first to the last. Then the
    update is applied to each row as to a tensor of its own.
    Raises InvalidArgumentError for the update `none`, which leaves rows as they are.
    """

    def __init__(self, width: int, dtype: Any, update: ValueUpdate, first_values: FirstValues | None = None) -> None:
        if isinstance(update, NoUpdate):
            raise InvalidArgumentError(
                "update none gives what a round has combined, which rows don't have: use another"
            )
        self.width, self.dtype, self._update = width, np.dtype(dtype), update
        self.rows: dict[int, Row] = {}
        self._first_values = first_values or Zeros()

    def _fresh(self, number: int) -> Row:
        value = self._first_values.make(number, self.width, self.dtype)
        state = self._update.fresh_state(value) if self._update.takes(self.dtype) else value
        return Row(value, state, 0, 0)

    def _at(self, number: int) -> Row:
        return self.rows.get(number) or self._fresh(number)

    def check(self, source: int, brought: RowGradients) -> None:
        """Of another width or type than the table, or with ids that don't ascend."""
        ids, rows = brought.ids, brought.rows
        if (rows.shape, rows.dtype) != ((len(ids), self.width), self.dtype) or not (ids[:-1] < ids[1:]).all():
            raise MismatchError(
                f"rank {source} has pushed {rows.dtype} of shape {rows.shape} for {len(ids)} ids to a table of rows of"
                f" {self.width} {self.dtype}, or its ids don't ascend"
            )

    def is_finite(self, brought: RowGradients) -> bool:
        """All rows."""
        return is_finite(brought.rows)

    def apply(self, call: VersionCall[RowGradients]) -> bool:
        """Adds up by id, then updates each row that is named."""
        named = sorted({int(number) for one in call.brought for number in one.ids})
        merged = {number: self._merged(number, call) for number in named}
        if not all(is_finite(gradient) for gradient in merged.values()):
            return False
        for number, gradient in merged.items():
            row = self._at(number)
            value, state = self._updated(row, gradient, call)
            self.rows[number] = Row(value, state, call.number, row.updates + 1)
        return True

    def _updated(self, row: Row, gradient: Values, call: VersionCall[RowGradients]) -> tuple[Values, Values]:
        """What becomes of value and state. A function in place of the update has no state, and leaves that as it is."""
        is_own = call.update is self._update
        before = row.state if is_own else call.update.fresh_state(row.value)
        value, state = call.update.apply(row.value, before, gradient, call.lr, row.updates + 1, call.made_of)
        if call.update.checks_result and not (is_finite(value) and is_finite(state)):
            return row.value, row.state
        return value, state if is_own else row.state

    def _merged(self, number: int, call: VersionCall[RowGradients]) -> Values:
        """Of shape [1, width]."""
        who = [i for i, one in enumerate(call.brought) if number in one.ids]
        rows = [call.brought[i].rows[call.brought[i].ids == number] for i in who]
        return added_up([call.factors[i] for i in who], rows)

    def read(self, ids: Ids) -> Values:
        """Rows of those ids; first values, where there is none."""
        return self._stacked([self._at(int(i)) for i in ids])

    def read_stale(self, ids: Ids, known: NDArray[np.uint32], bound: int) -> StaleRows:
        """Those whose version is more than `bound` beyond the known one; UNKNOWN always. One that doesn't exist has
        version 0."""
        rows = [self._at(int(i)) for i in ids]
        lag = [row.version - int(have) for row, have in zip(rows, known, strict=True)]
        chosen = [int(have) == UNKNOWN or not 0 <= behind <= bound for have, behind in zip(known, lag, strict=True)]
        sent = [row for row, is_chosen in zip(rows, chosen, strict=True) if is_chosen]
        versions = np.array([row.version for row in sent], np.uint32)
        return StaleRows(np.array(chosen, bool), versions, self._stacked(sent))

    def read_range(self, low: int, high: int, *, since: int = 0, most: int = 0) -> tuple[Ids, Values]:
        """The ids from `low` on and below `high` that exist, in ascending order, and their rows; only those of versions
        beyond `since`, and of more than `most` the first ones, where that isn't 0."""
        found = [number for number, row in self.rows.items() if low <= number < high and row.version > since]
        ids = np.array(sorted(found)[: most or None], np.uint64)
        return ids, self.read(ids)

    def _stacked(self, rows: list[Row]) -> Values:
        return np.concatenate([np.zeros((0, self.width), self.dtype), *(row.value for row in rows)])
