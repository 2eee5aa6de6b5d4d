"""A workload from a recorded trace of one's own job: its layers, how long they computed, and what they made ready.

Of the trace only rank 0's events are used: "forward" and "backward" with their layer, and partitions that were "ready".
A partition is counted as that of the layer whose backward ended when it became ready, or nearest to that.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import median, mode
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.planner.workload import ITEMSIZE, Layer, Workload

_MICROSECOND = 1e-6


def from_trace(path: str | Path) -> Workload:
    """Medians over the trace's steps. Raises InvalidArgumentError for a file that holds no such events, naming it."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        events = [event for event in content["traceEvents"] if event.get("ph") == "X" and event.get("pid") == 0]
        forward, backward = (_by_layer(events, category) for category in ("forward", "backward"))
        ready = [event for event in events if event.get("cat") == "partition" and event.get("name") == "ready"]
        return _workload(Path(path).stem, forward, backward, ready)
    except OSError as error:
        raise InvalidArgumentError(f"can't read the trace {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidArgumentError(f"{path} is not a trace of training steps: {error!r}") from error


def _by_layer(events: Iterable[dict[str, Any]], category: str) -> dict[str, list[dict[str, Any]]]:
    """The layer's events in the order of time; layers in the order in which each first began."""
    found: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in sorted((event for event in events if event.get("cat") == category), key=lambda event: event["ts"]):
        found[str(event["args"]["layer"])].append(event)
    return dict(found)


def _workload(
    name: str,
    forward: dict[str, list[dict[str, Any]]],
    backward: dict[str, list[dict[str, Any]]],
    ready: list[dict[str, Any]],
) -> Workload:
    if not backward:
        raise ValueError("rank 0 has no backward events with a layer")
    steps = mode(len(events) for events in backward.values())
    nbytes = _bytes_by_layer(backward, ready, steps)
    order = [*forward, *(layer for layer in reversed(backward) if layer not in forward)]
    layers = [
        Layer(
            layer,
            _parameters(layer, nbytes.get(layer, 0)),
            _seconds(forward, layer, steps),
            _seconds(backward, layer, steps),
        )
        for layer in order
    ]
    if not any(layer.parameters for layer in layers):
        raise ValueError("rank 0 has no partitions that became ready")
    return Workload(name, tuple(layers), 1, "steps")


def _parameters(layer: str, nbytes: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return ((f"{layer}.gradients", (nbytes // ITEMSIZE,)),) if nbytes else ()


def _seconds(events: dict[str, list[dict[str, Any]]], layer: str, steps: int) -> float:
    """In each step; a layer may be used several times in one."""
    times = [event["dur"] for event in events.get(layer, ())]
    return float(median(times)) * len(times) / steps * _MICROSECOND if times else 0.0


def _bytes_by_layer(
    backward: dict[str, list[dict[str, Any]]], ready: list[dict[str, Any]], steps: int
) -> dict[str, int]:
    """In each round a partition belongs to one layer; over all rounds to that of most. What is not ready in most steps
    (broadcasts at the beginning, metrics) is no gradient."""
    ends = sorted((event["ts"] + event["dur"], layer) for layer, events in backward.items() for event in events)
    times = [end for end, _ in ends]
    votes: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    sizes: dict[tuple[str, int], int] = {}
    for event in ready:
        args = event["args"]
        key = (str(args["tensor"]), int(args["part"]))
        sizes[key] = int(args["bytes"])
        at = event["ts"] + event.get("dur", 0)
        after = bisect_right(times, at)
        near = ends[max(0, after - 1) : after + 1]
        votes[key].append(min(near, key=lambda end: abs(end[0] - at))[1])
    found: defaultdict[str, int] = defaultdict(int)
    for key, layers in votes.items():
        if 2 * len(layers) > steps:
            found[max(sorted(set(layers)), key=layers.count)] += sizes[key]
    return dict(found)
