"""SIGTERM in an elastic job, as platforms send it before they take a machine away: the worker leaves in order.

It asks the scheduler for what `byteps-like worker drain` asks for. Where it can't leave so, or is told a second time,
the signal does what it always does: the process ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from byteps_like.control.calls.client import order_drain
from byteps_like.control.members.drains import DrainOrder, DrainState
from byteps_like.control.types import MemberRole
from byteps_like.errors import BytePSLikeError, DeadlineError, NotInitializedError, PeerLostError
from byteps_like.torch.job import runtime as _runtime

logger = logging.getLogger(__name__)

_ASK_SECONDS = 0.1
_PATIENCE = 20.0
"""For which it may be between two worlds, or without a scheduler."""


@contextmanager
def leaves_when_terminated() -> Iterator[None]:
    """Within, SIGTERM has this worker leave at its next commit. A handler that the script has set stays, and outside of
    the main thread none can be set."""
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        _set_default()


def _on_sigterm(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave, name="byteps_like-leave", daemon=True).start()  # a handler must not wait


def _set_default() -> None:
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Fork:
    """Children inherit the handler, but have no worker to leave: they end as they would without it. A signal must wait
    until the child has the default back, since Python drops what reaches a child before that."""

    def __init__(self) -> None:
        self._masks = threading.local()  # threads may fork at once

    def begin(self) -> None:
        self._masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def end(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._masks.before)

    def end_in_child(self) -> None:
        _set_default()
        self.end()


_fork = _Fork()
os.register_at_fork(before=_fork.begin, after_in_parent=_fork.end, after_in_child=_fork.end_in_child)


def _leave() -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            if _is_asked():
                return
            why = "no world has formed that it could leave"
        except NotInitializedError:
            why, end = "it is between two worlds", end if _runtime.pending() is None else 0.0  # or in none yet
        except (PeerLostError, DeadlineError) as error:
            why = str(error)  # another scheduler may take its place
        except BytePSLikeError as error:
            why, end = str(error), 0.0
        if time.monotonic() > end:
            break
        time.sleep(_ASK_SECONDS)
    logger.warning("SIGTERM ends this worker at once, since it can't leave in order: %s", why)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_asked() -> bool:
    """False: a world is forming. Raises the scheduler's error where it can't leave."""
    runtime = _runtime.installed()
    own = runtime.worker.standing
    # The job is to stay as large as it is.
    order = DrainOrder(MemberRole.WORKER, own.rank, replace=True, member=own.member)
    return order_drain(runtime.config, order).state is not DrainState.FORMING
