"""Where a simulated scheduler keeps its decisions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from byteps_like.control.records.records import Changes
from byteps_like.errors import BytePSLikeError, RefusedError, SystemCallError


@dataclass
class Disk:
    """What outlives its writers."""

    contents: dict[str, bytes] = field(default_factory=dict)
    term: int = 0
    """Of the newest rule."""
    is_full: bool = False
    forgets: Callable[[], bool] = bool
    """Whether a commit does nothing: a planted defect."""


class DiskRecords:
    """See Records."""

    def __init__(self, disk: Disk) -> None:
        disk.term += 1
        self._disk, self._term = disk, disk.term

    @property
    def term(self) -> int:
        """See Records."""
        return self._term

    def load(self) -> dict[str, bytes]:
        """See Records."""
        self.check()
        return dict(self._disk.contents)

    def commit(self, changes: Changes) -> None:
        """See Records."""
        self.check()
        if self._disk.is_full:
            raise SystemCallError("no space left on the simulated disk")
        if self._disk.forgets():
            return
        for name, content in changes.items():
            if content is None:
                self._disk.contents.pop(name, None)
            else:
                self._disk.contents[name] = content

    def check(self) -> None:
        """See Records."""
        if self._disk.term != self._term:
            raise RefusedError(f"term {self._disk.term} has begun")

    def on_loss(self, tell: Callable[[BytePSLikeError], None]) -> None:
        """Nobody is told: `check` finds out."""

    def close(self) -> None:
        """See Records."""
