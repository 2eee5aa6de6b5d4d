"""What a member may ask of the scheduler: sizes and times are looked at before anything is made of them. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping

from byteps_like.errors import CapacityError, InvalidArgumentError

MOST_MEMBERS = 1 << 16
"""Workers of a job; servers of a job."""
MOST_SHARDS = (1 << 16) - 1
"""Of one server."""
MOST_SHARDS_IN_ALL = 1 << 16
"""Of a job's servers together."""
LONGEST_SECONDS = 1e9
FASTEST_GBPS = 1e6
LARGEST_TENSOR = 1 << 48
MOST_EXTENTS = 64
LONGEST_NAME = 4 << 10
"""Characters of a tensor's name, of a barrier's, or of a codec."""
LONGEST_DETAILS = 1 << 19
"""Characters of what a tensor stands for."""
MOST_NAMES = 1 << 18
"""Tensors of an epoch, places that they have left included."""
MOST_PARTS = 1 << 22
"""Partitions of all of them."""
LARGEST_JOIN = 64 << 10
"""Bytes of a claim: all members are told of it."""


def whole(field: str, value: int, least: int, most: int) -> int:
    """`value`. Raises InvalidArgumentError, naming the field, if it is out of range."""
    if not least <= value <= most:
        raise InvalidArgumentError(f"{field}={value} is not {least}..{most}")
    return value


def finite(field: str, value: float, most: float = LONGEST_SECONDS) -> float:
    """`value`. Raises InvalidArgumentError, naming the field, unless it is a number from 0 to `most`."""
    if not 0 <= value <= most:  # neither is a NaN
        raise InvalidArgumentError(f"{field}={value} is not 0..{most:g}")
    return value


def short(field: str, text: str, most: int = LONGEST_NAME) -> str:
    """`text`. Raises InvalidArgumentError, naming the field, if it is longer than `most`."""
    if len(text) > most:
        raise InvalidArgumentError(f"{field} {text[:32]!r}... has {len(text)} characters, more than {most}")
    return text


def numbers(stats: Mapping[str, float]) -> dict[str, float]:
    """The counters that are numbers: one that isn't is no reason to take a member for dead."""
    return {name: value for name, value in stats.items() if math.isfinite(value)}


def room(what: str, count: int, most: int) -> None:
    """Raises CapacityError if there are more than `most`."""
    if count > most:
        raise CapacityError(f"{what}: {count} are more than {most}")
