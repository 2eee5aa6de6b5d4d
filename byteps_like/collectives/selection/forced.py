"""The setting that forces algorithms: "ring", or "all_reduce=multi_ring:1,5,all_to_all=2dh"."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from byteps_like.collectives import library
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.collectives.selection.default_table import SHARED
from byteps_like.errors import ConfigError


def parse_forced(text: str) -> dict[Kind, str]:
    """Kind -> algorithm; a name without a kind is meant for all kinds that have it. Raises ConfigError."""
    return dict(_parse_forced(text))


@lru_cache(maxsize=64)
def _parse_forced(text: str) -> tuple[tuple[Kind, str], ...]:
    found: dict[Kind, str] = {}
    for item in _items(text):
        kind, equals, name = item.rpartition("=")
        if equals and kind not in set(Kind):
            raise ConfigError(f"collective_algorithm: {kind!r} is none of {', '.join(Kind)}")
        bare = name.partition(":")[0]
        kinds = [Kind(kind)] if equals else [one for one in Kind if bare in (SHARED, *library.TABLE[one])]
        if not kinds or bare not in (SHARED, *library.TABLE[kinds[0]]):
            known = library.TABLE[kinds[0]] if kinds else {row.name for row in library.algorithms()}
            raise ConfigError(f"collective_algorithm: no algorithm {name!r}; there are {', '.join([SHARED, *known])}")
        found |= dict.fromkeys(kinds, name)
    return tuple(found.items())


def _items(text: str) -> Iterator[str]:
    """Parts between commas; numbers belong to the part before them ("multi_ring:1,5")."""
    item = ""
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part.isdecimal() and item:
            item += "," + part
            continue
        if item:
            yield item
        item = part
    if item:
        yield item
