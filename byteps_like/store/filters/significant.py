"""Rows that change little stay at the worker, and add up until they don't.

Li et al., "Communication efficient distributed machine learning with the parameter server", NIPS 2014, section 3.4.
"""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.filter import KeyedRows, RowFilter, no_rows


class Significant(RowFilter):
    """A row goes if one of its elements, with what was kept back of it before, is `delta` or more in absolute value.

    So of what has been pushed less than `delta` per element and rank has not arrived; `KV.flush` sends it. What is not
    finite goes.
    """

    name: ClassVar[str] = "significant"
    about: ClassVar[str] = "rows stay at the worker until they matter"
    sole: ClassVar[str] = "delta"

    def __init__(self, delta: float) -> None:
        """Raises InvalidArgumentError unless `delta` is a number above 0."""
        if not 0 < delta < np.inf:
            raise InvalidArgumentError(f"delta={delta!r}: it must be a number above 0")
        self.delta = delta
        self._kept: KeyedRows | None = None
        self._lock = threading.Lock()

    @override
    def begin(self, width: int, dtype: DType) -> None:
        if self._kept is not None:
            raise InvalidArgumentError("a filter keeps rows of one KV back: make another one for another KV")
        self._kept = no_rows(width, dtype)

    @override
    def outgoing(self, pushed: KeyedRows) -> KeyedRows:
        with self._lock:
            total = self._with_kept(pushed)
            small = (np.abs(total.rows) < self.delta).all(1)
            self._keep(KeyedRows(total.ids[small], total.rows[small]))
        return KeyedRows(total.ids[~small], total.rows[~small])

    @override
    def rest(self) -> KeyedRows:
        with self._lock:
            kept = self._kept
            assert kept is not None
            self._kept = KeyedRows(kept.ids[:0], kept.rows[:0])
        return kept

    def _with_kept(self, pushed: KeyedRows) -> KeyedRows:
        """Adds what has been kept back of these rows, which is not kept any longer."""
        kept = self._kept
        assert kept is not None
        _, here, there = np.intersect1d(pushed.ids, kept.ids, assume_unique=True, return_indices=True)
        rows = pushed.rows.copy()
        rows[here] += kept.rows[there]
        stays = np.ones(len(kept.ids), bool)
        stays[there] = False
        self._kept = KeyedRows(kept.ids[stays], kept.rows[stays])
        return KeyedRows(pushed.ids, rows)

    def _keep(self, small: KeyedRows) -> None:
        """None of these are kept yet."""
        kept = self._kept
        assert kept is not None
        places = np.searchsorted(kept.ids, small.ids)
        self._kept = KeyedRows(np.insert(kept.ids, places, small.ids), np.insert(kept.rows, places, small.rows, axis=0))
