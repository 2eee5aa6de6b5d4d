"""Horovod's join(): a rank that has run out of batches adds zeros to what the others still reduce.

Nothing is asked before a reduction. A rank that joins tells all others; from then on each of them tells it which
reductions it starts, and at once which it has in flight. The joined rank takes part in each exactly once, from when all
have answered: so whoever sees a reduction that it had no part in knows that it has joined, on all ranks alike.

What a joined rank can't take part in is refused to its caller: at once by a rank that knows, else when the joined rank
answers that it has missed what was in flight, which is then given up. Of what the callers disagree on the joined rank
is told by them, and gives it up, too.

What a rank had its part in is behind it when it is told of that: by how often it has used the name; or, as ranks let go
of names that were used once each when its own part is over, by where these meet (naming.py), which all ranks know.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import logging
import queue
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Traffic
from byteps_like.collectives.together import Waitable
from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError, InvalidArgumentError
from byteps_like.torch.device.flight import without_memory
from byteps_like.torch.job.naming import Claim, NameTable
from byteps_like.torch.job.routes import Request, Route, Scope
from byteps_like.torch.job.shadows import Message, Shadows, Uses, is_for_joined, meeting_of
from byteps_like.worker.api import Declared, Handle, TensorSpec

logger = logging.getLogger(__name__)

MESSAGE_BYTES = 2048
_MISSED = -1
"""In place of a route's number: operations in which joined ranks take no part."""
_EVER = CallOptions(timeout=3e8, traffic=Traffic.CONTROL)


@dataclass(slots=True)
class _Flight:
    name: str
    notice: Callable[[], Message]
    """What those who have joined are told of it."""
    handle: Waitable
    ranks: tuple[int, ...] | None = None
    """Of whom the joined are told; None: of all."""


def _notice(number: int, spec: TensorSpec, op: Op, root: int, parts: range, rank: int, use: Message) -> Message:
    return {
        "route": number, "name": spec.name, "dtype": int(spec.dtype), "shape": spec.shape, "codec": spec.codec,
        "says_all": spec.says_all, "op": int(op), "root": root, "parts": [parts.start, parts.stop], "from": rank, **use,
    }  # fmt: skip


