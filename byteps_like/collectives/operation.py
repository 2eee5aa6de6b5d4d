"""Operations of the native core, and who is told when they end."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from byteps_like.errors import BytePSLikeError, Code, DeadlineError, from_code, timed_out

logger = logging.getLogger(__name__)

_FOREVER = 3600.0  # seconds of one uninterrupted wait
_POLL = 1.0  # seconds between two looks whether to end
_THREADS = 64  # callbacks that block at the same time before others have to wait for them


Cancel = Callable[[Any, int, str], None]
"""Fails a completion on all ranks: code and text."""


class NativeOperation:
    """One call in flight; see collectives.api.CollectiveOperation."""

    __slots__ = ("_cancel", "_completion", "_names", "_notifier", "_rank")

    def __init__(
        self, completion: Any, notifier: Notifier, rank: int, names: tuple[str, str], cancel: Cancel | None = None
    ) -> None:
        """`names`: of what it does and of its group, put into words only for an error. `cancel`: the core's."""
        self._cancel = cancel
        self._completion = completion
        self._notifier = notifier
        self._rank = rank
        self._names = names

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(self._completion.done())

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it has ended. Raises its typed error, or DeadlineError after `timeout`."""
        try:
            self._wait(timeout)
        except BytePSLikeError as error:
            raise typed((error.code, str(error)), self._rank, self._names) from None

    def _wait(self, timeout: float | None) -> None:
        if timeout is None:
            while not self._completion.wait(_FOREVER):
                pass
        elif not self._completion.wait(timeout):
            raise DeadlineError(f"wait() for {_what(self._names)} {timed_out(timeout)}; the call goes on")

    def give_up(self, error: BytePSLikeError) -> None:
        """See collectives.api.CollectiveOperation."""
        if self._cancel is not None:
            self._cancel(self._completion, int(error.code), str(error))

    def error(self) -> BytePSLikeError | None:
        """Why it failed, or None; only once it is done."""
        failed = self._completion.failed()
        return None if failed is None else typed(failed, self._rank, self._names)

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back once when it has ended, on a thread of a pool; at once if it has ended."""
        if self._completion.done():
            callback()
        else:
            self._notifier.watch(self._completion, callback)

    @property
    def source(self) -> int:
        """Group rank whose message a `receive` got."""
        return int(self._completion.source)


def typed(failed: tuple[int | Code, str], rank: int, names: tuple[str, str]) -> BytePSLikeError:
    """The error of a call: code and text by the core, this rank, names of the operation and of its group."""
    code, text = failed
    return from_code(code, f"rank {rank}: {text}", rank=rank, operation=_what(names))


def _what(names: tuple[str, str]) -> str:
    kind, group = names
    return f"{kind} in group {group!r}"


class Ended:
    """A call that had ended before it came back to its caller; see collectives.api.CollectiveOperation."""

    __slots__ = ("_error",)
    source = -1

    def __init__(self, error: BytePSLikeError | None = None) -> None:
        self._error = error

    def done(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> None:  # noqa: ARG002 - nothing to wait for
        """Raises what it failed with."""
        if self._error is not None:
            raise self._error

    def error(self) -> BytePSLikeError | None:
        """Why it failed, or None."""
        return self._error

    def give_up(self, error: BytePSLikeError) -> None:
        """It has ended."""

    def on_done(self, callback: Callable[[], None]) -> None:
        """Calls back at once."""
        callback()


ENDED = Ended()


class Notifier:
    """Hands ended operations to their callbacks: one thread waits for the core, a pool runs what may block."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._lock = threading.Lock()
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._last = 0
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._thread: threading.Thread | None = None

    def watch(self, completion: Any, callback: Callable[[], None]) -> None:
        """`callback` is called once, when `completion` has ended; at once, here, after `close`."""
        with self._lock:
            token = None if self._closed else self._take(callback)
        if token is None:
            callback()
        else:
            completion.notify(self._core, token)

    def _take(self, callback: Callable[[], None]) -> int:
        if self._thread is None:
            self._pool = ThreadPoolExecutor(_THREADS, "byteps_like-callback")
            self._thread = threading.Thread(target=self._pump, name="byteps_like-notifier", daemon=True)
            self._thread.start()
        self._last += 1
        self._callbacks[self._last] = callback
        return self._last

    def _pump(self) -> None:
        while True:
            token = self._core.next_completed(_POLL)
            if token is not None:
                with self._lock:
                    callback = self._callbacks.pop(token)
                self._run(callback)
            elif self._closed:
                self._run_rest()
                return

    def _run_rest(self) -> None:
        """Of whose end the core has not been asked to tell yet, since whoever does was overtaken by `close`."""
        with self._lock:
            rest, self._callbacks = list(self._callbacks.values()), {}
        for callback in rest:
            self._run(callback)

    def _run(self, callback: Callable[[], None]) -> None:
        assert self._pool is not None
        try:
            self._pool.submit(_guarded, callback)
        except RuntimeError:  # the interpreter is ending, or `close` has: no thread may be started any more
            _guarded(callback)

    def close(self) -> None:
        """After the core was closed, so that everything has ended: hands out what is left, then stops. Idempotent."""
        with self._lock:
            self._closed = True
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * _POLL)
        if self._pool is not None:
            self._pool.shutdown(wait=False)


def _guarded(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        logger.exception("a callback of a collective failed")
