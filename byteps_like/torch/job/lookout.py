"""Says what this rank has waited for longer than a moment, and gives up what the ranks disagree on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue

from byteps_like.errors import MismatchError
from byteps_like.torch.job.naming import NameTable
from byteps_like.worker.api import Answer, MeetingPlace, Meets, Question

PATIENCE = 0.1
"""Seconds from which on a wait is worth a message, and between two looks."""

STANDSTILL = 0.3
"""Seconds for which all threads that make calls wait, before ranks are asked whether they wait for each other."""

_Failed = tuple[Sequence[MeetingPlace], MismatchError]


class Lookout:
    """A thread that looks after the operations of `names`, from the first one on. What goes well costs it nothing but
    the look: a message is sent when something has waited, one for all that has. See worker.api.Attends."""

    def __init__(self, names: NameTable, worker: Meets, on_given_up: Callable[[Sequence[str]], None]) -> None:
        """`on_given_up` is told under which names those travel that this rank has begun, and gives up now."""
        self._names, self._worker, self._on_given_up = names, worker, on_given_up
        self._told: SimpleQueue[_Failed | Question | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._reported: set[tuple[MeetingPlace, bool]] = set()
        worker.attend(self)

    def disagreed(self, places: Sequence[MeetingPlace], text: str) -> None:
        """None of these can come about."""
        self._told.put((places, MismatchError(text, key=places[0][0])))

    def asked(self, question: Question) -> None:
        """Another report is wanted, with the answer."""
        self._told.put(question)

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
            answer = None
            try:
                told = self._told.get(timeout=PATIENCE)
            except Empty:
                pass
            else:
                if told is None:
                    return
                if isinstance(told, Question):
                    answer = Answer(told.number, self._names.have_begun(told.places))
                else:
                    self._on_given_up(self._names.fail(*told))
            self._look(answer)

    def _look(self, answer: Answer | None) -> None:
        for handle, error in self._names.failing():
            handle.give_up(error)  # again, if need be: what has several steps may have begun the next one meanwhile
        waiting, blocking = self._names.waiting(PATIENCE), self._names.blocking(STANDSTILL)
        meetings = [claim.meeting(claim in blocking) for claim in waiting]
        states = {(one.place, one.blocks) for one in meetings}
        if states - self._reported or answer is not None:
            self._worker.meet(meetings, answer)
        self._reported = states
