"""The payload filters of a tensor or a table, one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import Draw
from byteps_like.config_values import LARGEST_PARTITION
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.filter import PayloadFilter, RowFilter
from byteps_like.store.filters.registry import filters_of
from byteps_like.wire.crc32c import Buffer

SERVER = 0xFFFFFFFF
"""Random numbers of a server's answer to a rank are those of this less the rank."""


def payload_filters(wanted: Sequence[PayloadFilter | str]) -> tuple[PayloadFilter, ...]:
    """Of texts or objects. Raises InvalidArgumentError for what is no payload filter."""
    found = filters_of(wanted)
    for one in found:
        if isinstance(one, RowFilter):
            raise InvalidArgumentError(f"filter {one.name} is of rows by key: only a KV has these")
    return tuple(one for one in found if isinstance(one, PayloadFilter))


class Payloads:
    """Of rows of one type. No rows are no bytes. Raises InvalidArgumentError for filters that don't go with it, or with
    one another."""

    def __init__(self, filters: Sequence[PayloadFilter], dtype: DType) -> None:
        self._filters, self._kind, self._dtype = tuple(filters), dtype, np.dtype(dtype.name.lower())
        for place, one in enumerate(self._filters):
            one.check(dtype)
            if one.takes_rows and place:
                before = self._filters[place - 1].spec()
                raise InvalidArgumentError(
                    f"filter {one.spec()} takes rows, not what {before} makes of them: swap them"
                )

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._filters)

    @property
    def text(self) -> str:
        """As servers are told, and compare."""
        return " ".join(one.spec() for one in self._filters)

    @property
    def of_values(self) -> Payloads:
        """Those through which values are read."""
        return Payloads([one for one in self._filters if one.of_values], self._kind)

    @property
    def first(self) -> PayloadFilter | None:
        """The one that takes what is pushed; None: there is none."""
        return self._filters[0] if self._filters else None

    def encode(self, rows: NDArray[Any], draw: Draw) -> NDArray[np.uint8]:
        """What stands for them. Raises InvalidArgumentError if that is too much to be sent."""
        if not rows.size:
            return np.zeros(0, np.uint8)
        return self._encoded(np.ascontiguousarray(rows).data.cast("B"), draw, self._filters)

    def encode_on(self, payload: Buffer, draw: Draw) -> NDArray[np.uint8]:
        """The same, of what the first filter has made of some."""
        return self._encoded(payload, draw, self._filters[1:])

    def _encoded(self, payload: Buffer, draw: Draw, filters: Sequence[PayloadFilter]) -> NDArray[np.uint8]:
        for one in filters:
            payload = one.encode(self._dtype, draw, payload)
        found = np.frombuffer(payload, np.uint8)
        if not len(found):
            raise InvalidArgumentError(
                f"filters {self.text} make nothing of some values: a payload has a byte at least"
            )
        if len(found) > LARGEST_PARTITION:
            raise InvalidArgumentError(
                f"filters make {len(found)} bytes of some values, over {LARGEST_PARTITION}: push fewer at once"
            )
        return found

    def decode(self, payload: bytes, count: int) -> NDArray[Any]:
        """So many elements. Raises CorruptError if it doesn't stand for them."""
        nbytes = count * self._dtype.itemsize
        if nbytes:
            most = list(accumulate(self._filters, lambda before, one: one.most(self._dtype, before), initial=nbytes))
            for one, room in zip(reversed(self._filters), reversed(most[:-1]), strict=True):
                payload = one.decode(self._dtype, payload, room)
        if len(payload) != nbytes:
            raise CorruptError(f"a payload stands for {len(payload)} bytes, and its rows have {nbytes}")
        return np.frombuffer(payload, self._dtype)
