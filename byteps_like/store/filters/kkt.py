"""Gradients of weights that an L1 penalty holds at zero stay at the worker.

After Li et al., "Communication efficient distributed machine learning with the parameter server", NIPS 2014, section
3.4: by the Karush-Kuhn-Tucker conditions a weight stays zero as long as its gradient is no greater than the penalty.
"""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.filter import KeyedRows, RowFilter, no_rows
from byteps_like.store.updates.update import ValueUpdate


class Kkt(RowFilter):
    """A row goes unless the rank has last read it as zeros, after its first push: then only with each `every`th push.

    With rounds all ranks read the same version before they push, so they leave the same rows out: a weight is updated
    by the gradients of all ranks that have one, or of none. One that the penalty doesn't hold at zero any longer is
    found by the next push of all rows. What is left out is not added up: it was the gradient of a step that is over.
    """

    name: ClassVar[str] = "kkt"
    about: ClassVar[str] = "rows that an L1 penalty holds at zero go seldom"
    sole: ClassVar[str] = "every"

    def __init__(self, every: int = 25) -> None:
        """Raises InvalidArgumentError unless `every` is 1 or more."""
        if every < 1:
            raise InvalidArgumentError(f"every={every!r} of filter kkt: it must be 1 or more")
        self.every = every
        self._pushes = 0
        self._idle: NDArray[np.uint64] = np.zeros(0, np.uint64)
        """Ids of rows, ascending."""
        self._nothing: KeyedRows | None = None
        self._lock = threading.Lock()

    @override
    def begin(self, width: int, dtype: DType) -> None:
        if self._nothing is not None:
            raise InvalidArgumentError("filter kkt knows the rows of one KV: make another one for another KV")
        self._nothing = no_rows(width, dtype)

    @override
    def check(self, update: ValueUpdate) -> None:
        if not update.may_hold_zeros:
            raise InvalidArgumentError(
                f"filter kkt is for updates that hold weights at zero, as proximal does, which {update.name} does not"
            )

    @override
    def outgoing(self, pushed: KeyedRows) -> KeyedRows:
        with self._lock:
            number, idle = self._pushes, self._idle
            self._pushes += 1
        if number % self.every == 0:
            return pushed
        goes = np.isin(pushed.ids, idle, assume_unique=True, invert=True)
        return KeyedRows(pushed.ids[goes], pushed.rows[goes])

    @override
    def incoming(self, pulled: KeyedRows) -> None:
        with self._lock:
            if self._pushes:
                others = np.setdiff1d(self._idle, pulled.ids, assume_unique=True)
                self._idle = np.union1d(others, pulled.ids[~pulled.rows.any(1)])

    @override
    def rest(self) -> KeyedRows:
        assert self._nothing is not None
        return self._nothing
