"""What this rank sends one newcomer: a thread that takes records from a queue, and gives way to gradients."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from byteps_like.collectives.api import CollectiveOperation, Group
from byteps_like.errors import CapacityError, CorruptError, ShutdownError
from byteps_like.torch.elastic.catching_up.messages import (
    BULK,
    CHUNK_BYTES,
    GOODBYE,
    MOST_OPEN,
    PULSE_SECONDS,
    RecordHead,
    Word,
    as_bytes,
    behind_packed,
    chunks,
    sent,
    stand_in,
)
from byteps_like.torch.elastic.catching_up.stripes import Bytes, Stripe
from byteps_like.torch.job.sealed import Seal
from byteps_like.torch.job.trees import flatten

logger = logging.getLogger(__name__)

_LEAST_RATE = 8e6
"""Bytes per second that are sent beside gradients, however long these fill the links."""
_LOOK_SECONDS = 0.0005
_LEAST_ROOM = 64 << 20
"""Bytes of steps that may wait, at least; else as many as the state has."""
_FEW = 4
"""Records that are waited for where a worker leaves: who is about to join lacks no more."""
_RECORD_BYTES = 2048
"""What a record costs besides what is in it, about: models may be tiny."""


@dataclass(frozen=True)
class HeldRecord:
    """This rank's part of a record, and in case it is lost, that of the sender before it: in host memory, where nobody
    changes them."""

    text: bytes
    stripes: Mapping[int, Bytes]

    @classmethod
    def of(cls, tree: Any, rank: int, feeders: int) -> HeldRecord:
        """From a tree whose tensors may change afterwards. Blocks until they are copied: 2/`feeders` of their bytes."""
        text, tensors = flatten(tree)
        parts = {index: Stripe(tensors, index, feeders) for index in (rank, (rank - 1) % feeders)}
        return cls(text, {index: part.read(0, part.nbytes) for index, part in parts.items()})

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return len(self.text) + sum(part.nbytes for part in self.stripes.values()) + _RECORD_BYTES


class Feed:
    """To the last rank of `group`, whose other ranks send the other stripes. `leave` blocks, `close` for a goodbye.

    Records stay until the newcomer has made them: if the sender before this one is lost, this one sends its stripes of
    them, and of all that follow, beside its own.
    """

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
        self._stripes = {group.rank: 0}
        """Which it sends, from which record on."""
        self._records: deque[HeldRecord] = deque()
        self._made = self._sent = 0
        """Records that the newcomer needs no more, and that it has got from here."""
        self._worlds: deque[tuple[int, int]] = deque()
        """Those of which it has yet to hear, and how many records there were when they began."""
        self._room = _LEAST_ROOM
        self._ends = self._is_given_up = self._may_have_joined = False
        self._changed = threading.Condition()
        self._word = np.empty(Word.BYTES, np.uint8)
        self._told = self._listen()
        self._thread = threading.Thread(target=self._run, name="byteps_like-feed", daemon=True)
        self._thread.start()

    def begin(self, state: HeldRecord) -> None:
        """With what a commit has kept."""
        self._room = max(state.nbytes, _LEAST_ROOM)
        self._put(state)

    def put(self, step: HeldRecord) -> None:
        """The next step. Does nothing where it has ended."""
        if self._waiting_bytes() > self._room:
            self.give_up(CapacityError("it takes in steps more slowly than they are made", operation="catch up"))
        self._put(step)

    def _put(self, record: HeldRecord) -> None:
        with self._changed:
            if self.error is None and not self._ends:
                self._records.append(record)
                self._changed.notify_all()

    def _waiting_bytes(self) -> int:
        """Of steps that haven't been sent yet."""
        with self._changed:
            first = max(self._sent, 1) - self._made
            return sum(record.nbytes for record in islice(self._records, max(first, 0), None))

    def begin_world(self, number: int) -> None:
        """The workers are in that world from the next step on. If the newcomer is, too, it needs no more."""
        with self._changed:
            self._worlds.append((number, self._made + len(self._records)))
            self._may_have_joined = True
            self._changed.notify_all()

    def leave(self, deadline: float) -> None:
        """This worker makes no more steps: who is about to join gets those that wait. Blocks until all are sent, or for
        as long as that takes at most (of time.monotonic)."""
        with self._changed:
            self._ends, is_near = True, self._sent > 0 and self._unsent <= _FEW
            self._changed.notify_all()
        if is_near:
            self._thread.join(max(deadline - time.monotonic(), 0.0))
        self.close()

    def give_up(self, error: Exception) -> None:
        """The newcomer gets no more. Idempotent."""
        self._is_given_up = True
        self._note(error)

    def _note(self, error: Exception) -> None:
        if self._fail(error):
            ends_in_order = self._may_have_joined or (self._sent > 0 and GOODBYE in str(error))
            level = logging.DEBUG if ends_in_order else logging.WARNING
            logger.log(level, "%s does not catch up: %s", self.name, error)

    def close(self) -> None:
        """Ends it, whatever waits. Idempotent."""
        self._fail(ShutdownError("it is fed no more", operation="catch up"))
        self._communicator.close()

    def _fail(self, error: Exception) -> bool:
        """Whether it was well until then."""
        with self._changed:
            was_well, self.error = self.error is None, self.error or error
            self._records.clear()
            self._changed.notify_all()
        return was_well

    @property
    def _unsent(self) -> int:
        return self._made + len(self._records) - self._sent

    def _run(self) -> None:
        try:
            while (due := self._next()) is not None:
                due()
            if self.error is None or self._is_given_up:
                self._send(RecordHead(self._last_word(), 0, 0).packed())
        except Exception as error:  # noqa: BLE001 - of tensors, too: the newcomer joins without
            self._note(error)
        if self.error is not None:
            self._communicator.close()

    def _last_word(self) -> int:
        if not self._is_given_up:
            return RecordHead.END
        return RecordHead.TOO_SLOW if isinstance(self.error, CapacityError) else RecordHead.GIVEN_UP

    def _next(self) -> Callable[[], None] | None:
        """What is to be done, as soon as something is; None: nothing will be. Gives signs of life while nothing is,
        such as in an evaluation."""
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_over or self._due() is not None, PULSE_SECONDS):
                    return self._due() if self.error is None else None
            self._send(RecordHead(RecordHead.PULSE, 0, 0).packed())

    @property
    def _is_over(self) -> bool:
        return self.error is not None or (self._ends and not self._unsent)

    def _due(self) -> Callable[[], None] | None:
        if self._told.done():
            return self._hear
        if self._worlds and self._worlds[0][1] <= self._sent:
            return self._send_world
        return self._send_record if self._unsent and self._sent < self._made + MOST_OPEN else None

    def _listen(self) -> CollectiveOperation:
        """For what the newcomer says next."""

        def came() -> None:
            with self._changed:
                self._changed.notify_all()

        coming = self._group.receive(self._word.ctypes.data, Word.BYTES, self._group.size - 1, options=BULK)
        coming.on_done(came)
        return coming

    def _hear(self) -> None:
        self._told.wait()
        word = Word.unpacked(self._word)
        self._told = self._listen()
        with self._changed:
            if not self._made <= word.made <= self._sent:
                raise CorruptError(f"a newcomer has sent {word}, which can't be", operation="catch up")
            for _ in range(min(word.made - self._made, len(self._records))):
                self._records.popleft()
            self._made = word.made
        if word.stripe >= 0:
            self._stand_in(word)

    def _stand_in(self, word: Word) -> None:
        """From now on, for the sender before this one."""
        rank, feeders = self.place
        if stand_in(word.stripe, feeders) != rank or word.stripe in self._stripes or word.first < self._made:
            raise CorruptError(f"a newcomer has sent {word}, which can't be", operation="catch up")
        logger.info("rank %d sends %s what rank %d can't send any more", rank, self.name, word.stripe)
        for number in range(word.first, self._sent):
            self._send_part(number, word.stripe)
        self._stripes[word.stripe] = word.first

    def _send_world(self) -> None:
        world, count = self._worlds.popleft()
        self._send(RecordHead(RecordHead.WORLD, count, world).packed())

    def _send_record(self) -> None:
        for stripe, first in self._stripes.items():
            if first <= self._sent:
                self._send_part(self._sent, stripe)
        with self._changed:
            self._sent += 1

    def _send_part(self, number: int, stripe: int) -> None:
        with self._changed:
            if self.error is not None:
                return
            record = self._records[number - self._made]
        part = record.stripes[stripe]
        text = self._seal(number).close(self._group.rank, record.text)
        self._send(RecordHead(number, len(text), part.nbytes, stripe).packed())
        self._send(as_bytes(text))
        for offset, nbytes in chunks(part.nbytes):
            self._give_way()
            self._send(part[offset : offset + nbytes])
        self._send(behind_packed(max(self._made + len(self._records) - number - 1, 0)))

    def _send(self, data: Bytes) -> None:
        sent(self._group, data, self._group.size - 1).wait()

    def _give_way(self) -> None:
        """To gradients, for as long as a chunk may take at least."""
        end = time.monotonic() + CHUNK_BYTES / _LEAST_RATE
        while self._is_busy() and time.monotonic() < end:
            time.sleep(_LOOK_SECONDS)
