"""How many steps lie between two pushes, and two pulls, of a parameter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from byteps_like.errors import InvalidArgumentError


@dataclass(frozen=True)
class Periods:
    """`by_name`: for parameters of such names (with * and ?), instead of both; the first match counts.

    Raises InvalidArgumentError for what is no number of steps.
    """

    push_every: int = 1
    pull_every: int = 1
    by_name: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = {"push_every": self.push_every, "pull_every": self.pull_every}
        given |= {f"periods[{pattern!r}]": steps for pattern, steps in self.by_name.items()}
        for what, steps in given.items():
            if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
                raise InvalidArgumentError(f"{what}={steps!r} must be a whole number of steps, at least 1")

    def pushes(self, name: str, step: int) -> bool:
        """Whether the parameter is pushed in that step, the first of which is 1."""
        return step % self._of(name, self.push_every) == 0

    def pulls(self, name: str, step: int) -> bool:
        """Whether it is pulled by the end of that step."""
        return step % self._of(name, self.pull_every) == 0

    def _of(self, name: str, otherwise: int) -> int:
        return next((steps for pattern, steps in self.by_name.items() if fnmatchcase(name, pattern)), otherwise)
