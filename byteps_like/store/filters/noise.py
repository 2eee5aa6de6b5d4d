"""Noise on what is pushed, so that nobody learns a single gradient exactly."""

from __future__ import annotations

import threading
from typing import ClassVar

import numpy as np
from typing_extensions import override

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.filter import KeyedRows, RowFilter, no_rows


class Noise(RowFilter):
    """Adds to each number a random one of mean 0 and standard deviation `std`, normally distributed.

    By itself it makes no promise of privacy: that takes gradients of bounded norm, and a count of the steps.
    """

    name: ClassVar[str] = "noise"
    about: ClassVar[str] = "adds normally distributed noise"
    sole: ClassVar[str] = "std"

    def __init__(self, std: float, seed: int | None = None) -> None:
        """`seed`: of the random numbers, for runs that are to be repeated: give each rank its own. None: of the
        operating system. Raises InvalidArgumentError unless `std` is a number above 0, and the seed at least 0."""
        if not 0 < std < np.inf:
            raise InvalidArgumentError(f"std={std!r} of filter noise: it must be a number above 0")
        if seed is not None and seed < 0:
            raise InvalidArgumentError(f"seed={seed!r} of filter noise: it must be at least 0")
        self.std = std
        self._draw = np.random.default_rng(seed)
        self._nothing: KeyedRows | None = None
        self._lock = threading.Lock()

    @override
    def begin(self, width: int, dtype: DType) -> None:
        if dtype not in (DType.FLOAT32, DType.FLOAT64):
            raise InvalidArgumentError(f"filter noise takes float32 and float64, not {dtype.name.lower()}")
        if self._nothing is not None:
            raise InvalidArgumentError("filter noise is that of one KV: make another one for another KV")
        self._nothing = no_rows(width, dtype)

    @override
    def outgoing(self, pushed: KeyedRows) -> KeyedRows:
        with self._lock:
            noise = self._draw.normal(scale=self.std, size=pushed.rows.shape)
        return KeyedRows(pushed.ids, (pushed.rows + noise).astype(pushed.rows.dtype))

    @override
    def rest(self) -> KeyedRows:
        assert self._nothing is not None
        return self._nothing
