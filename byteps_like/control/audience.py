"""Who is told of what happens."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Listener = TypeVar("Listener")
Call = Callable[[Listener], None]

_UNHEARD = 1024
"""Events kept for the first callback."""


class Audience(Generic[Listener]):
    """The first who comes is told what was before, too: other ranks may be ahead of this one. Thread-safe."""

    def __init__(self) -> None:
        self._there: list[Listener] = []
        self._unheard: deque[Call[Listener]] = deque(maxlen=_UNHEARD)
        self._lock = threading.RLock()

    def join(self, who: Listener) -> None:
        """From here on `who` is told."""
        with self._lock:
            self._there.append(who)
            for call in self._unheard:
                call(who)
            self._unheard.clear()

    def tell(self, call: Call[Listener]) -> None:
        """Calls it with each who is there. It must not block."""
        with self._lock:
            for who in self._there:
                call(who)
            if not self._there:
                self._unheard.append(call)

    def leave(self) -> None:
        """Nobody is told any more."""
        with self._lock:
            self._there.clear()
            self._unheard.clear()
