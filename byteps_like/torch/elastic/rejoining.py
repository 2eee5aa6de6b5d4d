"""Leaving a world and joining the next one, of the same job."""

from __future__ import annotations

from collections.abc import Callable

from byteps_like.control.calls.returning import returning
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.membership import init, suspend


def rejoin(meanwhile: Callable[[], None]) -> None:
    """Leaves, calls `meanwhile`, and joins again with the same settings. Blocks until the next world has formed.

    Until then `rank()` and `size()` return what they were. Raises what `init()` raises.
    """
    config = _runtime.current().config
    with returning():
        suspend()
    meanwhile()
    init(config=config)
