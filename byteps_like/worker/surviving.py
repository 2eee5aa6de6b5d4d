"""All-reduces that the others finish without ranks that die in them: what a job without servers has in place of these.

A rank's own memory has what it brings until the result is there, and then that: it comes to memory kept for it, where
that of the reduction before stays meanwhile. When the scheduler says that a rank has died, all others hear it, several
of them in the same order, and for each

1. what is in flight ends, well or not: who needs the dead rank learns of it, and tells the others;
2. all tell each other which results they have. One that anybody has is passed on to those who lack it: all ranks are in
   it. Who has it may be one reduction ahead of who lacks it;
3. all other reductions are made again, without the dead rank, of what the others have brought.

So each result is the same on all ranks, and it is known who is in it.
"""

from __future__ import annotations

import ctypes
import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Traffic
from byteps_like.collectives.operation import Ended
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, CorruptError, PeerLostError, from_code
from byteps_like.worker.api import Declared, Partition, SharedMemory
from byteps_like.worker.engine.step_log import StepLog
from byteps_like.worker.standing import Standing

logger = logging.getLogger(__name__)

_Status = Mapping[str, tuple[int, int, int]]
"""Of each partition: number of the newest reduction that has begun, and of the newest result, and how many ranks were
gone that might be missing in it."""


_SHARED = 64 << 10
"""Bytes from which on memory is such that the other ranks of the host can read and write it."""


class MakesGroups(Protocol):
    """The worker below."""

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """Some ranks, with a lane of their own."""

    def empty_shared(self, nbytes: int) -> SharedMemory:
        """Memory that peers on this host map."""


class PartReduction:
    """What is to be done to one partition."""

    def __init__(self, declared: Declared, part: Partition, address: int, op: Op, options: CallOptions) -> None:
        self.declared, self.part, self.address = declared, part, address
        self._op, self._options = op, options

    def begin(self, lane: Group, target: int) -> CollectiveOperation:
        """The result goes there. Never blocks."""
        dtype = self.declared.spec.dtype
        count = self.part.nbytes // dtype.itemsize
        try:
            return lane.all_reduce(self.address, target, count, dtype, self._op, self._options)
        except PeerLostError as error:
            return Ended(error)


class _Results:
    """Memory for two of them."""

    def __init__(self, base: MakesGroups, nbytes: int) -> None:
        if nbytes >= _SHARED:
            shared = [base.empty_shared(nbytes) for _ in range(2)]
            self._memory: list[Any] = list(shared)
            self._addresses = [one.address for one in shared]
        else:
            own = [(ctypes.c_char * nbytes)() for _ in range(2)]
            self._memory = list(own)
            self._addresses = [ctypes.addressof(one) for one in own]

    def place(self, number: int) -> int:
        """Where the result of that reduction is, or goes, while the one before stays."""
        return self._addresses[number % 2]


class _Kept:
    """Of one partition, by the name of its lane."""

    def __init__(self, lane: str, nbytes: int, results: _Results) -> None:
        self.lane, self.nbytes, self.results = lane, nbytes, results
        self.name = f"{nbytes} bytes of {lane}"
        """Among the ranks: where a tensor is cut anew, its reductions are counted anew."""
        self.begun = 0
        """Number of the newest reduction, from 1."""
        self.current: SurvivingSum | None = None
        """That, while it has not ended."""
        self.result_of, self.result_without = 0, 0
        """Number of the newest reduction that has a result here; how many ranks were gone then."""


