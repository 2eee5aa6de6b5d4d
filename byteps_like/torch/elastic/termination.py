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
from byteps_like.errors import BytePSLikeError, NotInitializedError
from byteps_like.torch.job import runtime as _runtime

logger = logging.getLogger(__name__)

_ASK_SECONDS = 0.1
_PATIENCE = 20.0
"""For which it may be between two worlds."""


@contextmanager
def leaves_when_terminated() -> Iterator[None]:
    """Within, SIGTERM has this worker leave at its next commit. A handler that the script has set stays, and outside of
    the main thread none can be set."""
    own = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not own:
        yield
        return
    signal.signal(signal.SIGTERM, _on_termination)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_termination(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave, name="byteps_like-leave", daemon=True).start()  # a handler must not wait


def _leave() -> None:
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            if _is_asked():
                return
            why = "no world has formed that it could leave"
        except NotInitializedError:
            why = "it is between two worlds"
        except BytePSLikeError as error:
            why, end = str(error), 0.0
        if time.monotonic() > end:
            break
        time.sleep(_ASK_SECONDS)
    logger.warning("SIGTERM ends this worker at once, since it can't leave in order: %s", why)
    os.kill(os.getpid(), signal.SIGTERM)


def _is_asked() -> bool:
    """False: a world is forming. Raises the scheduler's error where it can't leave."""
    runtime = _runtime.current()
    progress = order_drain(runtime.config, DrainOrder(MemberRole.WORKER, runtime.worker.rank))
    return progress.state is not DrainState.FORMING
