"""How a job is brought to its end: a list of signals with the time each is given, workers first, services last."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from byteps_like.launch.child import Child

SERVICES_GRACE = 3.0
KILL_GRACE = 5.0


class Why(Enum):
    """What ended the job."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    TIMED_OUT = "timed out"
    ENOUGH = "it has run for long enough"


@dataclass(frozen=True)
class StoppingStep:
    """Send `signal` (None: only wait), then allow `seconds` for the processes to end."""

    signal: signal.Signals | None
    seconds: float


def steps_for(why: Why, grace: float, settle: float, number: signal.Signals = signal.SIGINT) -> list[StoppingStep]:
    """What the workers get. After a failure they first have `settle` seconds to see it and to say so themselves."""
    kill = StoppingStep(signal.SIGKILL, KILL_GRACE)
    if why is Why.DONE:
        return []
    if why is Why.FAILED:
        return [StoppingStep(None, settle), StoppingStep(signal.SIGTERM, grace), kill]
    first = number if why is Why.INTERRUPTED else signal.SIGTERM
    return [StoppingStep(first, grace), kill]


class Stopping:
    """The state of ending a job. Time is passed in; nothing here blocks."""

    def __init__(self, why: Why, steps: Iterable[StoppingStep], now: float) -> None:
        self.why = why
        self.deadline = now
        self._workers = deque(steps)
        self._services = deque([StoppingStep(signal.SIGTERM, SERVICES_GRACE), StoppingStep(signal.SIGKILL, KILL_GRACE)])
        self._reached_services = False

    def advance(self, workers: Sequence[Child], services: Sequence[Child], now: float) -> bool:
        """Sends what is due. True when every process has ended, or has outlived even SIGKILL's grace."""
        if any(child.running for child in workers):
            return self._next(self._workers, workers, now)
        if not any(child.running for child in services):
            return True
        if not self._reached_services:
            self._reached_services = True
            self.deadline = now
        return self._next(self._services, services, now)

    def hurry(self, now: float) -> None:
        """Skips to SIGKILL for everything."""
        kill = StoppingStep(signal.SIGKILL, KILL_GRACE)
        self._workers = deque([kill])
        self._services = deque([kill])
        self.deadline = now

    def _next(self, steps: deque[StoppingStep], children: Sequence[Child], now: float) -> bool:
        while now >= self.deadline:
            if not steps:
                return True
            step = steps.popleft()
            self.deadline = now + step.seconds
            if step.signal is not None:
                for child in children:
                    child.signal(step.signal)
        return False
