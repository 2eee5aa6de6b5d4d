"""An operation in flight on a portable worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from byteps_like.errors import BytePSLikeError, DeadlineError, StalledError
from byteps_like.worker.keeping import Outcome

_REPORT_AFTER = 1.0  # seconds of waiting until the scheduler is told what for
_REASON_SECONDS = 2.0  # beyond the job's stall_timeout: servers, which give up then, say whom one waits for


class Waited(Protocol):
    """What a waiting handle needs of its worker."""

    @property
    def stall_timeout(self) -> float:
        """Seconds without any progress after which waiting is given up."""

    def last_progress(self) -> float:
        """When (time.monotonic) any byte last moved."""

    def report_waiting(self, name: str, since: float) -> None:
        """Somebody has been waiting for a round of `name` for `since` seconds."""

    def report_keeping(self, name: str, since: float) -> None:
        """Somebody has been waiting for what servers keep of `name`."""

    def stopped_waiting(self) -> None:
        """Not any more."""

    def job_error(self, error: BytePSLikeError) -> BytePSLikeError:
        """The error to raise when an operation failed with `error`."""


class PortableHandle:
    """Done when all its partitions have landed. `wait` and `done` from any thread, the rest on the worker's own."""

    def __init__(self, name: str, parts: int, worker: Waited) -> None:
        self.name = name
        self._parts = parts
        self._worker = worker
        self._finished = threading.Event()
        self._error: BytePSLikeError | None = None

    def done(self) -> bool:
        """True once the result has landed or the operation failed; never blocks."""
        return self._finished.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until the result has landed; raises the operation's error.

        DeadlineError after `timeout` seconds; without one, StalledError when nothing moved for the job's stall_timeout
        (the servers have said why before that, if they could).
        """
        began = time.monotonic()
        short = timeout is not None and timeout <= _REPORT_AFTER
        if not self._finished.wait(timeout if short else _REPORT_AFTER):
            if short:
                raise self._late(time.monotonic() - began, timeout)
            self._wait_long(began, timeout)
        if self._error is not None:
            raise self._worker.job_error(self._error)

    def _wait_long(self, began: float, timeout: float | None) -> None:
        self._report(time.monotonic() - began)
        try:
            while not self._finished.wait(max(0.0, self._deadline(began, timeout) - time.monotonic())):
                if time.monotonic() >= self._deadline(began, timeout):
                    raise self._late(time.monotonic() - began, timeout)
        finally:
            self._worker.stopped_waiting()

    def _report(self, since: float) -> None:
        self._worker.report_waiting(self.name, since)

    def _deadline(self, began: float, timeout: float | None) -> float:
        if timeout is not None:
            return began + timeout
        return max(began, self._worker.last_progress()) + self._worker.stall_timeout + _REASON_SECONDS

    def _late(self, elapsed: float, timeout: float | None) -> BytePSLikeError:
        if timeout is not None:
            return DeadlineError(f"{self.name!r} has not ended after {timeout:g} s", key=self.name, elapsed=elapsed)
        text = f"{self.name!r} made no progress for {self._worker.stall_timeout:g} s, and no server reported a reason"
        return StalledError(text, key=self.name, elapsed=elapsed)

    def give_up(self, error: BytePSLikeError) -> None:
        """Nothing: where there are portable workers, the job ends when ranks disagree."""

    def land(self) -> None:
        """One more partition is complete."""
        self._parts -= 1
        if self._parts == 0:
            self._finished.set()

    def fail(self, error: BytePSLikeError) -> None:
        """Ends the operation with `error`, unless it is done."""
        if not self._finished.is_set():
            self._error = error
            self._finished.set()


class PortableKeepHandle(PortableHandle):
    """A contribution to store keys, or a read of them. See worker.keeping.KeepHandle."""

    def __init__(self, name: str, parts: int, worker: Waited) -> None:
        super().__init__(name, parts, worker)
        self._outcomes: list[Outcome | None] = [None] * parts
        if not parts:
            self._finished.set()

    def outcomes(self) -> Sequence[Outcome]:
        """Of each partition, in their order. Call it once the operation is done."""
        return [outcome for outcome in self._outcomes if outcome is not None]

    def settle(self, part: int, outcome: Outcome) -> None:
        """What has become of one."""
        self._outcomes[part] = outcome
        self.land()

    def _report(self, since: float) -> None:
        self._worker.report_keeping(self.name, since)


class ReadInto(Protocol):
    """A read in flight, to memory that is there once its length is known."""

    out: memoryview


class PortableRangeHandle(PortableKeepHandle):
    """A read of a range, or through filters, in flight. See worker.keeping.RangeHandle."""

    def __init__(self, name: str, reads: Sequence[ReadInto], worker: Waited) -> None:
        super().__init__(name, len(reads), worker)
        self._reads = reads

    def ranges(self) -> Sequence[bytes]:
        """Of each part that was asked for."""
        return [bytes(read.out) for read in self._reads]


class PortableCallHandle(PortableKeepHandle):
    """A call to some shards. See worker.keeping.CallHandle."""

    def __init__(self, name: str, shards: int, worker: Waited) -> None:
        super().__init__(name, shards, worker)
        self._answers = [b""] * shards

    def answers(self) -> Sequence[bytes]:
        """Of each shard. Call it once the operation is done."""
        return self._answers

    def answer(self, number: int, error: BytePSLikeError | None, text: bytes) -> None:
        """What has come of it at one."""
        self._answers[number] = text
        if error is None:
            self.land()
        else:
            self.fail(error)
