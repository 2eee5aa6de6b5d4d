"""Work in portions, which ranks take one by one as they get on; each counts once, whoever has done it first.

Dean et al., "Large scale distributed deep networks", NIPS 2012, section 4.2: slow machines get fewer portions, and the
last ones are given to two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.future import Future

Push = Callable[..., Future]

_PASS, _NEXT, _FINISHED, _FIRST = range(4)
"""Places on a board: the pass that it is about, the first portion that nobody has, how many are finished, portions. A
portion: rank + 1 of who has had it last, then from bit 32 on how often it was given, and bit 40: it counts."""
_RANKS = (1 << 32) - 1
_TWICE = 2 << 32
BOARD = "board"


class BoardKeeper(Protocol):
    """A store that keeps a board, an int64 tensor."""

    def pull(self, name: str, out: Any, *, version: int | None = None) -> Future:
        """See Store."""

    def call(self, function: str, names: str, *, after: Sequence[Future] = (), **scalars: float) -> Mapping[str, float]:
        """See Store."""


def board_of(count: int) -> NDArray[np.int64]:
    """An empty one, for so many portions. Raises InvalidArgumentError for none."""
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count < 1 << 20:
        raise InvalidArgumentError(f"portions({count!r}): work has from 1 to {(1 << 20) - 1} portions")
    return np.zeros(_FIRST + count, np.int64)


class Portion:
    """One that this rank does."""

    def __init__(self, number: int, board: BoardKeeper, of_pass: int, push: Push) -> None:
        self.number = number
        """From 0."""
        self._board, self._pass, self._push = board, of_pass, push
        self._counts: bool | None = None
        self._pushed: list[Future] = []

    @property
    def counts(self) -> bool:
        """Whether this rank is the first to ask, so that its result counts; nobody else's does then. Blocks."""
        if self._counts is None:
            told = self._board.call("portions.claim", BOARD, of_pass=self._pass, portion=self.number)
            self._counts = told["counts"] == 1
        return self._counts

    def push(self, name: str, value: Any, **push: Any) -> Future | None:
        """`Store.push`, if this portion's result `counts`; None: somebody else's does."""
        if not self.counts:
            return None
        self._pushed.append(self._push(name, value, **push))
        return self._pushed[-1]

    def finish(self) -> None:
        """What was pushed is there: the portion is done. Blocks."""
        if not self.counts:
            return
        for future in self._pushed:
            future.wait()
        self._board.call("portions.finish", BOARD, of_pass=self._pass, portion=self.number)


class Passes:
    """Of one store on one rank."""

    def __init__(self, board: BoardKeeper, count: int, rank: int, push: Push) -> None:
        self._board, self._rank, self._push = board, rank, push
        self._seen = board_of(count)
        self._version = 0
        self._pass = 0

    def run(self, duplicate: bool) -> Iterator[Portion]:
        """The portions that fall to this rank in the next pass; ends when all are done, whoever does them."""
        self._pass += 1
        if self._rank == 0:
            self._board.call("portions.begin", BOARD, of_pass=self._pass)
        self._look(self._version)
        while not self._is_over():
            portion = self._take(duplicate) if self._may_take(duplicate) else None
            if portion is None:
                self._look(self._version + 1)
                continue
            yield portion
            portion.finish()
            self._look(self._version)

    def _look(self, version: int) -> None:
        """At the board, of that version or a newer one. Blocks."""
        future = self._board.pull(BOARD, self._seen, version=version)
        future.wait()
        self._version = future.version

    def _is_over(self) -> bool:
        done = self._seen[_PASS] == self._pass and self._seen[_FINISHED] == len(self._seen) - _FIRST
        return bool(done or self._seen[_PASS] > self._pass)

    def _may_take(self, duplicate: bool) -> bool:
        """Whether there is something for this rank, as far as it has seen."""
        if self._seen[_PASS] != self._pass:
            return False
        given = self._seen[_FIRST:]
        again = (given < _TWICE) & ((given & _RANKS) != self._rank + 1)
        return bool(self._seen[_NEXT] < len(given) or (duplicate and again.any()))

    def _take(self, duplicate: bool) -> Portion | None:
        told = self._board.call("portions.take", BOARD, of_pass=self._pass, rank=self._rank, again=int(duplicate))
        number = int(told["portion"])
        return None if number < 0 else Portion(number, self._board, self._pass, self._push)
