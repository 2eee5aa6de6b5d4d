"""Counter-based random numbers, the same as csrc/codec/random.h makes: see there for what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import Draw

MIXERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""By which splitmix64's finalizer multiplies (Steele et al., 2014)."""
_MASK = (1 << 64) - 1


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * MIXERS[0]) & _MASK
    word = ((word ^ (word >> 27)) * MIXERS[1]) & _MASK
    return word ^ (word >> 31)


def stream_of(seed: int, draw: Draw, purpose: int, shared: bool) -> tuple[int, int]:
    """Two words that name a stream of random words; `shared` streams are the same on all ranks."""
    word = _mix((seed + 0x9E3779B97F4A7C15) & _MASK)
    word = _mix(word ^ draw.key)
    word = _mix(word ^ (draw.round << 32 | purpose))
    word = _mix(word ^ (0 if shared else draw.rank + 1))
    return word & 0xFFFFFFFF, word >> 32


def random_words(stream: tuple[int, int], index: NDArray[Any] | int) -> NDArray[np.uint32]:
    """The words of a stream at `index`: an array of any integers, or a number n for 0 to n - 1. uint32."""
    counters = np.arange(index, dtype=np.uint32) if isinstance(index, int) else index.astype(np.uint32)
    word = counters * np.uint32(0x9E3779B1) + np.uint32(stream[0])
    word ^= word >> np.uint32(16)
    word *= np.uint32(0x21F0AAAD)
    word = (word ^ (word >> np.uint32(15))) + np.uint32(stream[1])
    word *= np.uint32(0x735A2D97)
    return word ^ (word >> np.uint32(15))


def to_unit(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """In [0, 1), in steps of 2^-24. float32."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
