"""The filters of one KV on one rank: those of rows, then those of payloads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from byteps_like.compression.codec import Codec
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.encoder import codec_filter
from byteps_like.store.filters.filter import KeyedRows, PayloadFilter, RowFilter, no_rows
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.filters.registry import Filter, filters_of
from byteps_like.store.updates.update import ValueUpdate


class Filtering:
    """Thread-safe. `codec`: comes behind those of rows. Raises InvalidArgumentError for what are no filters of rows of
    this width and type, or don't go with the update, and for those of rows behind those of payloads."""

    def __init__(
        self, wanted: Sequence[Filter | str], codec: Codec | str, width: int, dtype: DType, update: ValueUpdate
    ) -> None:
        filters = filters_of(wanted)
        self._rows = tuple(one for one in filters if isinstance(one, RowFilter))
        rest = filters[len(self._rows) :]
        if any(isinstance(one, RowFilter) for one in rest):
            names = [one.name for one in filters]
            raise InvalidArgumentError(f"filters {', '.join(names)}: those that take rows must come before all others")
        self.payloads = Payloads(
            [*codec_filter(codec), *(one for one in rest if isinstance(one, PayloadFilter))], dtype
        )
        self.of_values = self.payloads.of_values
        """Those through which rows are read."""
        self._nothing = no_rows(width, dtype)
        for one in self._rows:
            one.check(update)
            one.begin(width, dtype)

    @property
    def text(self) -> str:
        """What servers are told of them, and compare."""
        return self.payloads.text

    @property
    def of_rows(self) -> bool:
        """Whether there are some of rows."""
        return bool(self._rows)

    def outgoing(self, pushed: KeyedRows) -> KeyedRows:
        """What goes of a push; the arguments stay as they are."""
        for one in self._rows:
            pushed = one.outgoing(pushed)
        return pushed

    def incoming(self, pulled: KeyedRows) -> None:
        """Lets them see rows that have been read."""
        for one in self._rows:
            one.incoming(pulled)

    def rest(self) -> KeyedRows:
        """What has been kept back so far, which is not kept any longer."""
        found = self._nothing
        for one in self._rows:
            found = _sum(found, one.rest())
        return found


def _sum(one: KeyedRows, other: KeyedRows) -> KeyedRows:
    ids = np.union1d(one.ids, other.ids)
    rows = np.zeros((len(ids), one.rows.shape[1]), one.rows.dtype)
    rows[np.searchsorted(ids, one.ids)] += one.rows
    rows[np.searchsorted(ids, other.ids)] += other.rows
    return KeyedRows(ids, rows)
