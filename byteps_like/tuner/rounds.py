"""When a setting is tried, and for how long: counted in rounds, alike on all ranks. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class TrialPace:
    """`trials` settings are tried; of each the first `discard` rounds don't count, the next `measure` do."""

    trials: int = 20
    discard: int = 1
    measure: int = 5


@dataclass
class TrialRounds:
    """Counts rounds; `note` says when the next setting is due. The first is due after one round."""

    pace: TrialPace
    seconds: list[float] = field(default_factory=list)
    """Of the rounds of this setting that count."""
    _left: int = 1
    _counting: bool = False

    def note(self, seconds: float) -> bool:
        """A round has ended, all ranks having taken part, `seconds` after the one before. True: a decision is due."""
        self._left -= 1
        if self._counting and self._left < self.pace.measure:
            self.seconds.append(seconds)
        return self._left == 0

    @property
    def last(self) -> bool:
        """Whether the round under way is the last of its setting."""
        return self._left == 1

    def begin(self) -> None:
        """The next setting is in force."""
        self.seconds = []
        self._counting = True
        self._left = self.pace.discard + self.pace.measure
