"""Leaving a world and joining the next one, of the same job."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

from byteps_like.control.calls.returning import returning
from byteps_like.torch.elastic.reporting import newest_steps, remember
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.membership import init, suspend

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
        init(config=config)
        remember(steps)
    _collect_soon()


def _collect_soon() -> None:
    """Worlds before are in cycles, with threads, sockets, and buffers as large as the model. Who still holds the last
    one, such as an optimizer, has turned to the new one by then. It takes a tenth of a second: nobody waits for it."""
    timer = threading.Timer(_COLLECT_SECONDS, gc.collect)
    timer.name = "byteps_like-collect"
    timer.daemon = True
    timer.start()
