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


class LeftInFlight:
    """Operations that nobody will wait for any more, but that other ranks take part in. Destructors may add to it."""

    def __init__(self) -> None:
        self._all: dict[object, tuple[Handle, object]] = {}

    def add(self, handles: Sequence[Handle], data: object) -> None:
        """More of them, that work in `data`; forgets those that are done."""
        for key, (handle, _) in list(self._all.items()):
            if handle.done():
                self._all.pop(key, None)
        self._all.update((object(), (handle, data)) for handle in handles)

    def wait(self) -> None:
        """Blocks until all are done. What they failed with is of interest to nobody."""
        while self._all:
            _, (handle, data) = self._all.popitem()
            with suppress(Exception):
                handle.wait()
            del data  # which had to stay so long


_parked: dict[object, tuple[list[Handle], object, Callable[[], None] | None]] = {}
"""By a key of its own, so that all changes are single steps: destructors park, at any time and on any thread."""


def park(handles: list[Handle], data: object, then: Callable[[], None] | None = None) -> None:
    """Keeps `data` alive until `handles` are done, then calls `then`, which must not raise; looked at again with the
    next that is parked, and by `release`."""
    _parked[object()] = handles, data, then
    release()


def release() -> None:
    """Lets go of what is done with."""
    for key, (handles, _, then) in list(_parked.items()):
        if all(handle.done() for handle in handles) and _parked.pop(key, None) is not None and then is not None:
            then()
