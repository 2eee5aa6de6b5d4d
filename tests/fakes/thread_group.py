"""Process groups of threads: collectives.api.Group without sockets. The last rank to come makes everybody's result.

Targets are filled with garbage until a call is done, so that code which reads memory in flight is found out.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from byteps_like.collectives.api import DEFAULT, Addresses, CallOptions
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, DeadlineError, InvalidArgumentError, MismatchError, timed_out
from tests.fakes.reduction import reduce

_GARBAGE = 0xA5
DEADLINE = 20.0


class ThreadOperation:
    """One rank's part in a call; see collectives.api.CollectiveOperation."""

    def __init__(self, world: GroupWorld, name: str, timeout: float | None = None) -> None:
        self._world, self._name, self._timeout = world, name, timeout
        self._ended = False
        self._error: BytePSLikeError | None = None
        self._callbacks: list[Callable[[], None]] = []
        self.source = -1
        self.missing: Callable[[], str] = lambda: ""

    def done(self) -> bool:
        return self._ended

    def error(self) -> BytePSLikeError | None:
        return self._error

    def wait(self, timeout: float | None = None) -> None:
        limit = timeout if timeout is not None else self._timeout or DEADLINE
        with self._world.changed:
            if not self._world.changed.wait_for(lambda: self._ended, limit):
                error = DeadlineError(f"{self._name} {timed_out(limit)}{self.missing()}")
                if timeout is None:
                    self._world.fail_call(self, error)
                raise error
        if self._error is not None:
            raise self._error

    def give_up(self, error: BytePSLikeError) -> None:
        with self._world.changed:
            self.end(error)

    def on_done(self, callback: Callable[[], None]) -> None:
        with self._world.changed:
            if not self._ended:
                self._callbacks.append(callback)
                return
        threading.Thread(target=callback, daemon=True).start()

    def end(self, error: BytePSLikeError | None = None) -> None:
        """With the world's lock held."""
        if self._ended:
            return
        self._ended, self._error = True, error
        for callback in self._callbacks:
            threading.Thread(target=callback, daemon=True).start()
        self._world.changed.notify_all()


@dataclass
class _Part:
    """What one rank brings to a call, and where its results go."""

    operation: ThreadOperation
    sources: list[bytes]
    targets: list[tuple[int, int]]


@dataclass
class _Call:
    description: str
    first: int
    parts: dict[int, _Part] = field(default_factory=dict)
    error: BytePSLikeError | None = None


Combine = Callable[[dict[int, list[bytes]], int], list[bytes]]
"""All ranks' sources and a rank: what that rank's targets get."""


