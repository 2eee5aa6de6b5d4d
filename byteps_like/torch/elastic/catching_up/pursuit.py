"""A newcomer follows the workers of one world after another, until it is in one of them."""

from __future__ import annotations

import logging
import threading
import time

from byteps_like.config import Config
from byteps_like.control.calls.client import query_status
from byteps_like.errors import BytePSLikeError, CapacityError, PeerLostError, RefusedError, StalledError
from byteps_like.torch.elastic.catching_up.newcomer import CatchingUp, can_follow, find
from byteps_like.torch.elastic.state import State

logger = logging.getLogger(__name__)

_ASKS = 5
"""Times that it asks for the state before it joins without; it goes on to ask while it waits for its place."""
_LOOK_SECONDS = 0.1
_REST_SECONDS = 1.0
"""Before it asks again where one of those that it follows is lost."""
_PAUSE_SECONDS = 10.0
"""The same where nobody could be followed, or were too fast."""
_LONGEST_SECONDS = 3600.0
"""For a commit, once it waits for its place anyway."""


class Pursuit:
    """Finds, on a thread, who can be followed, and follows. `close` before the model is used otherwise."""

    def __init__(self, config: Config, state: State) -> None:
        self._config, self._state = config, state
        self._following: CatchingUp | None = None
        """Whose steps it makes."""
        self._coming: CatchingUp | None = None
        """Whose state is on its way."""
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._near = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteps_like-pursuit", daemon=True)
        self._thread.start()

    def wait_until_near(self) -> None:
        """Blocks until it lacks a step at most, or has to join without."""
        self._near.wait()

    def wait_until_level(self, world: int) -> int:
        """How many records it has made, once these are all from before the world that it is in; 0: it lacks some."""
        following = self._end()
        if following is None:
            return 0
        if following.wait_until_level(world):
            return following.made
        logger.warning("what the others have made is not here: %s", following.error or "the last steps are late")
        return 0

    @property
    def has_made(self) -> bool:
        """Whether the state isn't as it was any more."""
        return self._following is not None

    def close(self) -> None:
        """It follows nobody any more. Idempotent. Raises StalledError if a step that is being made does not end."""
        following = self._end()
        if following is not None:
            following.close()

    def _end(self) -> CatchingUp | None:
        """It looks for nobody else; whom it follows."""
        self._over.set()
        with self._lock:
            coming, self._coming = self._coming, None
        if coming is not None:
            coming.close()
        return self._following

    def _run(self) -> None:
        asked = 0
        try:
            while not self._over.is_set() and can_follow(self._state):
                following = self._find()
                if following is None:
                    self._near.set()
                    self._over.wait(_PAUSE_SECONDS)
                elif not self._follow(following):
                    return
                asked += 1
                if asked >= _ASKS:
                    self._near.set()
        finally:
            self._near.set()

    def _follow(self, following: CatchingUp) -> bool:
        """Until one of those workers is lost; whether it makes sense to ask others then. Whom it has followed before
        it follows until the state of these has come."""
        if not self._begin(following):
            return False
        if following.wait_until_state() and self._turn_to(following):
            following.wait_until_near()
            if following.error is None:
                self._near.set()
            following.wait_until_weak()
        if following.error is None:
            self._over.wait(_REST_SECONDS)  # its turn may come in place of the one that is lost
            return True
        following.close()
        if self._over.is_set():
            return False
        logger.info("this process has followed the workers for %d steps: %s", following.made, following.error)
        if isinstance(following.error, CapacityError):
            self._near.set()
            self._over.wait(_PAUSE_SECONDS)
        return isinstance(following.error, PeerLostError | CapacityError)

    def _begin(self, following: CatchingUp) -> bool:
        with self._lock:
            if not self._over.is_set():
                self._coming = following
                following.begin()
                return True
        following.close()
        return False

    def _turn_to(self, following: CatchingUp) -> bool:
        """Makes their steps from now on. False: it has its place, or a step that it makes does not end."""
        with self._lock:
            try:
                if not self._over.is_set() and self._following is not None:
                    self._following.close()
            except StalledError as error:
                logger.warning("it follows nobody else: %s", error)
                self._over.set()
            if self._over.is_set():
                following.close()
                return False
            self._following, self._coming = following, None
            following.make()
            return True

    def _find(self) -> CatchingUp | None:
        """Who can be followed, as soon as a world runs; None: nobody can now."""
        # Whoever has waited for one commit in vain may do so for the next: workers meet each that asks.
        patience = _LONGEST_SECONDS if self._near.is_set() else self._config.failure_timeout
        while not self._over.is_set() and (world := _world(self._config)):
            try:
                return find(self._config, self._state, patience)
            except RefusedError as error:
                logger.info("the workers don't send their state: %s", error)
                if self._over.wait(_LOOK_SECONDS) or _world(self._config) == world:
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
