"""What a launcher tells its scheduler: which processes have ended. So nobody waits for a dead one to come back."""

from __future__ import annotations

import contextlib
import os
from collections import deque

_REMEMBERED = 256
"""Deaths of which the next scheduler hears, too: the one before may not have done anything about them."""


class Obituary:
    """A pipe to the scheduler there is. Main thread only; writes never block."""

    def __init__(self) -> None:
        self._pipe: int | None = None
        self._ended: deque[int] = deque(maxlen=_REMEMBERED)

    def open(self) -> int:
        """A new pipe, for a new scheduler; the end that it reads is the caller's to close."""
        self.close()
        read_end, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        for pid in self._ended:
            self._tell(pid)
        return read_end

    def began(self, pid: int) -> None:
        """There is such a process: an earlier one that had this number is forgotten."""
        with contextlib.suppress(ValueError):
            self._ended.remove(pid)

    def ended(self, pid: int) -> None:
        """The process has ended, in whatever way."""
        self._ended.append(pid)
        self._tell(pid)

    def close(self) -> None:
        """Nobody is told any more. Idempotent."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None

    def _tell(self, pid: int) -> None:
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError, BrokenPipeError):  # it finds out by itself
                os.write(self._pipe, b"%d\n" % pid)
