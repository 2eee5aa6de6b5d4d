"""A world of n ranks as n threads of this process: a Worker without sockets, for the semantics of what stands on it.

Sums are made by NumPy in the order of ranks, so results are the same from run to run. Between `push_pull` and `wait`
the buffer is filled with garbage, so that code which reads or trusts memory in flight is found out.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, MismatchError, ShutdownError, StalledError
from byteps_like.torch.job import runtime
from byteps_like.worker.api import Declared, Feedback, Links, Places, Share, TensorSpec
from byteps_like.worker.collective import CollectiveWorker
from byteps_like.worker.engine.shares import shared
from byteps_like.worker.local import DeclaredNames, PrivateMemory, check_feedback, check_push_pull, check_same
from byteps_like.worker.standing import ALONE, Standing, Stands
from tests.fakes.reduction import reduce
from tests.fakes.thread_codecs import Contribution, RankCodecs, WorldCodecs
from tests.fakes.thread_group import GroupWorld, ThreadGroup

_GARBAGE = 0xA5
DEADLINE = 20.0


@dataclass
class _Round:
    """One round of one partition; `result` once all ranks are in."""

    op: Op
    root: int
    contributions: dict[int, Any] = field(default_factory=dict)
    result: bytes | None = None


class ThreadWorld:
    """What the ranks share. `fail` makes every call of every rank raise."""

    def __init__(self, size: int, partition_bytes: int = 1 << 20) -> None:
        self.size = size
        self.partition_bytes = partition_bytes
        self.changed = threading.Condition()
        self.failure: Exception | None = None
        self.rounds: dict[tuple[int, int], _Round] = {}
        self.pushed: Counter[str] = Counter()
        self._catalogue = DeclaredNames(partition_bytes)
        self._barriers, self._at_barrier = 0, 0
        self.seen: dict[str, tuple[int, TensorSpec]] = {}
        self.groups = GroupWorld()
        self.codecs = WorldCodecs()
        self.hosts = 1
        """On how many the ranks say they are."""
        self.encode = True
        """Whether all can; portable workers can't."""
        self.now = 0.0
        """A clock: by how much a round of a partition moves it, `takes` says by its codec and bytes of fp32."""
        self.takes: Callable[[str, int], float] = lambda codec, nbytes: 0.0

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or error
            self.changed.notify_all()
        self.groups.fail(self.failure)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def declare(self, rank: int, spec: TensorSpec) -> Declared:
        first, known = self.seen.setdefault(spec.name, (rank, spec))
        try:
            check_same(known, spec)
            return self._catalogue.declare(spec)
        except MismatchError as error:
            self.fail(MismatchError(f"rank {first} and rank {rank} disagree: {error}"))
        self.check()
        raise AssertionError

    def contribute(
        self, rank: int, key: int, number: int, data: bytes | Contribution | None, like: tuple[DType, Op, int, str]
    ) -> None:
        """`data` None: the rank is absent."""
        dtype, op, root, codec = like
        with self.changed:
            item = self.rounds.setdefault((key, number), _Round(op, root))
            if (item.op, item.root) != (op, root):
                self.fail(MismatchError(f"rank {rank} asks for {op.name}, others for {item.op.name}"))
            item.contributions[rank] = data
            if len(item.contributions) == self.size:
                everybody = [item.contributions[rank] for rank in range(self.size)]
                ordered = [one for one in everybody if one is not None]
                coded, one = isinstance(data, Contribution), ordered[0]
                self.now += self.takes(codec if coded else "", one.x.nbytes if coded else len(one))
                item.result = (
                    self.codecs.round(codec, op, ordered, key, number) if coded else reduce(ordered, dtype, op, root)
                )
                item.contributions.clear()
                self.changed.notify_all()

    def barrier(self, timeout: float | None) -> None:
        """Which all have left that have come to it together, though the job fails before they wake up."""
        with self.changed:
            self.check()
            number, self._at_barrier = self._barriers, self._at_barrier + 1
            if self._at_barrier == self.size:
                self._barriers, self._at_barrier = number + 1, 0
                self.changed.notify_all()
            over = self.changed.wait_for(lambda: self._barriers > number or self.failure, timeout or DEADLINE)
            if self._barriers > number:
                return
            self.check()
            assert not over
            raise StalledError("barrier")


class ThreadHandle:
    """Waits for the rounds of one call, and then writes the results to the caller's memory."""

    def __init__(self, world: ThreadWorld, name: str, pieces: list[tuple[tuple[int, int], int]]) -> None:
        self._world, self._name, self._pieces = world, name, pieces
        self._landed = False
        self._error: BytePSLikeError | None = None

    def give_up(self, error: BytePSLikeError) -> None:
        with self._world.changed:
            self._error = None if self._complete() else error
            self._world.changed.notify_all()

    def done(self) -> bool:
        with self._world.changed:
            return self._ended()

    def _ended(self) -> bool:
        return self._world.failure is not None or self._error is not None or self._complete()

    def _complete(self) -> bool:
        return self._landed or all(self._world.rounds[key].result is not None for key, _ in self._pieces)

    def wait(self, timeout: float | None = None) -> None:
        world = self._world
        with world.changed:
            world.changed.wait_for(self._ended, timeout or DEADLINE)
            if self._error is not None:
                raise self._error
            if self._complete():
                return self._land()
            world.check()
        error = StalledError(f"{self._name!r} is not complete", key=self._name)
        world.fail(error)
        raise error

    def _land(self) -> None:
        for key, address in [] if self._landed else self._pieces:
            result = self._world.rounds[key].result
            ctypes.memmove(address, result, len(result))
        self._landed = True


