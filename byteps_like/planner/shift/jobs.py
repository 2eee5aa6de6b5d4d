"""Jobs from what a user writes: a few numbers, or a recorded trace."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.shift.plan import Arc, PeriodicJob

_BEGINNINGS = ("sent", "queued", "ready")
_ENDS = ("received",)
_MERGE = 0.02


def parse_job(text: str, number: int = 0) -> PeriodicJob:
    """`[NAME=]PERIOD:START:LENGTH:GBPS[,START:LENGTH:GBPS...][@LINK+LINK...]`, or `[NAME=]TRACE.json[@LINK...]`.

    Seconds and Gb/s. A job without a name is called by its `number`, A for 0; one without links is on "link". Raises
    InvalidArgumentError for anything else.
    """
    head, _, tail = text.rpartition("@") if "@" in text else (text, "", "link")
    name, _, body = head.rpartition("=")
    name, links = name or chr(ord("A") + number % 26), tuple(tail.split("+"))
    if body.endswith(".json"):
        return trace_job(Path(body), name, links)
    period, _, arcs = body.partition(":")
    try:
        found = tuple(Arc(*map(float, arc.split(":"))) for arc in arcs.split(","))
        seconds = float(period)
    except (ValueError, TypeError):
        raise InvalidArgumentError(
            f"job {text!r}: write [NAME=]PERIOD:START:LENGTH:GBPS[,START:LENGTH:GBPS...][@LINK], or a trace's file"
        ) from None
    return PeriodicJob(name, seconds, found, links)


def trace_job(path: Path, name: str, links: tuple[str, ...] = ("link",)) -> PeriodicJob:
    """What rank 0 (or the lowest there is) does in a trace that this project's runtime wrote, in the median step.

    A step begins with the forward of the layer that came first; what is sent in it are partitions and collectives.
    Arcs with less than 2 % of the period between them are one. Raises InvalidArgumentError if the file is no trace of
    two steps or more that send something.
    """
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        timed = [event for event in events if event.get("ph") == "X"]
        lowest = min(event["pid"] for event in timed)
        mine = [event for event in timed if event["pid"] == lowest]
        starts = _step_starts(mine)
        period = statistics.median(b - a for a, b in itertools.pairwise(starts))
        arcs = _arcs(mine, starts, period)
    except OSError as error:
        raise InvalidArgumentError(f"can't read the trace {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, statistics.StatisticsError) as error:
        raise InvalidArgumentError(f"{path} is not a trace of two or more steps: {error!r}") from error
    if not arcs:
        raise InvalidArgumentError(f"{path}: nothing is sent in this trace")
    return PeriodicJob(name, period, arcs, links)


def _step_starts(events: list[dict[str, Any]]) -> list[float]:
    forwards = sorted(
        (event["ts"], event.get("args", {}).get("layer")) for event in events if event["cat"] == "forward"
    )
    return [ts / 1e6 for ts, layer in forwards if layer == forwards[0][1]]


def _arcs(events: list[dict[str, Any]], starts: list[float], period: float) -> tuple[Arc, ...]:
    """Of the step in the middle, which may send on into the next."""
    begin = starts[(len(starts) - 1) // 2]
    spans = sorted(
        (first - begin, last - begin, nbytes)
        for first, last, nbytes in _sent(events)
        if begin <= first < begin + period
    )
    merged: list[list[float]] = []
    for first, last, nbytes in spans:
        if merged and first - merged[-1][1] < _MERGE * period:
            merged[-1] = [merged[-1][0], max(last, merged[-1][1]), merged[-1][2] + nbytes]
        else:
            merged.append([first, last, nbytes])
    return tuple(
        Arc(first, min(last - first, period), nbytes * 8e-9 / (last - first))
        for first, last, nbytes in merged
        if last > first and nbytes
    )


def _sent(events: list[dict[str, Any]]) -> list[tuple[float, float, float]]:
    """(begin, end, bytes) of each partition's way to its result; in a trace without partitions, of each collective."""
    partitions: dict[tuple[Any, Any], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["cat"] == "partition" and event["name"] in _BEGINNINGS + _ENDS:
            partitions[event["args"]["key"], event["args"]["round"]].append(event)
    if not partitions:
        calls = [event for event in events if event["cat"] == "collective" and event["args"].get("step") is None]
        return [_span(call, call) for call in calls]
    found = []
    for stages in partitions.values():
        named = {event["name"]: event for event in sorted(stages, key=lambda event: -event["ts"])}
        first = next((named[name] for name in _BEGINNINGS if name in named), None)
        last = next((named[name] for name in _ENDS if name in named), None)
        if first is not None and last is not None:
            found.append(_span(first, last))
    return found


def _span(first: dict[str, Any], last: dict[str, Any]) -> tuple[float, float, float]:
    return first["ts"] / 1e6, (last["ts"] + last["dur"]) / 1e6, float(first["args"]["bytes"])
