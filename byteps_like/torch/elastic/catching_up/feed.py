"""What this rank sends one newcomer: a thread that takes records from a queue, and gives way to gradients."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from byteps_like.collectives.api import Group
from byteps_like.errors import CapacityError, ShutdownError
from byteps_like.torch.elastic.catching_up.messages import (
    CHUNK_BYTES,
    RecordHead,
    as_bytes,
    behind_packed,
    chunks,
    sent,
)
from byteps_like.torch.elastic.catching_up.stripes import Bytes, Stripe
from byteps_like.torch.job.sealed import Seal
from byteps_like.torch.job.trees import flatten

logger = logging.getLogger(__name__)

_LEAST_RATE = 8e6
"""Bytes per second that are sent beside gradients, however long these fill the links."""
_LOOK_SECONDS = 0.0005
_PULSE_SECONDS = 0.25
"""Between two signs of life, while no step is made: shorter than anybody waits in silence."""
_LEAST_ROOM = 64 << 20
"""Bytes of steps that may wait, at least; else as many as the state has."""
_FEW = 4
"""Records that are waited for where a worker leaves: who is about to join lacks no more."""
_RECORD_BYTES = 2048
"""What a record costs besides what is in it, about: models may be tiny."""


@dataclass(frozen=True)
class HeldRecord:
    """This rank's part of a record, in host memory, where nobody changes it."""

    text: bytes
    stripe: Bytes

    @classmethod
    def of(cls, tree: Any, rank: int, feeders: int) -> HeldRecord:
        """From a tree whose tensors may change afterwards. Blocks until they are copied: 1/`feeders` of their bytes."""
        text, tensors = flatten(tree)
        own = Stripe(tensors, rank, feeders)
        return cls(text, own.read(0, own.nbytes))

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return len(self.text) + self.stripe.nbytes + _RECORD_BYTES


@dataclass(frozen=True)
class WorldBegun:
    """Between two records."""

    number: int


class Feed:
    """To the last rank of `group`, whose other ranks send the other stripes. `leave` blocks, `close` for a goodbye."""

    def __init__(
        self, communicator: Any, group: Group, is_busy: Callable[[], bool], name: str, seal: Callable[[int], Seal]
    ) -> None:
        """`communicator` is closed with it. `is_busy`: whether gradients are on their way. `seal`: of each record."""
        self._seal = seal
        self._communicator, self._group, self._is_busy = communicator, group, is_busy
        self.place = group.rank, group.size - 1
        """Which of the senders this is, and how many there are."""
        self.name = name
        self.error: Exception | None = None
        """Why nothing is sent any more."""
        self._queue: deque[HeldRecord | WorldBegun] = deque()
        self._waiting_bytes, self._room = 0, _LEAST_ROOM
        self._ends = self._has_state = self._is_given_up = self._may_have_joined = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="byteps_like-feed", daemon=True)
        self._thread.start()

    def begin(self, state: HeldRecord) -> None:
        """With what a commit has kept."""
        self._room = max(state.nbytes, _LEAST_ROOM)
        self._put(state, 0)

    def put(self, step: HeldRecord) -> None:
        """The next step. Does nothing where it has ended."""
        if self._waiting_bytes > self._room:
            self.give_up(CapacityError("it takes in steps more slowly than they are made", operation="catch up"))
        self._put(step, step.nbytes)

    def begin_world(self, number: int) -> None:
        """The workers are in that world from the next step on. If the newcomer is, too, it needs no more."""
        self._put(WorldBegun(number), 0)

    def leave(self, deadline: float) -> None:
        """This worker makes no more steps: who is about to join gets those that wait. Blocks until all are sent, or for
        as long as that takes at most (of time.monotonic)."""
        with self._changed:
            self._ends, is_near = True, self._has_state and len(self._queue) <= _FEW
            self._changed.notify_all()
        if is_near:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
        self.close()

    def give_up(self, error: Exception) -> None:
        """The newcomer joins without it, and doesn't ask again. Idempotent."""
        self._is_given_up = True
        self._note(error)

    def _note(self, error: Exception) -> None:
        if self._fail(error):
            level = logging.DEBUG if self._may_have_joined else logging.WARNING
            logger.log(level, "%s does not catch up: %s", self.name, error)

    def close(self) -> None:
        """Ends it, whatever waits. Idempotent."""
        self._fail(ShutdownError("it is fed no more", operation="catch up"))
        self._communicator.close()

    def _fail(self, error: Exception) -> bool:
        """Whether it was well until then."""
        with self._changed:
            was_well, self.error = self.error is None, self.error or error
            self._queue.clear()
            self._changed.notify_all()
        return was_well

    def _put(self, item: HeldRecord | WorldBegun, nbytes: int) -> None:
        with self._changed:
            if self.error is None and not self._ends:
                self._queue.append(item)
                self._waiting_bytes += nbytes
                self._changed.notify_all()

    def _run(self) -> None:
        try:
            number = 0
            while (item := self._next()) is not None:
                if isinstance(item, WorldBegun):
                    self._send_world(number, item)
                else:
                    self._send_record(number, item)
                    number += 1
            if self.error is None or self._is_given_up:
                self._send(RecordHead(RecordHead.GIVEN_UP if self._is_given_up else RecordHead.END, number, 0).packed())
        except Exception as error:  # noqa: BLE001 - of tensors, too: the newcomer joins without
            self._note(error)
        if self.error is not None:
            self._communicator.close()

    def _next(self) -> HeldRecord | WorldBegun | None:
        """Stays in the queue until it is sent, so that it counts; None: there will be none. Gives signs of life while
        none comes, such as in an evaluation."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._queue or self._ends or self.error is not None, _PULSE_SECONDS):
                    return self._queue[0] if self._queue else None
            self._send(RecordHead(RecordHead.PULSE, 0, 0).packed())

    def _send_world(self, number: int, item: WorldBegun) -> None:
        self._send(RecordHead(RecordHead.WORLD, number, item.number).packed())
        self._may_have_joined = True
        self._pop(item, 0)

    def _send_record(self, number: int, item: HeldRecord) -> None:
        text = self._seal(number).close(self._group.rank, item.text)
        self._send(RecordHead(number, len(text), item.stripe.nbytes).packed())
        self._send(as_bytes(text))
        for offset, nbytes in chunks(item.stripe.nbytes):
            self._give_way()
            self._send(item.stripe[offset : offset + nbytes])
        self._pop(item, item.nbytes if number else 0)
        self._has_state = True
        self._send(behind_packed(len(self._queue)))

    def _pop(self, item: HeldRecord | WorldBegun, nbytes: int) -> None:
        with self._changed:
            if self._queue and self._queue[0] is item:
                self._queue.popleft()
                self._waiting_bytes -= nbytes

    def _send(self, data: Bytes) -> None:
        sent(self._group, data, self._group.size - 1).wait()

    def _give_way(self) -> None:
        """To gradients, for as long as a chunk may take at least."""
        end = time.monotonic() + CHUNK_BYTES / _LEAST_RATE
        while self._is_busy() and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
