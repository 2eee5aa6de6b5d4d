"""A thread that carries exchanges of several steps on: computes between two operations, and waits for none of them."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Generator

from byteps_like.collectives.api import CollectiveOperation
from byteps_like.collectives.ending import Ending
from byteps_like.errors import BytePSLikeError, DeadlineError, ShutdownError, timed_out

logger = logging.getLogger(__name__)


class Flight:
    """One exchange under way: a CollectiveOperation. Thread-safe."""

    source = -1

    def __init__(self, steps: Generator[CollectiveOperation, None, None], what: str) -> None:
        self.steps = steps
        self.waits_for: CollectiveOperation | None = None
        self._what = what
        self._ending: Ending[BytePSLikeError] = Ending()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ending.has_come()

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it has ended; raises what made it fail, DeadlineError after `timeout`: then it goes on."""
        if not self._ending.wait(timeout):
            raise DeadlineError(f"{self._what} {timed_out(timeout or 0.0)}", operation=self._what)

    def error(self) -> BytePSLikeError | None:
        """See collectives.api.CollectiveOperation."""
        return self._ending.error()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when it has ended, on the stepper's thread, which is not to be kept; at once if it has."""
        self._ending.on_come(callback)

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation. Some operation of the exchange waits for ranks that won't come."""
        waits_for = self.waits_for
        if waits_for is not None:
            waits_for.give_up(error)

    def end(self, error: BytePSLikeError | None = None) -> None:
        """It is over."""
        self._ending.come(error)


class Stepper:
    """Runs the steps of many flights on one thread, those of higher priority first. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ready: queue.PriorityQueue[tuple[int, int, Flight | None]] = queue.PriorityQueue()
        self._order = itertools.count()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._under_way: set[Flight] = set()
        self._closed = False

    def start(self, steps: Generator[CollectiveOperation, None, None], priority: int, what: str) -> Flight:
        """Runs `steps`, which yields operations: it goes on when they have ended, and gets their errors raised."""
        flight = Flight(steps, what)
        with self._lock:
            if self._closed:
                raise ShutdownError("this worker has been shut down; call init() again")
            self._under_way.add(flight)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._put(flight, priority)
        return flight

    def _put(self, flight: Flight, priority: int) -> None:
        self._ready.put((-priority, next(self._order), flight))

    def _run(self) -> None:
        while True:
            negative, _, flight = self._ready.get()
            if flight is None:
                return
            self._advance(flight, -negative)

    def _advance(self, flight: Flight, priority: int) -> None:
        """To its next operation, or to its end."""
        try:
            error = flight.waits_for.error() if flight.waits_for is not None else None
            flight.waits_for = next(flight.steps) if error is None else flight.steps.throw(error)
        except StopIteration:
            self._end(flight, None)
        except BytePSLikeError as error:
            self._end(flight, error)
        except Exception as error:
            logger.exception("an exchange failed by an internal error")
            self._end(flight, BytePSLikeError(f"an exchange failed by an internal error: {error!r}"))
        else:
            flight.waits_for.on_done(lambda: self._put(flight, priority))

    def _end(self, flight: Flight, error: BytePSLikeError | None) -> None:
        with self._lock:
            self._under_way.discard(flight)
        flight.end(error)

    def close(self) -> None:
        """What is under way fails with ShutdownError. Idempotent."""
        with self._lock:
            self._closed, thread, self._thread = True, self._thread, None
            left, self._under_way = self._under_way, set()
        if thread is not None:
            self._ready.put((-(1 << 62), next(self._order), None))
            if thread is not threading.current_thread():
                thread.join()
        for flight in left:
            flight.end(ShutdownError("this worker has been shut down"))
