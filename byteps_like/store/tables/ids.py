"""Ids of rows as the table's servers have them: mixed, so that all servers are loaded alike whatever the ids are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.random import MIXERS
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.arrays import Array

Ids = NDArray[np.uint64]

_FIRST, _SECOND = MIXERS
_FIRST_INVERSE, _SECOND_INVERSE = pow(_FIRST, -1, 1 << 64), pow(_SECOND, -1, 1 << 64)


def mixed(ids: Ids) -> Ids:
    """Another number for each, no two the same: splitmix64's finalizer (Steele et al., 2014)."""
    word = (ids ^ (ids >> np.uint64(30))) * np.uint64(_FIRST)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(_SECOND)
    return word ^ (word >> np.uint64(31))


def unmixed(keys: Ids) -> Ids:
    """The ids again."""
    word = _unshifted(keys, 31) * np.uint64(_SECOND_INVERSE)
    word = _unshifted(word, 27) * np.uint64(_FIRST_INVERSE)
    return _unshifted(word, 30)


def _unshifted(word: Ids, by: int) -> Ids:
    """What has become `word` by `x ^ (x >> by)`."""
    found = word
    for _ in range(64 // by):
        found = word ^ (found >> np.uint64(by))
    return found


@dataclass(frozen=True, eq=False)
class IdPlaces:
    """Ids in any order, some of them more than once, and the rows that they are in."""

    keys: Ids
    """Of the rows, ascending: each once."""
    rows: NDArray[np.intp]
    """Of each id, which of these it is in; of the shape that the ids have."""

    def summed(self, gradients: Array) -> Array:
        """A row for each key, from one for each id: of shape [len(keys), dim]; those of one key are added up."""
        flat = gradients.reshape(self.rows.size, gradients.shape[-1])
        order = np.argsort(self.rows, axis=None, kind="stable")
        ordered = np.take(flat, order, axis=0)
        if len(order) == len(self.keys):
            return ordered
        firsts = np.searchsorted(self.rows.ravel()[order], np.arange(len(self.keys)))
        sums: Array = np.add.reduceat(ordered, firsts, axis=0)
        return sums


def places_of(ids: Any) -> IdPlaces:
    """Of an array, a tensor or a list of integers, of any shape. Raises InvalidArgumentError for what are none, and for
    those below 0 or beyond 2^64 - 1."""
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.uint64)
    if array.dtype.kind not in "iu":
        raise InvalidArgumentError(f"ids are integers, not {array.dtype}")
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise InvalidArgumentError(f"ids are numbers from 0 to 2^64 - 1, and one is {array.min()}")
    keys, rows = np.unique(mixed(array.astype(np.uint64).ravel()), return_inverse=True)
    return IdPlaces(keys, rows.reshape(array.shape))
