"""What every filter does: one of rows at the worker alone, one of payloads at both ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import Draw
from byteps_like.compression.spec import canonical
from byteps_like.dtypes import DType
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.wire.crc32c import Buffer

Payload = bytes
"""What stands for rows."""


class KeyedRows(NamedTuple):
    """Rows of shape [n, width] by ascending ids."""

    ids: NDArray[np.uint64]
    rows: NDArray[Any]


def no_rows(width: int, dtype: DType) -> KeyedRows:
    """None, of that width."""
    return KeyedRows(np.zeros(0, np.uint64), np.zeros((0, width), dtype.name.lower()))


class RowFilter(ABC):
    """Of the pushes of one KV on one rank. Thread-safe."""

    name: ClassVar[str]
    about: ClassVar[str]
    """What it does, in a few words."""
    sole: ClassVar[str] = ""
    """The parameter that a text may give without its name, alone; "": none."""

    @abstractmethod
    def begin(self, width: int, dtype: DType) -> None:
        """Rows will be like this. Called once. Raises InvalidArgumentError for rows that it can't filter, and where it
        is that of another KV already."""

    def check(self, update: ValueUpdate) -> None:  # noqa: B027 - most don't mind
        """Raises InvalidArgumentError if it doesn't go with what servers do with contributions."""

    @abstractmethod
    def outgoing(self, pushed: KeyedRows) -> KeyedRows:
        """What goes of a push; the arguments stay as they are. Never blocks."""

    def incoming(self, pulled: KeyedRows) -> None:  # noqa: B027 - most don't look
        """Sees rows that have been read."""

    @abstractmethod
    def rest(self) -> KeyedRows:
        """What has been kept back so far, which is not kept any longer."""


@dataclass(frozen=True)
class PayloadFilter(ABC):
    """What both ends do: it makes fewer bytes of rows, or of other bytes, and these again. Its native twin is in
    server/store/filters. Parameters are fields of the subclass; all ranks give the same. Thread-safe.

    Raises InvalidArgumentError for parameters out of bounds.
    """

    name: ClassVar[str]
    about: ClassVar[str]
    sole: ClassVar[str] = ""
    """As of a RowFilter."""
    takes_rows: ClassVar[bool] = False
    """Whether it takes rows, not just bytes: then no other one may come before it."""
    of_values: ClassVar[bool] = True
    """Whether values and rows are read through it as well, not only contributions sent: as what loses nothing, or is
    right on average, may be."""

    @property
    def whole(self) -> int:
        """Elements, beginning at multiples of so many, that must not be cut."""
        return 1

    def spec(self) -> str:
        """All parameters in canonical form: what servers make its twin from."""
        return canonical(self)

    def check(self, dtype: DType) -> None:  # noqa: B027 - most take all
        """Raises InvalidArgumentError if it can do nothing with rows of this type."""

    @abstractmethod
    def most(self, dtype: np.dtype[Any], nbytes: int) -> int:
        """What it makes of so many bytes at most."""

    @abstractmethod
    def encode(self, dtype: np.dtype[Any], draw: Draw, payload: Buffer) -> Payload:
        """Of rows of this type, or of what another filter has made of them. `draw`: of its random numbers."""

    @abstractmethod
    def decode(self, dtype: np.dtype[Any], payload: Payload, most: int) -> Payload:
        """What `payload` was made of. Raises CorruptError for what can't be one, or stands for over `most` bytes."""
