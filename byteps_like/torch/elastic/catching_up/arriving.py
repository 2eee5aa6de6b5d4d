"""Coming into a job that runs: after its state, if that can be, or before."""

from __future__ import annotations

import logging
import time

from byteps_like.config import Config
from byteps_like.control.calls.client import query_status
from byteps_like.errors import BytePSLikeError, PeerLostError, RefusedError
from byteps_like.torch.elastic.catching_up.newcomer import CatchingUp, follow
from byteps_like.torch.elastic.rejoining import enter
from byteps_like.torch.elastic.state import State
from byteps_like.torch.job import runtime as _runtime

logger = logging.getLogger(__name__)

_ASKS = 5
"""Worlds of which it asks for the state before it joins without."""
_LOOK_SECONDS = 0.1


def come_in(state: State) -> None:
    """Joins a job that this process has only come to (job.runtime.Pending); else does nothing. Blocks.

    Where the workers' models and optimizers can be followed, it does so first. They wait for it as long as it takes to
    form a world, not for the state.
    """
    pending = _runtime.pending()
    if pending is None:
        return
    following = _followed(pending.config, state)
    if following is None:
        enter()
    else:
        _enter_behind(following)
    expected, now = pending.standing, _runtime.standing()
    if (now.rank, now.size) != (expected.rank, expected.size):
        state.on_reset()


def _followed(config: Config, state: State) -> CatchingUp | None:
    """Who lacks a step at most. If workers are lost meanwhile it asks those of the next world; None: it can't follow
    them, or too many worlds have ended."""
    for _ in range(_ASKS):
        world = _world(config)
        try:
            following = follow(config, state) if world else None
        except RefusedError as error:
            logger.info("the workers don't send their state: %s", error)
            if _world(config) == world:
                return None
            continue
        if following is None:
            return None
        following.wait_until_near()
        if following.error is None:
            return following
        following.close()
        logger.info("this process has followed the workers for %d steps: %s", following.made, following.error)
        if not isinstance(following.error, PeerLostError):
            return None
    return None


def _world(config: Config) -> int:
    """The number of the one that runs, as soon as one does; 0: none does within `failure_timeout`, and this process may
    be the one that is missing."""
    end = time.monotonic() + config.failure_timeout
    while time.monotonic() < end:
        try:
            status = query_status(config)
        except BytePSLikeError:
            return 0  # it will be told what is wrong when it joins
        if status.state == "running":
            return status.epoch
        if status.state == "ended":
            return 0
        time.sleep(_LOOK_SECONDS)
    return 0


def _enter_behind(following: CatchingUp) -> None:
    try:
        enter()
        if following.wait_until_level(_runtime.installed().steps.world):
            logger.info("rank %d has caught up: %d steps", _runtime.rank(), following.made - 1)
        else:
            logger.warning(
                "rank %d has not caught up: %s", _runtime.rank(), following.error or "the last steps are late"
            )
    finally:
        following.close()
