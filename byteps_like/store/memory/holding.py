"""Memory that operations read and write, for as long as they do: whoever began one may have forgotten it by then."""

from __future__ import annotations

import threading
from itertools import islice

from byteps_like.store.arrays import Array
from byteps_like.worker.keeping import KeepHandle

_LOOKS = 4
"""So many of the others are looked at whenever something is held: more than can be added meanwhile."""

Memory = Array | list[Array]


class Holding:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[KeepHandle, Memory] = {}

    def hold(self, handle: KeepHandle, memory: Memory) -> None:
        """`memory` stays until this is done. Lets go of what belongs to others that are done by now."""
        gone: list[Memory] = []  # without the lock: what goes with the memory is anybody's code
        with self._lock:
            self._held[handle] = memory
            for other in list(islice(self._held, _LOOKS)):
                self._look(other, gone)

    def _look(self, handle: KeepHandle, gone: list[Memory]) -> None:
        memory = self._held.pop(handle)
        if handle.done():
            gone.append(memory)
        else:
            self._held[handle] = memory  # behind all others

    def let_go(self, handle: KeepHandle) -> None:
        """It is done."""
        with self._lock:
            memory = self._held.pop(handle, None)
        del memory

    def __len__(self) -> int:
        """Operations whose memory is held."""
        return len(self._held)


held = Holding()
"""Of all stores of this process: what is in flight outlives its store."""
