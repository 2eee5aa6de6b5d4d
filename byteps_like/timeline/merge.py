"""The parts of all processes as one trace, on one clock: the scheduler's.

Events are dicts as Perfetto and Chrome read them: ph "X", ts and dur in microseconds from the first event, pid the
member (records.py). Categories and what their args hold are in docs/how-to/timeline.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.parts import SUFFIX, read_chunks
from byteps_like.timeline.records import AWAITED, NO_RANK, SERVERS, RecordKind
from byteps_like.timeline.waits import attribute
from byteps_like.wire.frame import PARTITION_KEY, PRELUDE_KEY, SHARE_SHIFT
from byteps_like.wire.note import Applied

RECORD = np.dtype(
    [
        ("kind", "u1"), ("detail", "u1"), ("reserved", "u2"), ("thread", "u4"), ("begin", "i8"), ("duration", "i8"),
        ("key", "u8"), ("bytes", "u8"), ("round", "u4"), ("priority", "i4"), ("member", "u4"), ("peer", "u4"),
        ("text", "u4"), ("step", "u4"),
    ]
)  # fmt: skip
assert RECORD.itemsize == 64

Event = dict[str, Any]

_STAGES = {
    RecordKind.READY: "ready", RecordKind.QUEUED: "queued", RecordKind.SENT: "sent", RecordKind.RECEIVED: "received",
    RecordKind.ARRIVED: "arrived", RecordKind.SUMMED: "summed", RecordKind.RETURNED: "returned",
    RecordKind.ENCODED: "encoded", RecordKind.DECODED: "decoded",
    RecordKind.DOWN: "copied down", RecordKind.UP: "copied up",
}  # fmt: skip
_WITH_A_SERVER = ("queued", "sent", "received")
_STEPS = ("send to", "receive from", "receive and reduce from", "copy", "wait for the others", "shared memory")
_HOST_KINDS = (
    "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather", "all_to_all", "barrier",
)  # fmt: skip
_PARTITION_LANE = re.compile(r"(?:world|beside|set\d+)/(.+)/(\d+)")


@dataclass
class ProcessTrace:
    """What one process wrote; times still on its own clock."""

    process: dict[str, Any] = field(default_factory=dict)
    clock: tuple[int, int] = (0, 0)
    partitions: dict[int, tuple[str, int]] = field(default_factory=dict)
    groups: dict[int, str] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    events: list[Any] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)
    lost: int = 0

    @property
    def correction(self) -> int:
        """Nanoseconds to add; 0 where the offset is within its error (see clock.py)."""
        offset, error = self.clock
        return 0 if abs(offset) <= error else offset


def read_part(path: Path) -> ProcessTrace:
    """A part, as far as it was written. Raises OSError."""
    part = ProcessTrace()
    for kind, chunk in read_chunks(path):
        if kind == "N":
            part.records.append(np.frombuffer(chunk, RECORD, count=len(chunk) // RECORD.itemsize))
        elif chunk["what"] == "events":
            part.events += chunk["events"]
        elif chunk["what"] == "texts":
            part.texts.update(enumerate(chunk["texts"], chunk["first"]))
        elif chunk["what"] == "names":
            part.partitions.update({int(key): tuple(name) for key, name in chunk["value"]["partitions"].items()})
            part.groups.update({int(lane): name for lane, name in chunk["value"]["groups"].items()})
        elif chunk["what"] == "process":
            part.process = chunk
        elif chunk["what"] in ("clock", "lost"):
            setattr(part, chunk["what"], chunk["value"])
    return part


def merge(directory: Path) -> dict[str, Any]:
    """The trace of a directory of parts. Raises InvalidArgumentError if there are none, OSError."""
    paths = sorted(directory.glob(f"*{SUFFIX}"))
    if not paths:
        raise InvalidArgumentError(f"{directory}: no timeline here (no {SUFFIX} files); was BYTEPS_LIKE_TRACE set?")
    parts = [read_part(path) for path in paths]
    names = _Names(parts)
    events = [event for part in parts for event in names.events_of(part)]
    if not events:
        return {"traceEvents": [], "displayTimeUnit": "ms", "otherData": _other(parts, 0)}
    events = _within_the_workers_time(events)
    attribute(events)
    _add_updated(events)
    start = min(event["ts"] for event in events)
    for event in events:
        event["ts"] = round((event["ts"] - start) / 1000, 3)
        event["dur"] = round(event["dur"] / 1000, 3)
    events.sort(key=lambda event: event["ts"])
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": _other(parts, start)}


def _other(parts: list[ProcessTrace], start: int) -> dict[str, Any]:
    return {
        "format": "byteps_like timeline 1",
        "start_ns": start,
        "lost": sum(part.lost for part in parts),
        "processes": [
            {**part.process, "clock_offset_ns": part.clock[0], "clock_error_ns": part.clock[1]} for part in parts
        ],
    }


class _Names:
    """What keys, lanes and texts stand for, in all processes."""

    def __init__(self, parts: list[ProcessTrace]) -> None:
        self._partitions = {key: name for part in parts for key, name in part.partitions.items()}
        self._groups = {lane: name for part in parts for lane, name in part.groups.items()}

    def events_of(self, part: ProcessTrace) -> list[Event]:
        """All of a part, in ns of the common clock."""
        shift = part.correction
        events = [
            _event(category, name, member, begin + shift, duration, args)
            for category, name, member, begin, duration, args in part.events
        ]
        for chunk in part.records:
            for row in chunk.tolist():
                events += self._native(dict(zip(RECORD.names or (), row, strict=True)), part, shift)
        return events

    def _native(self, record: dict[str, Any], part: ProcessTrace, shift: int) -> list[Event]:
        kind, begin = RecordKind(record["kind"]), record["begin"] + shift
        if kind in _STAGES:
            return [self._stage(_STAGES[kind], record, begin)]
        if kind is RecordKind.WAIT:
            return [_event("wait", "wait", record["member"], begin, record["duration"], self._waited_for(record))]
        if kind in (RecordKind.HELD_UP, RecordKind.LEFT_OUT):
            return [self._kept(kind, record, begin)]
        args = {"group": self._groups.get(record["key"], ""), "lane": hex(record["key"]), "call": record["round"]}
        if kind is RecordKind.STEP:
            name, more = _step(record)
            return [_event("collective", name, record["member"], begin, record["duration"], args | more)]
        operation, algorithm, nbytes = _call(record, part.texts)
        more = {"operation": operation, "algorithm": algorithm, "bytes": nbytes, "step": None}
        call = _event("collective", operation, record["member"], begin, record["duration"], args | more)
        return [call, *self._partition_of(call)]

    def _stage(self, name: str, record: dict[str, Any], begin: int) -> Event:
        tensor, number = self._partition(record["key"])
        args = {
            "tensor": tensor, "part": number, "key": hex(record["key"]), "round": record["round"],
            "bytes": record["bytes"], "priority": record["priority"],
        }  # fmt: skip
        if name in ("arrived", "returned"):
            args["rank"] = record["peer"]
        elif record["member"] < SERVERS and name in _WITH_A_SERVER:
            args["server"] = record["peer"] - SERVERS
        return _event("partition", name, record["member"], begin, record["duration"], args)

    def _kept(self, kind: RecordKind, record: dict[str, Any], begin: int) -> Event:
        """Of a value that servers keep."""
        tensor, number = self._partition(record["key"])
        args = {"tensor": tensor, "part": number, "key": hex(record["key"]), "rank": record["peer"]}
        if kind is RecordKind.LEFT_OUT:
            why = Applied(record["detail"]).name.lower().replace("_", " ")
            return _event("left out", why, record["member"], begin, 0, args | {"clock": record["round"]})
        whom = "" if record["step"] == NO_RANK else f"rank {record['step']}"
        args |= {"cause": AWAITED[record["detail"]], "whom": whom, "version": record["round"]}
        name = f"rank {record['peer']}: {args['cause']}"
        return _event("held up", name, record["member"], begin, record["duration"], args)

    def _partition(self, key: int) -> tuple[str, int]:
        tensor, number = self._partitions.get(key & PARTITION_KEY, (f"key {key}", 0))
        share = (key & ~PRELUDE_KEY) >> SHARE_SHIFT
        what = " (prelude)" if key & PRELUDE_KEY else f" (share {share - 1})" if share else ""
        return tensor + what, number

    def _waited_for(self, record: dict[str, Any]) -> dict[str, Any]:
        if record["detail"]:
            return {"lane": hex(record["key"]), "group": self._groups.get(record["key"], "")}
        tensor, number = self._partitions.get(record["key"] & PARTITION_KEY, ("", 0))
        return {"key": hex(record["key"]), "tensor": tensor, "part": number}

    def _partition_of(self, call: Event) -> list[Event]:
        """A call that reduces a partition is ready when it is launched and received when it ends."""
        found = _PARTITION_LANE.fullmatch(call["args"]["group"])
        if found is None:
            return []
        args = {
            "tensor": found[1], "part": int(found[2]), "key": call["args"]["lane"], "round": call["args"]["call"],
            "bytes": call["args"]["bytes"], "priority": int(found[2]),
        }  # fmt: skip
        ready = _event("partition", "ready", call["pid"], call["ts"], 0, args)
        end = _event("partition", "received", call["pid"], call["ts"] + call["dur"], 0, dict(args))
        return [ready, end]


def _event(category: str, name: str, member: int, begin: int, duration: int, args: dict[str, Any]) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": member, "tid": 0, "ts": begin, "dur": duration, "args": args,
    }  # fmt: skip


def _step(record: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    name = _STEPS[record["detail"]] if record["detail"] < len(_STEPS) else "step"
    more: dict[str, Any] = {"step": record["step"], "bytes": record["bytes"]}
    if record["detail"] < 3:
        more["peer"] = record["peer"]
        name = f"{name} {record['peer']}"
    return name, more


def _call(record: dict[str, Any], texts: dict[int, str]) -> tuple[str, str, int]:
    """Operation, algorithm and bytes. A description is such as "all_reduce sum float32[1000], ring"."""
    if record["detail"]:
        return _HOST_KINDS[record["detail"] - 1], "shared memory", record["bytes"]
    text = texts.get(record["text"], "")
    operation, algorithm = text.split(" ", 1)[0].rstrip(",") or "call", text.rpartition(", ")[2]
    found = re.search(r"([a-z]+)(\d+)(?:_\w+)?\[([\d, ]+)\]", text)
    if found is None:
        return operation, algorithm, record["bytes"]
    return operation, algorithm, int(found[2]) // 8 * sum(int(count) for count in found[3].split(","))


def _within_the_workers_time(events: list[Event]) -> list[Event]:
    """Servers count no steps: of theirs counts what lies between the first and the last event of the workers."""
    own = [event for event in events if event["pid"] < SERVERS]
    if not own:
        return events
    first, last = min(event["ts"] for event in own), max(event["ts"] + event["dur"] for event in own)
    return [event for event in events if event["pid"] < SERVERS or first <= event["ts"] + event["dur"] <= last]


def _add_updated(events: list[Event]) -> None:
    """A partition is updated by the first update that begins after its result has come, before it is ready again."""
    updates: dict[int, list[Event]] = {}
    for event in events:
        if event["cat"] == "update":
            updates.setdefault(event["pid"], []).append(event)
    if not updates:
        return
    for found in updates.values():
        found.sort(key=lambda event: event["ts"])
    begins = {pid: [event["ts"] for event in found] for pid, found in updates.items()}
    ready = {
        (event["pid"], event["args"]["key"], event["args"]["round"]): event["ts"]
        for event in events
        if event["cat"] == "partition" and event["name"] == "ready"
    }
    for event in [event for event in events if event["cat"] == "partition" and event["name"] == "received"]:
        pid, args = event["pid"], event["args"]
        if pid not in updates or not args["tensor"].startswith("gradients."):
            continue
        at = int(np.searchsorted(begins[pid], event["ts"] + event["dur"]))
        again = ready.get((pid, args["key"], args["round"] + 1))
        if at < len(begins[pid]) and (again is None or begins[pid][at] < again):
            update = updates[pid][at]
            events.append(_event("partition", "updated", pid, update["ts"], update["dur"], dict(args)))
