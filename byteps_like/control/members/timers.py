"""One table of what is to happen later, so that acting on deadlines and knowing the next one can't disagree."""

from __future__ import annotations

from collections.abc import Callable


class Timer:
    """Something to do at a time that is set, once, or never. Times are seconds of any monotonic clock."""

    def __init__(self, action: Callable[[float], None]) -> None:
        self._action = action
        self._at: float | None = None

    def start(self, at: float) -> None:
        """Sets the time, or moves it."""
        self._at = at

    def stop(self) -> None:
        """Takes the time back."""
        self._at = None

    def at(self) -> float | None:
        """When it is due; None: not at all."""
        return self._at

    def fire(self, now: float) -> None:
        """Acts. The time is taken back first, so the action may set another."""
        self.stop()
        self._action(now)


class _Derived(Timer):
    """A timer whose time follows from other state, which its action has to change."""

    def __init__(self, when: Callable[[], float | None], action: Callable[[float], None]) -> None:
        super().__init__(action)
        self._when = when

    def at(self) -> float | None:
        return self._when()


class Timers:
    """All timers of a state machine, in the order in which those due at the same tick act. Not thread-safe."""

    def __init__(self) -> None:
        self._timers: list[Timer] = []

    def add(self, action: Callable[[float], None]) -> Timer:
        """A timer that calls `action(now)` once each time it is started."""
        return self._append(Timer(action))

    def derive(self, when: Callable[[], float | None], action: Callable[[float], None]) -> None:
        """A timer due at `when()`, which is asked at each tick; None: not at all."""
        self._append(_Derived(when, action))

    def next(self) -> float | None:
        """When the first is due; None: no timer is running."""
        return min((at for timer in self._timers if (at := timer.at()) is not None), default=None)

    def tick(self, now: float) -> None:
        """Fires what is due. One action may start or stop the timers behind it."""
        for timer in self._timers:
            at = timer.at()
            if at is not None and at <= now:
                timer.fire(now)

    def _append(self, timer: Timer) -> Timer:
        self._timers.append(timer)
        return timer
