"""What any place for a scheduler's decisions can do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from byteps_like.errors import BytePSLikeError

Changes = Mapping[str, bytes | None]
"""New contents by name; None: there is no such record any more."""


class Records(Protocol):
    """Named records of one job. Whoever has them open rules the job: there is one at a time. Not thread-safe."""

    @property
    def term(self) -> int:
        """Number of this rule; greater than that of all before."""

    def load(self) -> dict[str, bytes]:
        """All of them. Raises as `commit` does."""

    def commit(self, changes: Changes) -> None:
        """Makes all changes, or none; they are there after a crash. Raises SystemCallError where they can't be stored,
        and RefusedError where somebody else rules by now: then this one must end."""

    def check(self) -> None:
        """Raises as `commit` does if this one knows that somebody else may rule. Asks nobody, and does not block."""

    def on_loss(self, tell: Callable[[BytePSLikeError], None]) -> None:
        """`tell` is called once, on any thread, when somebody else may rule before `close`; with why."""

    def close(self) -> None:
        """Lets another one rule. Idempotent."""
