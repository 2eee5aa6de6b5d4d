"""This process's monotonic clock against the scheduler's, from calls that are made anyway.

An answer of the scheduler bears its clock. It was read between the call and the answer, so the offset is known to
half a round trip; of the last calls the shortest counts (Cristian's method, as in NTP's clock filter).
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

_RECENT = 64


@dataclass(frozen=True)
class Offset:
    """Nanoseconds to add to this process's clock to get the scheduler's, right to +- `error`."""

    nanoseconds: int = 0
    error: int = 0

    @property
    def correction(self) -> int:
        """What to add to a time. 0 where the clocks can't be told apart: those of one host are one clock."""
        return 0 if abs(self.nanoseconds) <= self.error else self.nanoseconds


class Clock:
    """The samples of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Offset] = deque(maxlen=_RECENT)

    def observe(self, sent: int, theirs: int, received: int) -> None:
        """A call that left at `sent` and was answered at `received`, on our clock; the answer says `theirs`."""
        error = (received - sent + 1) // 2
        with self._lock:
            self._samples.append(Offset(theirs - (sent + received) // 2, error))

    def offset(self) -> Offset:
        """The best estimate; none before the first call."""
        with self._lock:
            return min(self._samples, key=lambda sample: sample.error, default=Offset())


clock = Clock()
"""This process's."""
