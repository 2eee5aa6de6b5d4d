"""What every filter does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from byteps_like.dtypes import DType


class KeyedRows(NamedTuple):
    """Rows of shape [n, width] by ascending ids."""

    ids: NDArray[np.uint64]
    rows: NDArray[Any]


class RowFilter(ABC):
    """Of the pushes of one KV on one rank. Thread-safe."""

    @abstractmethod
    def begin(self, width: int, dtype: DType) -> None:
        """Rows will be like this. Called once. Raises InvalidArgumentError for rows that it can't filter, and where it
        is that of another KV already."""

    @abstractmethod
    def outgoing(self, pushed: KeyedRows) -> KeyedRows:
        """What goes of a push; the arguments stay as they are. Never blocks."""

    @abstractmethod
    def rest(self) -> KeyedRows:
        """What has been kept back so far, which is not kept any longer."""
