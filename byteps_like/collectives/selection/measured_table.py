"""What `byteps-like tune collectives` has measured: a JSON file with a table for each layout of hosts.

{"version": 1, "worlds": [{"hosts": [0, 0, 1, 1], "kinds": {"all_reduce": [{"bytes": 1024, "segment_bytes": 131072,
"seconds": {"ring": 4e-5, ...}}, ...]}}]}
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.errors import ConfigError

_VERSION = 1


@dataclass(frozen=True)
class Point:
    """Median seconds of each algorithm at one size."""

    nbytes: int
    seconds: dict[str, float]
    segment_bytes: int = 128 << 10

    def ranked(self) -> list[str]:
        """Names, the fastest first."""
        return sorted(self.seconds, key=lambda name: self.seconds[name])


@dataclass
class MeasuredTable:
    """Points by layout and kind, by rising size."""

    worlds: dict[tuple[int, ...], dict[Kind, list[Point]]] = field(default_factory=dict)

    def nearest(self, kind: Kind, nbytes: int, layout: Layout) -> Point | None:
        """The point whose size is nearest in ratio; None if this layout or kind was not measured."""
        points = self.worlds.get(canonical(layout), {}).get(kind, [])
        return min(points, key=lambda point: _ratio(point.nbytes, nbytes), default=None)

    def put(self, layout: Layout, kind: Kind, points: list[Point]) -> None:
        """Replaces what was measured of a kind on a layout."""
        found = sorted(points, key=lambda point: point.nbytes)
        self.worlds.setdefault(canonical(layout), {})[kind] = found

    def save(self, path: Path) -> None:
        """Writes the file; replaces it at once, so that nobody reads half of it."""
        worlds = [{"hosts": list(hosts), "kinds": _as_json(kinds)} for hosts, kinds in sorted(self.worlds.items())]
        new = path.with_name(path.name + ".new")
        new.write_text(json.dumps({"version": _VERSION, "worlds": worlds}, indent=1) + "\n", encoding="utf-8")
        new.replace(path)

    @classmethod
    def load(cls, path: Path) -> MeasuredTable:
        """Reads the file. Raises ConfigError if it can't be read or is not such a table."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            if data["version"] != _VERSION:
                raise ConfigError(f"{path} is of version {data['version']}, this program reads {_VERSION}: tune again")
            return cls({tuple(map(int, one["hosts"])): _from_json(one["kinds"]) for one in data["worlds"]})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{path} is not a table of collective algorithms: {error}") from error


def canonical(layout: Layout) -> tuple[int, ...]:
    """The layout's hosts, numbered in the order in which they come."""
    numbers: dict[int, int] = {}
    return tuple(numbers.setdefault(host, len(numbers)) for host in layout.hosts)


def _ratio(one: int, other: int) -> float:
    low, high = sorted((max(1, one), max(1, other)))
    return high / low


def _as_json(kinds: dict[Kind, list[Point]]) -> dict[str, Any]:
    return {
        str(kind): [{"bytes": p.nbytes, "segment_bytes": p.segment_bytes, "seconds": p.seconds} for p in points]
        for kind, points in kinds.items()
    }


def _from_json(kinds: dict[str, Any]) -> dict[Kind, list[Point]]:
    return {
        Kind(kind): [
            Point(int(row["bytes"]), {str(k): float(v) for k, v in row["seconds"].items()}, int(row["segment_bytes"]))
            for row in rows
        ]
        for kind, rows in kinds.items()
    }