class ThreadWorker(Stands):
    """One rank of a ThreadWorld; see worker.api.Worker."""

    route = "server"
    seal_key = bytes(range(32))
    standing = ALONE

    def __init__(self, world: ThreadWorld, rank: int) -> None:
        self.standing = Standing(rank, tuple(range(1, world.size + 1)), rank, world.size)
        self.world = world
        self._rounds: Counter[int] = Counter()
        self._groups: dict[tuple[str, tuple[int, ...]], ThreadGroup] = {}
        self._closed = False
        self.codecs = RankCodecs()
        self.compensate, self.rescale = self.codecs.compensate, self.codecs.rescale
        self.links: list[Links] = []
        self.retired: list[str] = []

    def _check(self) -> None:
        self.world.check()
        if self._closed:
            raise ShutdownError("closed")

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        self._check()
        with self.world.changed:
            return [self.world.declare(self.rank, spec) for spec in specs]

    def allocate(self, nbytes: int) -> PrivateMemory:
        self._check()
        return PrivateMemory(nbytes)

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,
        share: Share | None = None,
    ) -> ThreadHandle:
        self._check()
        check_push_pull(declared, address, op, parts)
        if not 0 <= root < self.size:
            raise InvalidArgumentError(f"no rank {root}")
        pieces = []
        chosen = range(len(declared.partitions)) if parts is None else parts
        partitions, absent = [declared.partitions[part] for part in chosen], frozenset[int]()
        if share is not None:
            cut = shared(declared, share)
            partitions = [cut.parts[part] for whole in chosen for part in cut.of(range(whole, whole + 1))]
            absent = frozenset(cut.parts[part].key for part in cut.absent)
        for part in partitions:
            number = self._rounds[part.key]
            self._rounds[part.key] += 1
            like = (declared.spec.dtype, op, root, declared.spec.codec)
            self.world.pushed[declared.spec.name] += 1
            if part.key in absent:
                self.world.contribute(self.rank, part.key, number, None, like)
                continue
            data: Any = ctypes.string_at(address + part.offset, part.nbytes)
            if declared.spec.codec and op is not Op.BROADCAST:
                data = self.codecs.contribution(declared, part, data)
            ctypes.memset(address + part.offset, _GARBAGE, part.nbytes)
            self.world.contribute(self.rank, part.key, number, data, like)
            pieces.append(((part.key, number), address + part.offset))
        return ThreadHandle(self.world, declared.spec.name, pieces)

    def moves_shares(self) -> bool:
        return self.world.encode

    def empty_shared(self, nbytes: int) -> PrivateMemory:
        return self.allocate(nbytes)

    def group(self, name: str, ranks: Sequence[int] | None = None) -> ThreadGroup:
        self._check()
        chosen = tuple(range(self.size)) if ranks is None else tuple(ranks)
        return self._groups.setdefault((name, chosen), ThreadGroup(self.world.groups, name, chosen, self.rank))

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        check_feedback(declared, feedback)

    def rescale(self, declared: Declared, factor: float) -> None:
        pass

    def placed(self, declared: Declared, follows: bool = True) -> Declared:
        return declared

    def places(self) -> Places:
        return Places(self.world.hosts, 1, self.world.encode)

    def note_route(self, name: str) -> None:
        pass

    def use(self, links: Links) -> None:
        self.links.append(links)

    def retire(self, declared: Declared) -> None:
        self.retired.append(declared.spec.name)

    def barrier(self, timeout: float | None = None) -> None:
        self._check()
        self.world.barrier(timeout)

    def close(self) -> None:
        self._closed = True

    def stats(self) -> dict[str, int]:
        return {}


def run_world(
    size: int, body: Callable[..., Any], *args: Any, world: ThreadWorld | None = None, servers: bool = True
) -> list[Any]:
    """Runs `body(bps, rank, size, *args)` on every rank; their results. Raises the first failure, naming its rank.

    Without `servers` the ranks have a CollectiveWorker each.
    """
    import byteps_like.torch as bps

    world = world or ThreadWorld(size)
    results: list[Any] = [None] * size
    failures: list[tuple[int, BaseException, str]] = []

    def main(rank: int) -> None:
        # The ranks are threads already; a pool of each of them would spin for longer than small tensors take.
        torch.set_num_threads(1)
        try:
            worker = ThreadWorker(world, rank)
            with runtime.bound(worker if servers else CollectiveWorker(worker, world.partition_bytes)):
                results[rank] = body(bps, rank, size, *args)
        except BaseException as error:  # noqa: BLE001 - raised by run_world; pytest's "did not raise" is no Exception
            failures.append((rank, error, traceback.format_exc()))
            world.fail(error)

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE * 2)
    if failures:
        rank, error, text = failures[0]
        error.add_note(f"rank {rank} of {size} failed:\n{text}")
        raise error
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results
