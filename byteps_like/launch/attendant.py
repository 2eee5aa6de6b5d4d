"""Who goes along with a job: hears of its processes and of what they print, and may do things to them."""

from __future__ import annotations

from collections.abc import Collection

from byteps_like.launch.child import Child, ChildPart


class Attendant:
    """Base of all; does nothing. Called on the launcher's main thread, between two events of the job: must not block.

    Times are of time.monotonic().
    """

    @property
    def held(self) -> Collection[ChildPart]:
        """Whose places stay empty for now, if they are."""
        return ()

    def started(self, child: Child, now: float) -> None:
        """This process has been started."""

    def ended(self, child: Child, now: float) -> None:
        """It has ended; `exit_status` says how."""

    def line(self, child: Child, text: bytes, now: float) -> bool:  # noqa: ARG002
        """It has printed this line. Returns whether it is shown."""
        return True

    def next_at(self) -> float | None:
        """When `act` has something to do again; None: not before something happens."""
        return None

    def act(self, now: float) -> bool:  # noqa: ARG002
        """Called after all that happens, and at `next_at`. Returns whether the job is to end, though nothing failed."""
        return False
