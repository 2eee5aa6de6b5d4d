"""A trace as a picture: where the steps went, who waits for whom, and one step of all ranks and servers in detail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.analysis import Analysis, MeasuredStep
from byteps_like.timeline.records import SERVERS, member_name

Event = dict[str, Any]
COLOURS = {
    "forward": "#4c78a8", "backward": "#1f4e79", "update": "#9ecae9", "other": "#d9d9d9", "late rank": "#e45756",
    "slow link": "#f58518", "own link": "#eeca3b", "server": "#b279a2", "transfer": "#72b7b2", "unknown": "#9d755d",
    "queued": "#cccccc", "sent": "#439894", "summed": "#b279a2", "received": "#54a24b", "collective": "#72b7b2",
    "encoded": "#d67195", "decoded": "#fcbfd2", "copied down": "#79706e", "copied up": "#bab0ac",
}  # fmt: skip
_ROWS = (
    "compute", "waits", "encoded", "copied down", "queued", "sent", "received", "copied up", "decoded", "collectives",
)  # fmt: skip
_OF_PARTITIONS = _ROWS[2:-1]


def draw(analysis: Analysis, path: Path) -> None:
    """Writes a PNG, SVG or PDF, by the name. Raises InvalidArgumentError without matplotlib, OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InvalidArgumentError("drawing a timeline needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(12, 8), layout="constrained")
    upper, lower = figure.subplots(2, 1, height_ratios=(1 + 0.25 * len(analysis.ranks), 4))
    _shares(upper, analysis)
    _one_step(lower, analysis)
    figure.savefig(path, dpi=110)


def shares(steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Of the mean step, in seconds: forward, backward, update, other compute, and each cause of exposed waiting."""
    found = {name: fmean(getattr(step, name) for step in steps) for name in ("forward", "backward", "update")}
    found["other"] = max(0.0, fmean(step.compute for step in steps) - sum(found.values()))
    causes: dict[str, float] = defaultdict(float)
    for step in steps:
        waited = sum(step.waits.values())
        for (cause, _), seconds in step.waits.items():  # several threads may wait at a time: their union counts
            causes[cause] += seconds / waited * step.exposed / len(steps)
    return found | dict(sorted(causes.items()))


def _shares(axes: Any, analysis: Analysis) -> None:
    seen: set[str] = set()
    for rank in analysis.ranks:
        left = 0.0
        for name, seconds in shares([step for step in analysis.steps if step.rank == rank]).items():
            label = None if name in seen else (name if name in COLOURS and seconds else None)
            if seconds:
                seen.add(name)
            axes.barh(member_name(rank), seconds * 1e3, left=left, color=COLOURS[name], label=label, height=0.7)
            left += seconds * 1e3
    axes.invert_yaxis()
    axes.set_title("Where the step went, in the mean (ms)", loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _one_step(axes: Any, analysis: Analysis) -> None:
    """The step of median length, from the first rank's begin to the last rank's end."""
    numbers = sorted({step.number for step in analysis.steps}, key=lambda number: _length(analysis, number))
    number = numbers[len(numbers) // 2]
    own = [step for step in analysis.steps if step.number == number]
    begin, end = min(step.begin for step in own) * 1e6, max(step.end for step in own) * 1e6
    within = [
        event
        for event in analysis.events
        if event.get("ph") == "X" and event["ts"] < end and event["ts"] + event["dur"] > begin
    ]
    labels: list[str] = []
    for label, spans in _rows(within):
        place = len(labels)
        labels.append(label)
        for colour, first, length in spans:
            visible = max(length, (end - begin) / 500)  # something to see
            axes.barh(place, visible / 1e3, left=(first - begin) / 1e3, color=COLOURS[colour], height=0.8)
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_xlim(0, (end - begin) / 1e3)
    axes.invert_yaxis()
    axes.set_title(f"Step {number} (ms)", loc="left")
    axes.spines[["top", "right"]].set_visible(False)


def _rows(events: Sequence[Event]) -> Iterator[tuple[str, list[tuple[str, float, float]]]]:
    """(label, [(colour, begin, length)]) of each row that has anything, in microseconds."""
    by_member: dict[int, dict[str, list[tuple[str, float, float]]]] = defaultdict(lambda: defaultdict(list))
    for event in events:
        row, colour = _row_of(event)
        if row:
            by_member[event["pid"]][row].append((colour, event["ts"], event["dur"]))
    for member, rows in sorted(by_member.items()):
        for row in (*_ROWS, "summed"):
            if row in rows:
                yield f"{member_name(member)} {row}", rows[row]


def _row_of(event: Event) -> tuple[str, str]:
    category, name = event["cat"], event["name"]
    if category == "wait":
        return "waits", event["args"]["cause"]
    if category == "collective":
        return ("collectives", "collective") if event["args"].get("step") is None else ("", "")
    if category in ("forward", "backward", "update"):
        return "compute", category
    if event["pid"] >= SERVERS:
        return ("summed", "summed") if name == "summed" else ("", "")
    if name == "received" and "server" not in event["args"]:  # of a collective, which has a row of its own
        return "", ""
    return (name, name) if category == "partition" and name in _OF_PARTITIONS else ("", "")


def _length(analysis: Analysis, number: int) -> float:
    return max(step.seconds for step in analysis.steps if step.number == number)