class GroupWorld:
    """What all groups of a world share."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.failure: BytePSLikeError | None = None
        self.per_host = 1
        self.launched: Counter[str] = Counter()
        self._calls: dict[tuple[str, tuple[int, ...], int], _Call] = {}
        self._sent: dict[tuple[str, int, int], list[tuple[int, bytes]]] = defaultdict(list)
        self._wanted: dict[tuple[str, int, int], list[tuple[int | None, int, int, ThreadOperation]]]
        self._wanted = defaultdict(list)

    def fail(self, error: BaseException) -> None:
        """Everything in flight and to come fails with `error`."""
        failure = error if isinstance(error, BytePSLikeError) else BytePSLikeError(str(error))
        with self.changed:
            self.failure = self.failure or failure
            for call in list(self._calls.values()):
                self._end(call, self.failure)
            for waiting in self._wanted.values():
                for *_, operation in waiting:
                    operation.end(self.failure)

    def fail_call(self, operation: ThreadOperation, error: BytePSLikeError) -> None:
        """The call that `operation` is a part of fails on all ranks."""
        with self.changed:
            for call in self._calls.values():
                if any(part.operation is operation for part in call.parts.values()):
                    self._end(call, error)

    def _end(self, call: _Call, error: BytePSLikeError | None) -> None:
        call.error = error
        for part in call.parts.values():
            part.operation.end(error)

    def join(self, group: ThreadGroup, number: int, what: str, part: _Part, combine: Combine) -> None:
        """One rank comes to a call; the last one makes the results."""
        with self.changed:
            self.launched[group.name] += 1
            if self.failure is not None:
                return part.operation.end(self.failure)
            key = (group.name, group.ranks, number)
            call = self._calls.setdefault(key, _Call(what, group.rank))
            call.parts[group.rank] = part
            part.operation.missing = lambda: f"; waiting for ranks {sorted(set(range(group.size)) - set(call.parts))}"
            if call.error is None and call.description != what:
                call.error = MismatchError(
                    f"{group.name!r}, call {number}: rank {group.rank} has {what}, rank {call.first} has"
                    f" {call.description}"
                )
            if call.error is not None:
                return self._end(call, call.error)
            if len(call.parts) == group.size:
                self._finish(call, combine)
                del self._calls[key]
            return None

    def _finish(self, call: _Call, combine: Combine) -> None:
        sources = {rank: part.sources for rank, part in call.parts.items()}
        for rank, part in call.parts.items():
            for (address, nbytes), result in zip(part.targets, combine(sources, rank), strict=True):
                assert len(result) == nbytes
                ctypes.memmove(address, result, nbytes)
            part.operation.end()

    def send(self, group: ThreadGroup, peer: int, tag: int, data: bytes) -> None:
        with self.changed:
            self._sent[group.name, peer, tag].append((group.rank, data))
            self._match((group.name, peer, tag))

    def receive(
        self, group: ThreadGroup, peer: int | None, tag: int, place: tuple[int, int], op: ThreadOperation
    ) -> None:
        with self.changed:
            if self.failure is not None:
                return op.end(self.failure)
            self._wanted[group.name, group.rank, tag].append((peer, *place, op))
            return self._match((group.name, group.rank, tag))

    def _match(self, key: tuple[str, int, int]) -> None:
        for wanted in list(self._wanted[key]):
            peer, address, nbytes, operation = wanted
            found = next((item for item in self._sent[key] if peer in (None, item[0])), None)
            if found is None:
                continue
            self._sent[key].remove(found)
            self._wanted[key].remove(wanted)
            operation.source = found[0]
            if len(found[1]) != nbytes:
                operation.end(MismatchError(f"rank {found[0]} sent {len(found[1])} bytes, {nbytes} were expected"))
                continue
            ctypes.memmove(address, found[1], nbytes)
            operation.end()


class ThreadGroup:
    """One rank's view of a group; see collectives.api.Group. Groups of one name and the same ranks share calls."""

    def __init__(self, world: GroupWorld, name: str, ranks: tuple[int, ...], world_rank: int) -> None:
        if world_rank not in ranks:
            raise InvalidArgumentError(f"rank {world_rank} is not in group {name!r} of ranks {ranks}")
        self.name, self.ranks, self.size = name, ranks, len(ranks)
        self.rank = ranks.index(world_rank)
        self.hosts = tuple(rank // world.per_host for rank in ranks)
        self._world = world
        self._calls = 0

    def all_reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> ThreadOperation:
        nbytes = count * dtype.itemsize
        what = f"all_reduce {op.name.lower()} {dtype.name.lower()}[{count}]"

        def combine(sources: dict[int, list[bytes]], _: int) -> list[bytes]:
            return [reduce([sources[rank][0] for rank in range(self.size)], dtype, op)]

        return self._join(what, [(source, nbytes)], [(target, nbytes)], combine, options)

    def reduce_scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, op: Op,
        options: CallOptions = DEFAULT,
    ) -> ThreadOperation:  # fmt: skip
        what = f"reduce_scatter {op.name.lower()} {dtype.name.lower()}{list(counts)}"

        def combine(sources: dict[int, list[bytes]], rank: int) -> list[bytes]:
            return [reduce([sources[other][rank] for other in range(self.size)], dtype, op)]

        mine = (target, counts[self.rank] * dtype.itemsize)
        return self._join(what, _spans(source, counts, dtype), [mine], combine, options)

    def all_gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, options: CallOptions = DEFAULT
    ) -> ThreadOperation:
        what = f"all_gather {dtype.name.lower()}{list(counts)}"

        def combine(sources: dict[int, list[bytes]], _: int) -> list[bytes]:
            return [sources[rank][0] for rank in range(self.size)]

        mine = (source, counts[self.rank] * dtype.itemsize)
        return self._join(what, [mine], _spans(target, counts, dtype), combine, options)

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, options: CallOptions = DEFAULT
    ) -> ThreadOperation:
        span = (address, count * dtype.itemsize)
        what = f"broadcast from {root} {dtype.name.lower()}[{count}]"
        return self._join(what, [span], [span], lambda sources, _: sources[root], options)

    def reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, root: int, options: CallOptions = DEFAULT
    ) -> ThreadOperation:
        nbytes = count * dtype.itemsize

        def combine(sources: dict[int, list[bytes]], rank: int) -> list[bytes]:
            everything = [sources[other][0] for other in range(self.size)]
            return [reduce(everything, dtype, op)] if rank == root else []

        targets = [(target, nbytes)] if self.rank == root else []
        what = f"reduce to {root} {op.name.lower()} {dtype.name.lower()}[{count}]"
        return self._join(what, [(source, nbytes)], targets, combine, options)

    def scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> ThreadOperation:  # fmt: skip
        sources = _spans(source, counts, dtype) if self.rank == root else []
        mine = (target, counts[self.rank] * dtype.itemsize)
        what = f"scatter from {root} {dtype.name.lower()}{list(counts)}"
        return self._join(what, sources, [mine], lambda found, rank: [found[root][rank]], options)

    def gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> ThreadOperation:  # fmt: skip
        def combine(sources: dict[int, list[bytes]], rank: int) -> list[bytes]:
            return [sources[other][0] for other in range(self.size)] if rank == root else []

        targets = _spans(target, counts, dtype) if self.rank == root else []
        mine = (source, counts[self.rank] * dtype.itemsize)
        return self._join(f"gather to {root} {dtype.name.lower()}{list(counts)}", [mine], targets, combine, options)

    def all_to_all(
        self, source: Addresses, target: Addresses, send_counts: int | Sequence[int],
        receive_counts: int | Sequence[int], dtype: DType, options: CallOptions = DEFAULT,
    ) -> ThreadOperation:  # fmt: skip
        def combine(sources: dict[int, list[bytes]], rank: int) -> list[bytes]:
            return [sources[other][rank] for other in range(self.size)]

        send, receive = (
            [counts] * self.size if isinstance(counts, int) else counts for counts in (send_counts, receive_counts)
        )
        spans = _spans(source, send, dtype), _spans(target, receive, dtype)
        equal = send_counts if isinstance(send_counts, int) else ""
        return self._join(f"all_to_all {dtype.name.lower()}[{equal}]", *spans, combine, options)

    def release(self) -> None:
        pass

    def end(self) -> None:
        pass

    def barrier(self, options: CallOptions = DEFAULT) -> ThreadOperation:
        return self._join("barrier", [], [], lambda *_: [], options)

    def send(
        self, address: int, nbytes: int, peer: int, tag: int = 0, options: CallOptions = DEFAULT
    ) -> ThreadOperation:
        operation = ThreadOperation(self._world, f"send to {peer}", options.timeout)
        self._world.send(self, peer, tag, ctypes.string_at(address, nbytes))
        with self._world.changed:
            operation.end(self._world.failure)
        return operation

    def receive(
        self, address: int, nbytes: int, peer: int | None, tag: int = 0, options: CallOptions = DEFAULT
    ) -> ThreadOperation:
        operation = ThreadOperation(self._world, f"receive from {peer}", options.timeout)
        self._world.receive(self, peer, tag, (address, nbytes), operation)
        return operation

    def _join(
        self, what: str, sources: list[tuple[int, int]], targets: list[tuple[int, int]], combine: Combine,
        options: CallOptions,
    ) -> ThreadOperation:  # fmt: skip
        number, self._calls = self._calls, self._calls + 1
        operation = ThreadOperation(self._world, f"{self.name!r}: {what}", options.timeout)
        data = [ctypes.string_at(address, nbytes) if nbytes else b"" for address, nbytes in sources]
        for address, nbytes in targets:
            if nbytes:
                ctypes.memset(address, _GARBAGE, nbytes)
        self._world.join(self, number, what, _Part(operation, data, targets), combine)
        return operation


def _spans(addresses: Addresses, counts: Sequence[int], dtype: DType) -> list[tuple[int, int]]:
    """(address, bytes) of each part."""
    sizes = [count * dtype.itemsize for count in counts]
    if not isinstance(addresses, int):
        return list(zip(addresses, sizes, strict=True))
    return [(addresses + sum(sizes[:number]), size) for number, size in enumerate(sizes)]
