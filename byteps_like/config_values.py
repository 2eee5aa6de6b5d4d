"""What settings may be: turns their text into their types."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from byteps_like.errors import ConfigError

SMALLEST_PARTITION, LARGEST_PARTITION = 64, 1 << 30
"""Bytes of a partition, whoever asks for it. The scheduler counts partitions before it makes any, so small ones cost
only who wants them. They begin at multiples of the smallest."""

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_INTEGER = re.compile(r"([+-]?\d+)\s*([kmg]?)(?:i?b)?", re.IGNORECASE)


def parse(name: str, text: str, kind: type) -> Any:
    """`text` as `kind`; integers take KiB, MiB and GiB. Raises ConfigError naming the variable or argument `name`."""
    readers: dict[type, Callable[[str], Any]] = {bool: _boolean, int: _integer, float: _number, str: str}
    value = readers[kind](text.strip())
    if value is None:
        raise ConfigError(f"{name}={text!r} is not {'an' if kind is int else 'a'} {kind.__name__}")
    return value


def _boolean(text: str) -> bool | None:
    lowered = text.lower()
    return True if lowered in _TRUE else False if lowered in _FALSE else None


def _integer(text: str) -> int | None:
    match = _INTEGER.fullmatch(text)
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value and abs(value) != float("inf") else None
