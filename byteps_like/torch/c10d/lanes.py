"""The lanes of one process group: the program's, that of the callbacks of its futures, that of theirs, and so on.

The n-th call of a lane on one rank meets the n-th on the others. Callbacks run beside the program, in the same order on
all ranks but not at the same time, so their calls are counted by themselves. A lane costs no message.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import NoReturn

from byteps_like.collectives.api import Group
from byteps_like.errors import BytePSLikeError, ShutdownError
from byteps_like.torch.c10d.futures import callback_depth
from byteps_like.torch.job.rendezvous import C10dWorld


class Lanes:
    """Lanes by the depth of the threads that use them. Thread-safe."""

    def __init__(self, world: C10dWorld, name: str, ranks: Sequence[int]) -> None:
        self._world, self._name, self._ranks = world, name, ranks
        self._lock = threading.Lock()
        self._by_depth: dict[int, Group] = {0: world.group(name, ranks)}
        self.ended = False

    @property
    def first(self) -> Group:
        """The program's: also for sends and receives, which meet wherever they are called."""
        return self._by_depth[0]

    @property
    def current(self) -> Group:
        """That of this thread."""
        depth = callback_depth()
        return self._by_depth.get(depth) or self._made(depth)

    def _made(self, depth: int) -> Group:
        with self._lock:
            if self.ended:
                return self.first
            if depth not in self._by_depth:
                self._by_depth[depth] = self._world.group(f"{self._name}/callbacks/{depth}", self._ranks)
            return self._by_depth[depth]

    def end(self, why: str) -> bool:
        """Calls from here on raise ShutdownError, with `why`; what the lanes hold stays. Whether they had not ended."""
        with self._lock:
            if self.ended:
                return False
            self.ended = True
            self._by_depth = {depth: _Ended(lane, why) for depth, lane in self._by_depth.items()}
            return True

    def cancel(self, error: BytePSLikeError) -> None:
        """What is in flight raises `error`, on all ranks."""
        for lane in list(self._by_depth.values()):
            self._world.cancel(lane.name, error)

    def release(self) -> None:
        """Gives back what they hold. Their calls are counted on: torch may give the name to a group made later."""
        for lane in self._by_depth.values():
            self._world.release(lane.name)


class _Ended:
    """Stands where a lane was: every call raises."""

    def __init__(self, group: Group, why: str) -> None:
        self.rank, self.size, self.ranks, self.name = group.rank, group.size, group.ranks, group.name
        self.hosts = group.hosts
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        raise ShutdownError(f"{name}: {self._why}", operation=name)
