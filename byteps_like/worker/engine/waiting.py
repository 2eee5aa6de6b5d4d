"""How a rank waits for an operation of its engine: in silence at first, then it tells the scheduler what for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

from byteps_like.control.members.seats import Waiting

_REPORT_AFTER = 1.0  # seconds of waiting until the scheduler is told what for
_LONGEST = 3600.0  # seconds in one go, once it knows

Describe = Callable[[float], Waiting]
"""What is waited for, after so many seconds."""


class EngineWaits(Protocol):
    """What waits: the C++ engine."""

    def wait(self, operation: Any, seconds: float) -> bool:
        """Whether it has ended within `seconds`. Raises the operation's error."""


def wait_for(
    engine: EngineWaits,
    operation: Any,
    timeout: float | None,
    describe: Describe,
    tell: Callable[[Waiting | None], None],
) -> bool:
    """Waits for an operation of `engine`; False after `timeout` seconds. Raises the operation's error.

    Tells the scheduler what for when it takes long, and when that is over.
    """
    started = time.monotonic()
    deadline = None if timeout is None else started + timeout
    told = False
    try:
        while not engine.wait(operation, _slice(deadline, told)):
            if deadline is not None and time.monotonic() >= deadline:
                return False
            tell(describe(time.monotonic() - started))
            told = True
    finally:
        if told:
            tell(None)
    return True


def _slice(deadline: float | None, told: bool) -> float:
    """How long to wait in one go: until the deadline, but at first only until it is worth a report."""
    longest = _LONGEST if told else _REPORT_AFTER
    return longest if deadline is None else max(0.0, min(longest, deadline - time.monotonic()))
