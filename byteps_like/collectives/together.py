"""Operations that are waited for as one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from byteps_like.errors import BytePSLikeError, DeadlineError


class Waitable(Protocol):
    """An operation, or anything else that is waited for."""

    def done(self) -> bool:
        """Whether it has ended, well or not."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it has ended; raises what made it fail."""

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation."""


class Together:
    """Done when all of `parts` are. All are waited for, also if one fails, since their memory is in use until then."""

    def __init__(self, parts: Sequence[Waitable]) -> None:
        self._parts = parts

    def done(self) -> bool:
        """Whether all have ended."""
        return all(part.done() for part in self._parts)

    def give_up(self, error: BytePSLikeError) -> None:
        """Gives all up."""
        for part in self._parts:
            part.give_up(error)

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until all have ended, then raises the first error.

        DeadlineError after `timeout` seconds in all: then some go on, and their memory is still in use.
        """
        end = None if timeout is None else time.monotonic() + timeout
        first: Exception | None = None
        for part in self._parts:
            try:
                part.wait(None if end is None else max(0.0, end - time.monotonic()))
            except Exception as error:
                if isinstance(error, DeadlineError) and not part.done():
                    raise
                first = first or error
        if first is not None:
            raise first
