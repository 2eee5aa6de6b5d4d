"""What the native core calls to run payload filters of users (byteps_like/_native/store/own_filters_py.cc), with the
interpreter lock, on the threads of servers.

Memory comes as addresses; it is the caller's. A number is how many bytes were written. What goes wrong is returned as
(whether it is the payload's fault, text), and logged with its traceback.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import lru_cache

import numpy as np

from byteps_like.compression.codec import Draw
from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.filters.filter import PayloadFilter
from byteps_like.store.filters.registry import FILTERS, filter_of

log = logging.getLogger(__name__)

Memory = tuple[int, int]
"""Address, bytes."""
Outcome = int | tuple[bool, str]


def find(text: str) -> tuple[bool, bool] | None:
    """Whether the filter of this text takes rows, not just bytes, and whether it is of values; None: no module of this
    process has registered it. Raises what its parameters raise."""
    if text.partition(":")[0] not in FILTERS:
        return None
    made = _made(text)
    return made.takes_rows, made.of_values


def check(text: str, dtype: int) -> Outcome:
    """Zero, or why it can do nothing with rows of this type."""

    def run() -> int:
        _made(text).check(DType(dtype))
        return 0

    return _outcome(text, run)


def most(text: str, dtype: int, nbytes: int) -> Outcome:
    """What it makes of so many bytes at most."""
    return _outcome(text, lambda: _made(text).most(_kind(dtype), nbytes))


def encode(text: str, dtype: int, draw: tuple[int, int, int], source: Memory, target: Memory) -> Outcome:
    """Writes what it makes of what is at the source."""
    return _outcome(
        text, lambda: _put(_made(text).encode(_kind(dtype), Draw(*draw), ctypes.string_at(*source)), target)
    )


def decode(text: str, dtype: int, source: Memory, target: Memory) -> Outcome:
    """Writes what the payload at the source was made of."""
    return _outcome(text, lambda: _put(_made(text).decode(_kind(dtype), ctypes.string_at(*source), target[1]), target))


@lru_cache(maxsize=256)
def _made(text: str) -> PayloadFilter:
    found = filter_of(text)
    if not isinstance(found, PayloadFilter):
        raise InvalidArgumentError(f"filter {text!r} is of rows: servers have nothing to do with it")
    return found


def _kind(dtype: int) -> np.dtype[np.generic]:
    return np.dtype(DType(dtype).name.lower())


def _put(found: bytes, target: Memory) -> int:
    address, room = target
    if len(found) > room:
        raise CorruptError(f"it makes {len(found)} bytes, where there may be {room}")
    ctypes.memmove(address, bytes(found), len(found))
    return len(found)


def _outcome(text: str, run: Callable[[], int]) -> Outcome:
    try:
        return run()
    except CorruptError as error:
        return True, f"a payload of filter {text}: {error}"
    except Exception as error:  # of a user's code: anything
        log.exception("filter %r", text)
        return False, f"filter {text!r} raised {type(error).__name__}: {error}"