class SurvivingSum:
    """One reduction in flight. See collectives.together.Waitable."""

    def __init__(self, sums: SurvivingSums, kept: _Kept, reduction: PartReduction, step: int) -> None:
        self.kept, self.reduction, self.step = kept, reduction, step
        self.number = kept.begun
        self.operation: CollectiveOperation = Ended()
        self.without = 0
        """So many ranks were gone when that began."""
        self.ended = False
        self._sums = sums
        self._failed: float | None = None
        """When that was seen."""

    def done(self) -> bool:
        """See Waitable: False while it may be made again."""
        operation = self.operation
        if self.ended or not operation.done():
            return self.ended
        error = operation.error()
        if error is None:
            self._sums.landed(self, operation)
            return self.ended
        if not isinstance(error, PeerLostError):
            return True
        self._failed = self._failed or time.monotonic()
        return not self._sums.may_recover(self._failed)

    def give_up(self, error: BytePSLikeError) -> None:
        """See Waitable."""
        self.operation.give_up(error)

    def wait(self, timeout: float | None = None) -> None:
        """See Waitable. Raises PeerLostError where the others can't go on without the rank that is lost."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self.ended:
            operation = self.operation
            try:
                operation.wait(None if end is None else max(end - time.monotonic(), 0.0))
            except PeerLostError:
                self._failed = self._failed or time.monotonic()
                if not self._sums.recovered(self, operation, end):
                    self._sums.gave_up(self, operation)
                    self._sums.check()
                    raise
            except BytePSLikeError:
                if operation.done():
                    self._sums.gave_up(self, operation)
                raise
            else:
                self._sums.landed(self, operation)


class SurvivingSums:
    """Those of one world, of the worker `rank` in it. Thread-safe."""

    def __init__(self, base: MakesGroups, standing: Standing, log: StepLog, label: str, patience: float) -> None:
        """`patience`: seconds from a failure for the scheduler to say who has died, and for the others to come then."""
        self._base, self._log, self._label, self._patience = base, log, label, patience
        self._standing = standing
        self._kept: dict[str, _Kept] = {}
        self._lanes: dict[tuple[str, int], Group] = {}
        """By name, and how many ranks were gone."""
        self._told: list[int] = []
        """Ranks that have died, in the order in which all hear it."""
        self._gone: tuple[int, ...] = ()
        """Those without whom reductions are made by now."""
        self._recovering = False
        self._failure: BytePSLikeError | None = None
        """Why there are no reductions without somebody any more."""
        self._verdict: BytePSLikeError | None = None
        """Why the job has ended."""
        self._changed = threading.Condition(threading.RLock())

    def lane(self, name: str) -> Group:
        """That of all who live."""
        gone = self._gone
        known = self._lanes.get((name, len(gone)))
        if known is None:
            known = self._lanes[name, len(gone)] = self._lane_without(name, gone)
        return known

    def begin(self, lane: str, reduction: PartReduction) -> SurvivingSum:
        """Starts one; those of one lane one after the other. Blocks while the others find out what is to be done
        without a rank that has died, and while one of the same lane is in flight."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: not self._recovering)
                kept = self._of(lane, reduction.part.nbytes)
                before = kept.current
                if before is None:
                    kept.begun += 1
                    kept.current = SurvivingSum(self, kept, reduction, self._log.now)
                    self._start(kept.current)
                    return kept.current
            self._let_end(before)

    def _start(self, call: SurvivingSum) -> None:
        call.without = len(self._gone)
        place = call.kept.results.place(call.number)
        call.operation = call.reduction.begin(self.lane(call.kept.lane), place)

    def retire(self, lane: str) -> None:
        """Gives back what its groups hold: nothing is in flight, and nothing will be for a while."""
        for group in [group for (name, _), group in list(self._lanes.items()) if name == lane]:
            group.release()

    def forget(self, lane: str) -> None:
        """Nothing of it is in flight, and it won't come again."""
        with self._changed:
            self._kept.pop(lane, None)
            found = [self._lanes.pop(key) for key in list(self._lanes) if key[0] == lane]
        for group in found:
            group.end()

    def hear(self, rank: int) -> None:
        """It has died. Never blocks."""
        with self._changed:
            if rank in self._told or rank == self._standing.rank:
                return
            self._told.append(rank)
            if not self._recovering:
                self._recovering = True
                threading.Thread(target=self._recover, name="byteps_like-survivors", daemon=True).start()
            self._changed.notify_all()

    def fail(self, error: BytePSLikeError) -> None:
        """The job has ended for all. Never blocks."""
        with self._changed:
            self._failure = self._verdict = error
            self._changed.notify_all()

    # What calls ask

    def check(self) -> None:
        """Raises why the job has ended, if so."""
        if self._verdict is not None:
            raise from_code(self._verdict.code, str(self._verdict), rank=self._standing.rank, peer=self._verdict.peer)

    def landed(self, call: SurvivingSum, operation: CollectiveOperation) -> None:
        """`operation` has brought the result of the call, unless it has one by now."""
        with self._changed:
            if call.operation is operation and not call.ended:
                self._finish(call, call.without)

    def gave_up(self, call: SurvivingSum, operation: CollectiveOperation) -> None:
        """There will be no result of it."""
        with self._changed:
            if call.operation is operation:
                self._end(call)

    def may_recover(self, failed: float) -> bool:
        """Whether a call that failed then may be made again."""
        return self._failure is None and (self._recovering or time.monotonic() - failed < self._patience)

    def recovered(self, call: SurvivingSum, operation: CollectiveOperation, end: float | None) -> bool:
        """Whether the call has a result by other ways than `operation`, or is on its way again. Blocks."""
        failed = time.monotonic()
        with self._changed:
            while not call.ended and call.operation is operation:
                now = time.monotonic()
                if not self.may_recover(failed) or (end is not None and now >= end):
                    return False
                self._changed.wait(min(self._patience, self._patience if end is None else end - now))
            return True

    def _of(self, lane: str, nbytes: int) -> _Kept:
        with self._changed:
            known = self._kept.get(lane)
            if known is None or known.nbytes != nbytes:
                known = self._kept[lane] = _Kept(lane, nbytes, _Results(self._base, nbytes))
            return known

    def _finish(self, call: SurvivingSum, without: int) -> None:
        """Its result is there; `without`: so many ranks were gone when it was made."""
        kept, reduction = call.kept, call.reduction
        ctypes.memmove(reduction.address, kept.results.place(call.number), kept.nbytes)
        kept.result_of, kept.result_without = call.number, without
        part = reduction.part
        lacks = [(part, (rank, part.key, 0, 0)) for rank in self._told[:without]]
        if lacks:
            self._log.note(call.step, reduction.declared.spec, lacks)
        self._end(call)

    def _end(self, call: SurvivingSum) -> None:
        call.ended = True
        if call.kept.current is call:
            call.kept.current = None
        self._changed.notify_all()

    def _let_end(self, call: SurvivingSum) -> None:
        try:
            call.wait()
        except BytePSLikeError as error:  # whoever waits for it hears of it
            logger.debug("a reduction before has failed: %s", error)

    # When a rank has died

    def _lane_without(self, name: str, gone: Sequence[int]) -> Group:
        left = [rank for rank in range(self._standing.size) if rank not in gone]
        return self._base.group(f"{name}/without/{'.'.join(map(str, gone))}" if gone else name, left)

    def _recover(self) -> None:
        try:
            while self._next_is_gone():
                pass
        except BytePSLikeError as error:
            logger.warning("reductions can't be finished without ranks that have died: %s", error)
            with self._changed:
                self._failure, self._recovering = self._failure or error, False
                self._changed.notify_all()

    def _next_is_gone(self) -> bool:
        """Goes on without one more of those who have died; False if that was the last one."""
        with self._changed:
            tried = len(self._gone)
            gone = tuple(self._told[: tried + 1])
            if len(gone) == tried:
                self._recovering = False  # while nobody can hear of another one
                self._changed.notify_all()
                return False
        self._gone = gone
        try:
            self._settle(self._lane_without(f"{self._label}/survivors", gone))
        except PeerLostError:
            self._await_another(len(gone))
            return True
        with self._changed:
            for kept in self._kept.values():
                if kept.current is not None:
                    self._start(kept.current)
            self._changed.notify_all()
        return True

    def _await_another(self, known: int) -> None:
        """One of those who were left has died, too. Raises PeerLostError if the scheduler doesn't say who."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._told) > known or self._failure is not None, self._patience)
            if len(self._told) == known:
                raise PeerLostError("one more rank can't be reached, and the scheduler has not said that it has died")

    def _settle(self, group: Group) -> None:
        """Every result that anybody has is on all ranks. Raises PeerLostError if another one has died."""
        for call in [kept.current for kept in self._kept.values() if kept.current is not None]:
            self._settle_own(call)
        every = _told_by_all(group, self._status(), self._patience)
        for name in sorted({name for one in every for name in one}):
            self._pass_on(group, name, [one.get(name, (0, 0, 0)) for one in every])
        group.release()

    def _settle_own(self, call: SurvivingSum) -> None:
        """What it is on its way with ends: others may never begin what this rank waits for."""
        operation = call.operation
        operation.give_up(PeerLostError(f"rank {self._gone[-1]} has died"))
        try:
            operation.wait(self._patience)
        except BytePSLikeError:
            if operation.done():
                return
            raise
        self.landed(call, operation)

    def _status(self) -> _Status:
        return {kept.name: (kept.begun, kept.result_of, kept.result_without) for kept in self._kept.values()}

    def _pass_on(self, group: Group, name: str, every: Sequence[tuple[int, int, int]]) -> None:
        newest = max(result for _, result, _ in every)
        # Who has begun none has cut the tensor anew, and has had all results before that.
        lacking = [rank for rank, (begun, result, _) in enumerate(every) if begun and result < newest]
        if not lacking or newest == 0:
            return
        if any(every[rank][0] != newest for rank in lacking) or not all(begun for begun, _, _ in every):
            raise CorruptError(f"reduction {newest} of {name} is done on some ranks, and has not begun on others")
        source = next(rank for rank, (_, result, _) in enumerate(every) if result == newest)
        kept = next(kept for kept in self._kept.values() if kept.name == name)
        call = kept.current if group.rank in lacking else None
        group.broadcast(kept.results.place(newest), kept.nbytes, DType.UINT8, source, _urgent(self._patience)).wait()
        if call is not None:
            with self._changed:
                self._finish(call, every[source][2])


def _urgent(seconds: float) -> CallOptions:
    return CallOptions(timeout=seconds, traffic=Traffic.CONTROL)


def _told_by_all(group: Group, own: _Status, seconds: float) -> list[_Status]:
    """What each rank says, by rank. Blocks."""
    text = json.dumps(own).encode()
    lengths = (ctypes.c_int64 * group.size)()
    length = ctypes.c_int64(len(text))
    _gather(group, ctypes.addressof(length), ctypes.addressof(lengths), [1] * group.size, DType.INT64, seconds)
    counts = list(lengths)
    mine, texts = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(sum(counts))
    _gather(group, ctypes.addressof(mine), ctypes.addressof(texts), counts, DType.UINT8, seconds)
    found: list[Any] = []
    at = 0
    for count in counts:
        found.append(json.loads(texts.raw[at : at + count]))
        at += count
    return [{name: tuple(numbers) for name, numbers in one.items()} for one in found]


def _gather(group: Group, source: int, target: int, counts: list[int], dtype: DType, seconds: float) -> None:
    group.all_gather(source, target, counts, dtype, _urgent(seconds)).wait()
