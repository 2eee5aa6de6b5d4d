"""Coming into a job that runs: after its state, if that can be, or before."""

from __future__ import annotations

import logging

from byteps_like.torch.elastic.catching_up.newcomer import CatchingUp, follow
from byteps_like.torch.elastic.rejoining import enter
from byteps_like.torch.elastic.state import State
from byteps_like.torch.job import runtime as _runtime

logger = logging.getLogger(__name__)


def come_in(state: State) -> None:
    """Joins a job that this process has only come to (job.runtime.Pending); else does nothing. Blocks.

    Where the workers' models and optimizers can be followed, it does so first. They wait for it as long as it takes to
    form a world, not for the state.
    """
    pending = _runtime.pending()
    if pending is None:
        return
    following = follow(pending.config, state)
    if following is None:
        enter()
    else:
        _enter_behind(following)
    expected, now = pending.standing, _runtime.standing()
    if (now.rank, now.size) != (expected.rank, expected.size):
        state.on_reset()


def _enter_behind(following: CatchingUp) -> None:
    try:
        following.wait_until_near()
        enter()
        if following.wait_until_level():
            logger.info("rank %d has caught up: %d steps", _runtime.rank(), following.made - 1)
        else:
            logger.warning(
                "rank %d has not caught up: %s", _runtime.rank(), following.error or "the last steps are late"
            )
    finally:
        following.close()