class Joiner:
    """Who has joined, and what is in flight over all ranks: `group` is of them all.

    `on_order(label, order)` is told of an arena's new order that was agreed on while this rank had joined;
    `has_removed(number)` says whether there was a process set of that number here.
    """

    def __init__(
        self,
        group: Group,
        names: NameTable,
        on_order: Callable[[str, list[int]], None],
        has_removed: Callable[[int], bool],
    ) -> None:
        self._group, self._names = group, names
        self._on_order, self._has_removed = on_order, has_removed
        self._routes: list[Route] = []
        self._lock = threading.Lock()
        self._uses: Uses = defaultdict(Counter)
        self._flights: deque[_Flight] = deque()
        self._generation = 0
        self._given_up: set[str] = set()
        """Of this generation: names of what the ranks disagree on."""
        self._joined: dict[int, list[int]] = {}
        self._inbox: queue.SimpleQueue[Message | BytePSLikeError] = queue.SimpleQueue()
        self._sent: list[tuple[CollectiveOperation, object]] = []
        self._listen()

    @property
    def generation(self) -> int:
        """How often all ranks have joined."""
        return self._generation

    def observe(self, route: Route) -> None:
        """From here on joined ranks take part in what goes over `route`."""
        self._routes.append(route)
        route.observer = self

    # What the world's reductions pass through

    def push_pull(self, route: Route, declared: Declared, address: int, op: Op, how: Request) -> Handle:
        """Starts it, and tells those who have joined."""
        if how.parts is None:
            declared = route.worker.placed(declared)
        number, name = self._routes.index(route), declared.spec.name
        if op is Op.BROADCAST and not is_for_joined(name):
            self.check("broadcast")
        parts = how.parts if how.parts is not None else range(max(len(declared.partitions), 1))
        with self._lock:
            use = self._use(how.claim, name, number, parts)
            handle = route.launch(declared, address, op, how)
            notice = partial(_notice, number, declared.spec, op, how.root, parts, self._group.rank, use)
            self._remember(_Flight(name, notice, without_memory(handle)))
        return handle

    def check(self, what: str, ranks: tuple[int, ...] | None = None) -> None:
        """Raises InvalidArgumentError if one of `ranks` (default: all) has joined: it would not take part in `what`."""
        gone = [rank for rank in self._joined.get(self._generation, ()) if ranks is None or rank in ranks]
        if gone:
            raise _joined(what, gone[0])

    def _use(self, claim: Claim | None, name: str, number: int, parts: range) -> Message:
        """Which use of the name this is, for those who have joined; it is counted. With the lock held."""
        if claim is not None and claim.once:
            return meeting_of(claim)
        uses = self._uses[name]
        use = uses[number, parts.start]
        for part in parts:
            uses[number, part] += 1
        return {"use": use} if claim is None else {"use": use, **meeting_of(claim)}

    def watch(self, what: Claim | str, handle: Waitable, scope: Scope) -> None:
        """An operation in which joined ranks can't take part has been started, by its claim or its name."""
        claim, name = (None, what) if isinstance(what, str) else (what, what.name)
        with self._lock:
            notice = {"missed": name, "set": scope.number, "from": self._group.rank}
            notice |= self._use(claim, name, _MISSED, range(1))
            self._remember(_Flight(name, lambda: notice, handle, scope.ranks))

    def _remember(self, flight: _Flight) -> None:
        # Those that are done hold memory of their tensors; they end in this order, nearly.
        while self._flights and self._flights[0].handle.done():
            self._flights.popleft()
        self._flights.append(flight)
        for rank in self._others_joined():
            self._tell_of(flight, rank)

    def _tell_of(self, flight: _Flight, rank: int) -> None:
        if flight.ranks is None or rank in flight.ranks:
            self._tell(rank, flight.notice())

    def give_up(self, names: Sequence[str]) -> None:
        """The ranks disagree on what is in flight under `names`: those who have joined hear of it."""
        with self._lock:
            self._given_up.update(names)
            for rank in self._others_joined():
                for name in names:
                    self._tell(rank, {"given_up": name})

    def forget(self, name: str) -> None:
        """No rank will use that name any more."""
        with self._lock:
            self._uses.pop(name, None)

    def forget_set(self, prefix: str) -> None:
        """This rank has removed the process set whose operations' names begin so."""
        with self._lock:
            for name in [name for name in self._uses if name.startswith(prefix)]:
                if all(number == _MISSED for number, _ in self._uses[name]):
                    del self._uses[name]

    # Joining

    def join(self) -> int:
        """See `join` below."""
        for flight in list(self._flights):
            with suppress(BytePSLikeError):  # its caller's to hear of
                flight.handle.wait()
        own = self._group.rank
        with self._lock:
            self._flights.clear()
            for rank in range(self._group.size):
                if rank != own:
                    self._tell(rank, {"joined": own, "generation": self._generation})
            self._note_joined(own, self._generation)
        try:
            return self._serve()
        finally:
            with self._lock:
                self._joined.pop(self._generation, None)
                self._given_up.clear()
                self._generation += 1

    def _serve(self) -> int:
        """Takes part in what the others do until all have joined; the last of them."""
        shadows, last = Shadows(self._routes, self._uses, self._names), -1
        later: Iterator[Message | BytePSLikeError] = iter(self._inbox.get, None)
        messages = itertools.chain(self._until_known(), later)
        while last < 0 or len(self._joined.get(self._generation, ())) < self._group.size:
            message = next(messages)
            if isinstance(message, BytePSLikeError):
                raise message
            if "given_up" in message:
                shadows.give_up(message["given_up"])
            if "missed" in message and not self._is_behind(message):
                self._refuse(message["missed"], message["from"])
            if "route" in message and not shadows.start(message):
                self._refuse(message["name"], message["from"])
            last = message.get("last", last)
        for label, order in shadows.finish():
            self._on_order(label, order)
        for name in shadows.let_go():
            self.forget(name)
        return last

    def _is_behind(self, message: Message) -> bool:
        """Whether this rank had its part in what `message` says that it misses."""
        if self._has_removed(message["set"]):
            return True  # when all that it made there was over
        if "once" in message:
            return self._names.have_begun([tuple(message["once"])])[0]
        return message["missed"] in self._uses and self._uses[message["missed"]][_MISSED, 0] > message["use"]

    def _until_known(self) -> list[Message | BytePSLikeError]:
        """Waits until all others know that this rank has joined; what came meanwhile."""
        came: list[Message | BytePSLikeError] = []
        unaware = self._group.size - 1
        while unaware and not (came and isinstance(came[-1], BytePSLikeError)):
            message = self._inbox.get()
            if isinstance(message, dict) and "heard" in message:
                unaware -= 1
            else:
                came.append(message)
        return came

    def _refuse(self, name: str, rank: int) -> None:
        """Tells `rank` that this one takes no part in what it has in flight under `name`."""
        with self._lock:
            self._tell(rank, {"refused": name, "by": self._group.rank})

    def _refused(self, name: str, rank: int) -> None:
        """What is in flight under `name` fails here at once, instead of at its deadline."""
        error = _joined(self._names.called(name), rank)
        self._names.abandon(name, error)
        with self._lock:
            flights = list(self._flights)
        for flight in flights:
            if flight.name == name and not flight.handle.done():
                flight.handle.give_up(error)

    # Messages

    def _others_joined(self) -> list[int]:
        return [rank for rank in self._joined.get(self._generation, ()) if rank != self._group.rank]

    def _note_joined(self, rank: int, generation: int) -> None:
        """With the lock held."""
        order = self._joined.setdefault(generation, [])
        order.append(rank)
        self._inbox.put({})
        if self._group.rank == 0 and len(order) == self._group.size:
            for other in range(1, self._group.size):
                self._tell(other, {"last": rank})
            self._inbox.put({"last": rank})

    def _tell(self, rank: int, message: Message) -> None:
        """With the lock held, so that messages to one rank are in the order of what they speak of."""
        text = json.dumps(message).encode()
        if len(text) > MESSAGE_BYTES:
            raise InvalidArgumentError(f"the name {message.get('name')!r} is too long for join()")
        buffer = ctypes.create_string_buffer(text, MESSAGE_BYTES)
        self._sent = [item for item in self._sent if not item[0].done()]
        self._sent.append((self._group.send(ctypes.addressof(buffer), MESSAGE_BYTES, rank, 0, _EVER), buffer))

    def _listen(self) -> None:
        """Posts one receive after the other, so that messages of one rank are heard in their order."""
        while True:
            buffer = ctypes.create_string_buffer(MESSAGE_BYTES)
            operation = self._group.receive(ctypes.addressof(buffer), MESSAGE_BYTES, None, 0, _EVER)
            if not operation.done():
                return self._listen_later(operation, buffer)
            if not self._heard(operation, buffer):
                return None

    def _listen_later(self, operation: CollectiveOperation, buffer: Any) -> None:
        def go_on() -> None:
            if self._heard(operation, buffer):
                self._listen()

        operation.on_done(go_on)

    def _heard(self, operation: CollectiveOperation, buffer: Any) -> bool:
        """Whether to listen on."""
        error = operation.error()
        if error is not None:
            logger.debug("join() is no longer possible: %s", error)
            self._inbox.put(error)
            return False
        message: Message = json.loads(buffer.value)
        if "refused" in message:
            self._refused(message["refused"], message["by"])
            return True
        with self._lock:
            if "joined" in message:
                self._note_joined(message["joined"], message["generation"])
                self._tell(message["joined"], {"heard": self._group.rank})
                if message["generation"] == self._generation:
                    self._tell_of_flights(message["joined"])
            else:
                self._inbox.put(message)
        return True

    def _tell_of_flights(self, rank: int) -> None:
        for flight in self._flights:
            if not flight.handle.done():
                self._tell_of(flight, rank)
        for name in self._given_up:
            self._tell(rank, {"given_up": name})


def _joined(what: str, rank: int) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{what} can't be made: rank {rank} has joined (join()), and takes part in allreduce only; make it after all"
        " ranks have joined"
    )
