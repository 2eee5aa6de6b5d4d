"""How codes of 1 to 4 bits lie in a payload: see compression/loops/codes.h."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.quantised.rotation import GROUP

Codes = NDArray[np.uint32]


def pack(codes: Codes, bits: int) -> bytes:
    """The bytes of a whole number of groups of 256 codes."""
    # Axes: group, w, m, s, lane, as the row is 16 w + 4 m + s.
    rows = codes.astype(np.uint32).reshape(-1, 2, 4, 4, 8)
    words = np.zeros((rows.shape[0], bits, 8), np.uint32)
    for w, m, s in np.ndindex(2, 4, 4):
        for place, (vector, shift, mask) in _places(bits, w, m, s).items():
            words[:, vector] |= (rows[:, w, m, s] >> np.uint32(place) & np.uint32(mask)) << np.uint32(shift)
    return words.tobytes()


def unpack(payload: bytes, bits: int) -> Codes:
    """The codes of a payload of whole groups."""
    words = np.frombuffer(payload, np.uint32).reshape(-1, bits, 8)
    rows = np.zeros((words.shape[0], 2, 4, 4, 8), np.uint32)
    for w, m, s in np.ndindex(2, 4, 4):
        for place, (vector, shift, mask) in _places(bits, w, m, s).items():
            rows[:, w, m, s] |= (words[:, vector] >> np.uint32(shift) & np.uint32(mask)) << np.uint32(place)
    return rows.reshape(-1)


def _places(bits: int, w: int, m: int, s: int) -> dict[int, tuple[int, int, int]]:
    """By the lowest bit of a part of the code: the vector it is in, from which bit, and its mask."""
    if bits == 4:
        return {0: (2 * w + s // 2, 8 * m + 4 * (s % 2), 15)}
    pair = {0: (w, 8 * m + 2 * s, 3)} if bits > 1 else {}
    single = {bits - 1: (bits - 1, 8 * m + 4 * w + s, 1)} if bits % 2 else {}
    return pair | single


def sum_order(count: int, wide: bool) -> NDArray[np.int64]:
    """Which coordinate's sum each place of `count` holds (compression/loops/thc.h): bytes, or `wide` 16 bits."""
    place = np.arange(GROUP)
    vector, rest = place // 32, place % 32
    lane, m = (rest % 16 // 2, 2 * (rest % 2) + rest // 16) if wide else (rest // 4, rest % 4)
    within = (16 * (vector // 4) + 4 * m + vector % 4) * 8 + lane
    return (np.arange(0, count, GROUP)[:, None] + within).reshape(-1)
