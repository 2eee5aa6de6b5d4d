"""Operations in flight that are waited for together, or that nobody waits for any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from byteps_like.collectives.together import Together
from byteps_like.worker.api import Handle


def call_all(waits: Sequence[Callable[[], None]]) -> None:
    """Makes all calls. Raises the first error, after all."""
    failure: Exception | None = None
    for wait in waits:
        try:
            wait()
        except Exception as error:  # noqa: BLE001 - raised again below
            failure = failure or error
    if failure is not None:
        raise failure


class InFlightGroup(Together):
    """Some of them as one, of which those on a device needn't block the host."""

    def block(self) -> None:
        """The current stream waits for those on a device, the host for the others. Raises the first error."""
        call_all([getattr(part, "block", part.wait) for part in self._parts])


class Parked:
    """Operations that nobody waits for in the end, and the memory that they work in."""

    def __init__(self, handles: list[Handle], data: object, then: Callable[[], None] | None) -> None:
        self.handles, self.data, self.then = handles, data, then

    def wait(self) -> None:
        """Blocks until they are done, for the sake of other ranks: what they failed with is of interest to nobody."""
        for handle in self.handles:
            with suppress(Exception):
                handle.wait()


_parked: dict[Parked, bool] = {}
"""All of them. All changes are single steps: destructors park, at any time and on any thread."""


def park(handles: list[Handle], data: object, then: Callable[[], None] | None = None) -> Parked:
    """Keeps `data` alive until `handles` are done, then calls `then`, which must not raise; looked at again with the
    next that is parked, and by `release`."""
    parked = Parked(handles, data, then)
    _parked[parked] = True
    release()
    return parked


def release() -> None:
    """Lets go of what is done with."""
    for parked in list(_parked):
        done = all(handle.done() for handle in parked.handles)
        if done and _parked.pop(parked, False) and parked.then is not None:
            parked.then()
