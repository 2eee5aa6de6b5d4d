"""Arrays over memory of servers, which end with the call that they are for."""

from __future__ import annotations

import ctypes
import gc
import math
import weakref

import numpy as np

from byteps_like.dtypes import DType
from byteps_like.store.updates.update import Values


class Views:
    """Of one call, all of one type."""

    def __init__(self, dtype: DType) -> None:
        self._dtype = np.dtype(dtype.name.lower())
        self._lent: list[weakref.ref[Values]] = []

    def of(self, address: int, shape: tuple[int, ...], *, writable: bool) -> Values:
        """An array in C order over memory of the caller."""
        nbytes = math.prod(shape) * self._dtype.itemsize
        if not nbytes:
            return np.zeros(shape, self._dtype)
        whole: Values = np.frombuffer(memoryview((ctypes.c_char * nbytes).from_address(address)), self._dtype)
        whole.flags.writeable = writable
        self._lent.append(weakref.ref(whole))
        return whole.reshape(shape)  # which holds on to it, as all views of it do

    def end(self) -> bool:
        """Whether none of them is in use any more. Call it when those here are gone."""
        if not self._gone():
            gc.collect()
        return self._gone()

    def _gone(self) -> bool:
        return all(whole() is None for whole in self._lent)
