"""A scheduler's records that no disk has."""

from __future__ import annotations

from collections.abc import Callable

from byteps_like.control.records.records import Changes
from byteps_like.errors import BytePSLikeError


class RecordsInMemory:
    """They outlive a scheduler of the same process."""

    def __init__(self) -> None:
        self.term = 0
        self.kept: dict[str, bytes] = {}

    def load(self) -> dict[str, bytes]:
        """Another scheduler begins to rule."""
        self.term += 1
        return dict(self.kept)

    def commit(self, changes: Changes) -> None:
        for name, content in changes.items():
            if content is None:
                self.kept.pop(name, None)
            else:
                self.kept[name] = content

    def check(self) -> None:
        pass

    def on_loss(self, tell: Callable[[BytePSLikeError], None]) -> None:
        pass

    def close(self) -> None:
        pass
