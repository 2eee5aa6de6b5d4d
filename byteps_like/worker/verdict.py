"""Why the job failed, as far as a worker knows: what it met itself, then the scheduler's word."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from byteps_like.errors import BytePSLikeError, from_code
from byteps_like.worker.standing import Stands

WAIT = 1.0
"""Seconds an error waits for the scheduler's explanation of it."""


class Verdict:
    """That of the worker `who`. Thread-safe. `name_keys` puts names for the keys in a text that it knows.

    A server's error speaks of keys. The scheduler knows them all by name, also those that this rank has yet to
    declare, and it tells all ranks the same; so whoever raises waits for its word for a moment.
    """

    def __init__(self, who: Stands, name_keys: Callable[[str], str]) -> None:
        self.error: BytePSLikeError | None = None
        self._who: Stands = weakref.proxy(who)  # it has this verdict
        self._name_keys = name_keys
        self._lock = threading.Lock()
        self._told = threading.Event()

    def met(self, error: BytePSLikeError) -> bool:
        """This worker has met `error`; False if it has met another, or been told of one, before."""
        with self._lock:
            first = self.error is None
            self.error = self.error or error
            return first

    def told(self, error: BytePSLikeError) -> None:
        """The scheduler's word. Never blocks."""
        with self._lock:
            self.error = error
        self._told.set()

    def check(self) -> None:
        """Raises the job's error, if it has failed."""
        if self.error is not None:
            raise self.explained(self.error)

    def explained(self, error: BytePSLikeError) -> BytePSLikeError:
        """A fresh error to raise for one that ended the job: the scheduler's word, else what was met. Blocks."""
        self._told.wait(WAIT)
        known = self.error or error
        return from_code(known.code, self._name_keys(str(known)), rank=self._who.rank, peer=known.peer, key=known.key)
