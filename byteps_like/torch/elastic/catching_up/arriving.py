"""Coming into a job that runs: after its state, if that can be, or before."""

from __future__ import annotations

import logging

from byteps_like.torch.elastic.catching_up.pursuit import Pursuit
from byteps_like.torch.elastic.state import State
from byteps_like.torch.job import runtime as _runtime

logger = logging.getLogger(__name__)


def come_in(state: State) -> None:
    """Joins a job that this process has only come to (job.runtime.Pending); else does nothing. Blocks.

    Where the workers' models and optimizers can be followed, it does so first. They wait for it as long as it takes to
    form a world, not for the state. A spare, for which there is no room yet, follows them until there is.
    """
    pending = _runtime.pending()
    if pending is None:
        return
    pursuit = Pursuit(pending.config, state)
    try:
        pursuit.wait_until_near()
        made = pursuit.wait_until_level(_runtime.current().steps.world)
    finally:
        pursuit.close()
    if made:
        logger.info("rank %d has caught up: %d steps", _runtime.rank(), made - 1)
    elif pursuit.has_made:
        state.restore()  # or it would be of different steps, if nobody else is left to take it from
    expected, now = pending.standing, _runtime.standing()
    if (now.rank, now.size) != (expected.rank, expected.size):
        state.on_reset()
