"""What is to be recorded: where to, from which step, how many."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from byteps_like.errors import ConfigError, InvalidArgumentError

NEXT = -1


@dataclass(frozen=True)
class RecordingOrder:
    """Steps are counted from 0. `first` NEXT: from the next one on; `steps` 0: until the end.

    `alone`: of this process only; other members are not told, even by rank 0.
    """

    path: str
    first: int = NEXT
    steps: int = 0
    alone: bool = False

    def to_text(self) -> str:
        """For the wire."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> RecordingOrder:
        """What `to_text` wrote. Raises InvalidArgumentError for anything else."""
        try:
            found = json.loads(text)
            return cls(str(found["path"]), int(found["first"]), int(found["steps"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InvalidArgumentError(f"{text!r} is not a valid order to record a timeline: {error!r}") from None


def is_below(path: str, folders: Iterable[str]) -> bool:
    """True if `path` lies in one of `folders`, links followed; those that are empty don't count."""
    wanted = Path(path).resolve()
    return any(wanted.is_relative_to(Path(folder).resolve()) for folder in folders if folder)


def parse_steps(path: str, text: str) -> RecordingOrder:
    """The order of the settings `trace` and `trace_steps`: "10:19" (both of them, too), "20" (the first 20), "".

    Raises ConfigError for anything else.
    """
    first, colon, last = text.strip().partition(":")
    try:
        if not first and not colon:
            return RecordingOrder(path)
        begin = int(first) if colon else 0
        count = int(last) - begin + 1 if colon else int(first)
    except ValueError:
        begin = count = -1
    if begin < 0 or count < 1:
        raise ConfigError(f"trace_steps={text!r} is neither first:last (such as 10:19) nor a number of steps")
    return RecordingOrder(path, begin, count)
