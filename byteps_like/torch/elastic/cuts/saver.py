"""`Saver`: the cuts of one state, begun at commits as rank 0 says, and written while training goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from byteps_like.errors import InvalidArgumentError, StalledError, SystemCallError
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Event
from byteps_like.torch.elastic.cuts.content import CutContent
from byteps_like.torch.elastic.cuts.manifest import folder_of, keep_newest, numbers, remove
from byteps_like.torch.elastic.cuts.writing import CutPart
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.trees import tensors_of

logger = logging.getLogger(__name__)

LONGEST = 600.0
"""Seconds that a file system gets for what a rank has to write of a cut, once somebody waits for it."""


class Saver:
    """Writes cuts to `directory`, one at a time: the next one begins when the one before is whole, or given up.

    Ranks tell each other at their commits what they are writing (`writing`, `hear`), and rank 0 when the next cut
    begins (`order`). So no rank waits for another one's disk, and nothing is sent from the thread that writes. Not
    thread-safe.
    """

    def __init__(self, directory: Path, every: int | None = None, keep: int = 2) -> None:
        """`every`: so many commits; None: only when it is wanted. `keep`: so many cuts stay."""
        if keep < 1 or (every is not None and every < 1):
            raise InvalidArgumentError(f"every={every} and keep={keep} must be at least 1")
        self.directory, self._every, self._keep = directory, every, keep
        self._last: int | None = None
        self._since = 0
        self._wanted = False
        self._under_way: _UnderWay | None = None
        self._failure: Exception | None = None
        self._settled = 0

    def want(self) -> None:
        """The next commit becomes a cut."""
        self._wanted = True

    @property
    def is_under_way(self) -> bool:
        """Whether the cut that was begun last may still become whole, as far as this rank knows."""
        return self._under_way is not None

    @property
    def writing(self) -> int:
        """Number of the cut that this rank still writes a part of; 0: none."""
        under_way = self._under_way
        return under_way.part.number if under_way is not None and under_way.is_busy else 0

    def begun(self, *, raises: bool) -> Path:
        """The directory of the cut that was begun last. `raises`: what it has failed with, if it has."""
        if self._failure is not None and raises:
            raise self._failure
        if self._last is None:
            raise SystemCallError(f"no cut was begun in {self.directory}: rank 0's log says why", operation="cut")
        return folder_of(self.directory, self._last)

    def order(self) -> int:
        """Of rank 0, at a commit: the number of the cut that begins with it; 0: none does."""
        self._since += 1
        is_due = self._wanted or (self._every is not None and self._since >= self._every)
        if not is_due or self._under_way is not None:
            return 0
        try:
            return max([self._last or 0, *numbers(self.directory)]) + 1
        except SystemCallError as error:
            self._give_up("no cut can be begun", error)
            return 0

    def begin(self, number: int, content: CutContent) -> None:
        """As rank 0 has ordered. Returns at once; `content` must stay as it is."""
        self._since, self._wanted, self._last, self._failure = 0, False, number, None
        folder = folder_of(self.directory, number)
        part = CutPart(folder, number, content, _runtime.rank(), _runtime.size())
        events = _written_by_devices(content)
        self._under_way = _UnderWay(part, lambda: _write(part, events))

    @property
    def settled(self) -> int:
        """Of rank 0: number of the cut that it has made, or given up, last; negative: given up."""
        under_way = self._under_way
        if under_way is None or not under_way.concludes or under_way.is_busy:
            return self._settled
        return -under_way.part.number if under_way.error is not None else under_way.part.number

    def hear(self, writing: Sequence[int], settled: int) -> None:
        """What each rank of this world is writing, and what rank 0 has settled. When nobody writes the cut under way
        any more, rank 0 makes it one, unless a part is missing. If rank 0 dies before that, the next one does."""
        under_way = self._under_way
        if under_way is None or under_way.is_busy:
            return
        part = under_way.part
        if under_way.error is not None and not under_way.told:
            under_way.told = True
            self._give_up(f"cut {part.folder} is given up", under_way.error)
        if under_way.concludes:
            self._settled, self._under_way = self.settled, None
        elif part.number in writing:
            return
        elif _runtime.rank() == 0:
            self._under_way = _UnderWay(part, lambda: self._conclude(part), concludes=True)
        elif abs(settled) >= part.number:
            self._under_way = None
            if settled == -part.number and self._failure is None:
                self._failure = SystemCallError(
                    f"cut {part.folder} is given up: rank 0's log says why", operation="cut"
                )

    def wait(self) -> None:
        """Blocks until this rank has nothing to do for the cut under way. Raises StalledError after 600 s."""
        if self._under_way is not None:
            self._under_way.wait()

    def _give_up(self, what: str, error: Exception) -> None:
        self._since, self._wanted, self._failure = 0, False, error
        logger.error("rank %d: %s: %s; training goes on", _runtime.rank(), what, error)

    def _conclude(self, part: CutPart) -> None:
        try:
            part.conclude()
        except Exception:
            remove(part.folder)
            raise
        logger.info("rank %d: cut %s is whole", part.rank, part.folder)
        try:
            keep_newest(self.directory, part.number, self._keep)
        except SystemCallError as error:
            logger.warning("rank %d: older cuts can't be removed: %s", part.rank, error)


class _UnderWay:
    """A thread that does a rank's work for a cut, and what has come of it."""

    def __init__(self, part: CutPart, work: Callable[[], None], *, concludes: bool = False) -> None:
        self.part, self.concludes = part, concludes
        self.error: Exception | None = None
        self.told = False
        self._work = work
        self._thread = threading.Thread(target=self._run, name="byteps_like-cut", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._thread.is_alive()

    def wait(self) -> None:
        self._thread.join(LONGEST)
        if self.is_busy:
            raise StalledError(
                f"{self.part.folder} is not written after {LONGEST:g} s: its file system does not answer"
            )

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - of torch, of pickled objects: none of them ends the training
            self.error = error


def _write(part: CutPart, events: Sequence[Event]) -> None:
    for event in events:
        event.wait()
    part.write()


def _written_by_devices(content: CutContent) -> list[Event]:
    """What is done when devices have written all tensors."""
    found = {tensor.device: tensor for tensor in tensors_of([content.common, content.own])}
    made = [devices.of(tensor) for tensor in found.values()]
    return [device.current().record() for device in made if device is not None]
