"""This process's recorder: switched by settings, by a call or by the scheduler; one for all members in the process.

Off, it costs what asks it: one attribute per round. On, a thread drains the native rings and writes them ten times a
second.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from byteps_like.timeline.clock import clock
from byteps_like.timeline.orders import NEXT, RecordingOrder
from byteps_like.timeline.parts import PartWriter

log = logging.getLogger(__name__)

_PERIOD = 0.1  # seconds between two looks at the rings
_NAMES = 10  # such periods between two looks for new names
_RING = 1 << 15  # records of a thread: what may come within a period

Names = Callable[[], Mapping[str, Mapping[int, Any]]]
"""{"partitions": {key: [tensor, part]}, "groups": {lane: name}} of one member, as far as it knows them now."""


def parts_directory(path: str) -> Path:
    """Where the parts of the trace `path` lie: itself, or for a file the directory beside it."""
    found = Path(path)
    return found.with_name(found.name + ".parts") if found.suffix in (".json", ".gz") else found


class Recorder:
    """See the module. Thread-safe, but for `step`, which belongs to the thread that trains."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        """Nothing is ordered and nobody is here, as at first."""
        self.active = False
        """Records now."""
        self.changed = False
        """Python hooks should be put in or taken out: to be looked at between steps."""
        self.steps = 0
        """Steps that have ended, as far as anybody counts them (`step`)."""
        self._announce: Callable[[RecordingOrder | None], None] | None = None
        self._lock = threading.RLock()
        self._order: RecordingOrder | None = None
        self._left = 0
        self._names: dict[int, Names] = {}
        self._events: list[Any] = []
        self._core: Any = None
        self._writer: PartWriter | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._written: dict[str, Any] = {}

    # --- who is here ---

    def add_member(self, member: int, names: Names | None = None) -> None:
        """A worker or server that lives in this process."""
        with self._lock:
            self._names[member] = names or dict

    def remove_member(self, member: int) -> None:
        """It leaves; the last to do so ends the recording."""
        with self._lock:
            if self._writer is not None:
                self._collect(names=True)
            self._names.pop(member, None)
            last = not self._names
        if last:
            self.stop()

    @property
    def ordered(self) -> bool:
        """Whether it records, or will."""
        return self._order is not None

    @property
    def member(self) -> int:
        """Of events that don't say whose they are."""
        return next(iter(self._names), 0)

    def announce_to(self, announce: Callable[[RecordingOrder | None], None]) -> None:
        """Of rank 0: `announce` is told when recording begins, and (None) when all steps that were ordered are done."""
        with self._lock:
            self._announce = announce
            if self.active and self._order is not None and not self._order.alone:
                announce(self._order)

    # --- switching ---

    def take(self, order: RecordingOrder) -> None:
        """Records by `order`, at once or from its first step on. Does nothing while another order is carried out."""
        with self._lock:
            if self._order is not None:
                return
            self._order = order
            self.changed = True
            if order.first <= self.steps:
                self._start(order)

    def begin(self) -> None:
        """What is ordered begins now, whatever the step: for members that count none."""
        with self._lock:
            if self._order is not None and not self.active:
                self._start(self._order)

    def step(self, whole: bool = True) -> None:
        """A step has ended, the next begins. Between two, recording starts and ends. `whole`: all of it was seen."""
        self.steps += 1
        order = self._order
        if order is None:
            return
        if not self.active:
            if self.steps >= order.first:
                self.begin()
        elif self._left and whole:
            self._left -= 1
            if self._left == 0:
                self.stop()

    def stop(self) -> None:
        """Ends the recording and closes the file. Idempotent."""
        with self._lock:
            order, self._order = self._order, None
            if not self.active or order is None:
                return
            self.active = False
            self.changed = True
            if self._core is not None:
                self._core.trace_stop()
            self._wake.set()
            self._collect(names=True)
            if self._writer is not None:
                self._writer.close()
                self._writer = None
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()
        if self._announce is not None and order.steps:
            self._announce(None)

    def forget(self) -> None:
        """Of a child after fork(), which has none of the threads, and maybe a lock that nobody will release."""
        if self._core is not None:
            self._core.trace_stop()
        self._reset()

    def _start(self, order: RecordingOrder) -> None:
        self._core = _native_core()
        self._written = {"texts": 0}
        self._events = []
        self._writer = PartWriter(parts_directory(order.path))
        self._writer.json("process", host=socket.gethostname(), pid=os.getpid(), began=time.monotonic_ns())
        self._left = order.steps
        if self._core is not None:
            self._core.trace_drain()  # left over from before
            self._core.trace_start(_RING)
        self.active = True
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._wake,), name="byteps_like-timeline", daemon=True)
        self._thread.start()
        if self._announce is not None and not order.alone:
            self._announce(RecordingOrder(order.path, NEXT, order.steps))

    # --- collecting ---

    def event(
        self, category: str, name: str, begin: int, duration: int, member: int | None = None, **args: Any
    ) -> None:
        """Something that Python saw; times in nanoseconds of time.monotonic_ns."""
        if self.active:
            self._events.append((category, name, self.member if member is None else member, begin, duration, args))

    def _run(self, wake: threading.Event) -> None:
        turn = 0
        while not wake.wait(_PERIOD):
            with self._lock:
                if wake.is_set():
                    return
                self._collect(names=turn % _NAMES == 0)
            turn += 1

    def _collect(self, names: bool) -> None:
        writer = self._writer
        if writer is None:
            return
        self._collect_native(writer)
        events, self._events = self._events, []
        if events:
            writer.json("events", events=events)
        self._write_new(writer, "clock", [clock.offset().nanoseconds, clock.offset().error])
        if names and self._names:
            self._write_new(writer, "names", self._all_names())
        if not writer.open and self._core is not None:
            self._core.trace_stop()

    def _all_names(self) -> dict[str, dict[int, Any]]:
        found: dict[str, dict[int, Any]] = {"partitions": {}, "groups": {}}
        for provider in list(self._names.values()):
            for kind, known in provider().items():
                found[kind].update(known)
        return found

    def _collect_native(self, writer: PartWriter) -> None:
        if self._core is None:
            return
        records, lost = self._core.trace_drain()
        if records:
            writer.records(records)
        first = self._written["texts"] + 1
        texts = self._core.trace_texts(first)
        if texts:
            writer.json("texts", first=first, texts=texts)
            self._written["texts"] += len(texts)
        if lost:
            self._write_new(writer, "lost", lost)

    def _write_new(self, writer: PartWriter, what: str, value: Any) -> None:
        if self._written.get(what) != value:
            self._written[what] = value
            writer.json(what, value=value)


def _native_core() -> Any:
    """The core, if it is there and knows how to record; the recorder of a process without it knows only Python's."""
    try:
        core = importlib.import_module("byteps_like._core")
    except ImportError:
        return None
    return core if hasattr(core, "trace_start") else None


recorder = Recorder()
"""This process's."""
atexit.register(recorder.stop)
os.register_at_fork(after_in_child=recorder.forget)
