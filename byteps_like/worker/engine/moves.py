"""Where declared tensors live now, and where they go next.

The scheduler tells all workers of a move whenever it likes; they hear of it at different times. From then on a worker
says with the tensor's pushes that it knows ("movable"), and the server says with the results of a round whether all
ranks did: the same answer to everybody, without a message more. If they did, the next round is made at the new place,
on all ranks alike. No sums are carried over: a round is made at one place, from its beginning to its end.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from byteps_like.control.types import Move
from byteps_like.worker.api import Declared


class FirstPush(Protocol):
    """One push of a tensor's first partition."""

    @property
    def moves(self) -> bool:
        """It is over, and all ranks knew where the tensor goes."""


@dataclass
class _Tensor:
    now: Declared
    follows: bool = False
    """Whoever pushes it has asked for its place since its last round began: it will ask again before the next."""
    newest: FirstPush | None = None


@dataclass
class Moves:
    """All tensors of one worker. Thread-safe as long as no two threads push one tensor at the same time."""

    _lock: threading.RLock = field(default_factory=threading.RLock)  # destructors ask, on any thread and at any time
    _tensors: dict[int, _Tensor] = field(default_factory=dict)
    _next: defaultdict[int, deque[Move]] = field(default_factory=lambda: defaultdict(deque))
    _first_id: dict[int, int] = field(default_factory=dict)
    """The id under which a tensor was first declared, by its later ones."""
    _quiet: bool = True
    """No move has been told of yet: in most jobs there is none, and rounds cost nothing here."""

    def hear(self, moves: Iterable[Move]) -> None:
        """The scheduler has told of these; of tensors that aren't declared here yet, too."""
        with self._lock:
            self._quiet = False
            for move in moves:
                if move.new_id in self._first_id:
                    continue  # another scheduler tells of it again
                self._next[move.tensor_id].append(move)
                self._first_id[move.new_id] = move.tensor_id

    def settle(self, declared: Declared, follows: bool) -> tuple[Declared, Declared | None]:
        """Between two rounds of `declared`: where the next one goes; and what it has left, if it moves now."""
        if self._quiet:
            return declared, None
        with self._lock:
            first = self._first(declared)
            tensor = self._tensors.setdefault(first, _Tensor(declared))
            tensor.follows = tensor.follows or follows
            before = tensor.now
            if tensor.newest is None or not tensor.newest.moves:
                return before, None
            move = self._next[first].popleft()
            tensor.now, tensor.newest = Declared(before.spec, move.new_id, move.partitions), None
            return tensor.now, before

    def end(self, declared: Declared) -> Declared:
        """The tensor's name is not used any more; where it is at the end."""
        with self._lock:
            first = self._first(declared)
            tensor = self._tensors.pop(first, None)
            self._next.pop(first, None)
            now = declared if tensor is None else tensor.now
            for place in [place for place, origin in self._first_id.items() if origin == first]:
                del self._first_id[place]
            return now

    def has_moved(self, declared: Declared) -> bool:
        """Whether the tensor isn't any more where `declared` says."""
        with self._lock:
            tensor = self._tensors.get(self._first(declared))
            return tensor is not None and tensor.now.tensor_id != declared.tensor_id

    def _first(self, declared: Declared) -> int:
        return self._first_id.get(declared.tensor_id, declared.tensor_id)

    def begin(self, declared: Declared) -> bool:
        """A round of the first partition begins: whether to say that this rank knows where the tensor goes."""
        if self._quiet:
            return False
        with self._lock:
            first = self._first(declared)
            tensor = self._tensors.setdefault(first, _Tensor(declared))
            movable, tensor.follows = tensor.follows and bool(self._next[first]), False
            return movable

    def began(self, declared: Declared, operation: FirstPush) -> None:
        """It is under way."""
        if self._quiet:
            return
        with self._lock:
            self._tensors[self._first(declared)].newest = operation
