"""A trace as a file that ui.perfetto.dev and chrome://tracing open: tracks, names, JSON."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.merge import Event, merge
from byteps_like.timeline.records import member_name

# From top to bottom: steps and waits of a worker, the way of its partitions in the order of going, what a server does.
_TRACKS = (
    "step", "forward", "backward", "wait", "update", "ready", "encoded", "copied down", "queued", "sent", "received",
    "copied up", "decoded", "updated", "collective", "steps of collectives", "arrived", "summed", "returned",
    "held up", "left out", "other",
)  # fmt: skip
_EXACT = 0.0005  # microseconds: times are whole nanoseconds
_MOST_ROWS = 100  # of one track; its ids begin at this times its number


def lay_out(events: list[Event]) -> list[Event]:
    """Gives each event its track (tid) so that no two of a track overlap, and returns the events that name them."""
    ends: dict[tuple[int, int], list[float]] = {}
    for event in sorted(events, key=lambda event: event["ts"]):
        track = _track(event)
        rows = ends.setdefault((event["pid"], track), [])
        row = next((row for row, end in enumerate(rows) if end <= event["ts"] + _EXACT), len(rows))
        if row == len(rows) and row < _MOST_ROWS:
            rows.append(0.0)
        row = min(row, _MOST_ROWS - 1)
        rows[row] = event["ts"] + event["dur"]
        event["tid"] = track * _MOST_ROWS + row
    named = [_name("process_name", pid, 0, name=member_name(pid)) for pid in sorted({pid for pid, _ in ends})]
    named += [_name("process_sort_index", pid, 0, sort_index=pid) for pid in sorted({pid for pid, _ in ends})]
    for pid, track in sorted(ends):
        for row in range(len(ends[pid, track])):
            tid, name = track * _MOST_ROWS + row, _TRACKS[track] + (f" {row + 1}" if row else "")
            named += [_name("thread_name", pid, tid, name=name), _name("thread_sort_index", pid, tid, sort_index=tid)]
    return named


def write(trace: dict[str, Any], path: Path) -> None:
    """Writes it, compressed if `path` ends with .gz. Raises OSError."""
    text = json.dumps(trace, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def load(path: Path) -> dict[str, Any]:
    """A trace: of a file that `write` made, or of a directory of parts. Raises InvalidArgumentError, OSError."""
    if path.is_dir():
        return merged(path)
    data = path.read_bytes()
    try:
        found = json.loads(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data)
        if isinstance(found.get("traceEvents"), list):
            return dict(found)
    except (ValueError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} is not a trace: {error}") from None
    raise InvalidArgumentError(f"{path} is not a trace: it has no traceEvents")


def merged(directory: Path) -> dict[str, Any]:
    """The trace of a directory of parts, with tracks."""
    trace = merge(directory)
    trace["traceEvents"] = lay_out(trace["traceEvents"]) + trace["traceEvents"]
    return trace


def _track(event: Event) -> int:
    if event["cat"] == "partition":
        name = event["name"]
    elif event["cat"] == "collective" and event["args"].get("step") is not None:
        name = "steps of collectives"
    else:
        name = event["cat"]
    return _TRACKS.index(name) if name in _TRACKS else len(_TRACKS) - 1


def _name(kind: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}
