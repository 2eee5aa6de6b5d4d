"""Says what this rank has waited for longer than a moment, and gives up what the ranks disagree on."""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue

from byteps_like.errors import MismatchError
from byteps_like.torch.naming import NameTable
from byteps_like.worker.api import Meets

PATIENCE = 0.1
"""Seconds from which on a wait is worth a message, and between two looks."""


class Lookout:
    """A thread that looks after the operations of `names`, from the first one on. What goes well costs it nothing but
    the look: a message is sent when something has waited, one for all that has."""

    def __init__(self, names: NameTable, worker: Meets) -> None:
        self._names, self._worker = names, worker
        self._told: SimpleQueue[tuple[str, int, str] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reported: set[tuple[str, int]] = set()
        worker.on_disagreement(lambda *found: self._told.put(found))

    def begin(self) -> None:
        """There is something to look after. Returns at once."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="byteps_like-lookout", daemon=True)
                    self._thread.start()

    def close(self) -> None:
        """Ends the thread. Idempotent."""
        self._told.put(None)
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            try:
                found = self._told.get(timeout=PATIENCE)
            except Empty:
                pass
            else:
                if found is None:
                    return
                point, use, text = found
                self._names.fail(point, use, MismatchError(text, key=point))
            self._look()

    def _look(self) -> None:
        for handle, error in self._names.failing():
            handle.give_up(error)  # again, if need be: what has several steps may have begun the next one meanwhile
        waiting = self._names.waiting(PATIENCE)
        places = {(claim.point, claim.use) for claim in waiting}
        if places - self._reported:
            self._worker.meet([claim.meeting for claim in waiting])
        self._reported = places
