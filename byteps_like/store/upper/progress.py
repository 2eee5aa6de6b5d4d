"""What is exchanged with an upper group, as whoever decides when sees it: how far it has come, and who does it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from byteps_like.errors import BytePSLikeError


class AboveLost(Exception):
    """The upper group can't be reached, or has failed."""

    def __init__(self, error: BytePSLikeError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def above() -> Iterator[None]:
    """What the block raises is an error of the upper group."""
    try:
        yield
    except BytePSLikeError as error:
        raise AboveLost(error) from error


class Below:
    """A tensor, or all rows, of a site."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent = 0
        """Versions that contributions have made of it, when it was exchanged last."""
        self._others = 0
        """Versions that are not made of contributions: restored ones, and what was merged."""

    def made(self, version: int) -> int:
        """Versions that contributions have made of it."""
        return version - self._others

    def merged(self) -> None:
        """That has made a version."""
        self._others += 1

    def begins_at(self, version: int) -> None:
        """It was restored."""
        self._others, self.sent = version, 0


class Exchange(Protocol):
    """What exchanges values, on rank 0. One at a time."""

    @property
    def all(self) -> Sequence[Below]:
        """What there is to exchange."""

    def run(self, due: Sequence[Below]) -> None:
        """Contributes to the upper group how far these have come, and merges what it has. Blocks. Raises AboveLost, and
        the errors of the site's own job."""

    def begin_anew(self) -> None:
        """All was restored. The caller holds the site's gate; what was under way changes nothing any more."""
