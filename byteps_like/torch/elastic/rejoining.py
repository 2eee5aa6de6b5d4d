"""Leaving a world and joining the next one, of the same job."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable

from byteps_like.control.calls.returning import returning
from byteps_like.errors import PeerLostError
from byteps_like.torch.elastic.reporting import newest_steps, remember
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.membership import init, suspend

logger = logging.getLogger(__name__)

_ATTEMPTS = 8
"""Worlds in a row that may end before this process is in them."""
_COLLECT_SECONDS = 1.0
"""After the next world has begun."""


def rejoin(meanwhile: Callable[[], None]) -> None:
    """Leaves, calls `meanwhile`, and joins again with the same settings. Blocks until the next world has formed.

    Until then `rank()` and `size()` return what they were. Members that are lost while the world forms, or while its
    members connect to each other, are done without as well. Raises what else `init()` raises.
    """
    config, steps = _runtime.current().config, newest_steps()
    with returning():
        suspend()
        meanwhile()
        _enter(lambda: init(config=config))
        remember(steps)
    _collect_soon()


def _collect_soon() -> None:
    """Worlds before are in cycles, with threads, sockets, and buffers as large as the model. Who still holds the last
    one, such as an optimizer, has turned to the new one by then. It takes a tenth of a second: nobody waits for it."""
    timer = threading.Timer(_COLLECT_SECONDS, gc.collect)
    timer.name = "byteps_like-collect"
    timer.daemon = True
    timer.start()


def enter() -> None:
    """Joins a job that this process has only come to (job.runtime.Pending). Else as `rejoin`."""
    with returning():
        _enter(_runtime.current)


def _enter(join: Callable[[], object]) -> None:
    for attempt in range(_ATTEMPTS):
        try:
            join()
            return
        except PeerLostError as error:
            if error.peer == "scheduler" or attempt == _ATTEMPTS - 1:
                raise
            logger.warning("the next world ended before it began: %s; joining another one", error)
