"""Groups over the native core: every call becomes a plan (once per shape) and a launch of it."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from byteps_like.collectives.api import DEFAULT, Addresses, CallOptions, CollectiveOperation, Keeper, Terms, Traffic
from byteps_like.collectives.operation import ENDED, Ended, NativeOperation, Notifier, typed
from byteps_like.collectives.planning.planner import Plan, Planner
from byteps_like.collectives.planning.shape import CallShape, first_address
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection.selector import Selector
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError

_TOKEN = 256  # bytes of a barrier's two buffers
_MOST_KNOWN = 1024  # shapes
# An enumeration takes its time to find a member.
_ALL_REDUCE, _REDUCE, _BROADCAST = Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST
_REDUCE_SCATTER, _ALL_GATHER, _ALL_TO_ALL = Kind.REDUCE_SCATTER, Kind.ALL_GATHER, Kind.ALL_TO_ALL
_SCATTER, _GATHER = Kind.SCATTER, Kind.GATHER
_BARRIER_FIELDS = Kind.BARRIER, (1,), DType.UINT8
_Run = Callable[[Any, Any, float], tuple[int, str] | None]
_Known = tuple[_Run | None, Plan, Terms, tuple[str, str]]
"""Of calls with one shape and the same options: how to run them at once, if they can; plan; terms; names for errors."""
_TRAFFIC = {Kind.ALL_TO_ALL: Traffic.ALL_TO_ALL, Kind.BARRIER: Traffic.CONTROL}


class NativeGroup:
    """Some ranks of a world, with a lane of their own. See collectives.api.Group for the calls."""

    def __init__(
        self, core: Any, notifier: Notifier, selector: Selector, name: str, lane: int, ranks: tuple[int, ...],
        world_rank: int, layout: Layout, apart: str, timeout: float, forget: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._forget = forget
        self.name, self.ranks, self.lane, self.layout = name, ranks, lane, layout
        self.hosts = layout.hosts
        self.rank, self.size = ranks.index(world_rank), len(ranks)
        self.timeout = timeout
        self._core, self._notifier, self._world_rank = core, notifier, world_rank
        self._calls = itertools.count()
        self._token = (ctypes.c_char * _TOKEN)()
        self._given = ctypes.addressof(self._token)
        self._known: dict[tuple[tuple[Any, ...], CallOptions], _Known] = {}
        self._plans: dict[tuple[tuple[Any, ...], str, str, int], Plan] = {}
        self._planner = Planner(core, selector, lane, ranks, self.rank, layout, apart)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """Every rank gets the reduction of all sources."""
        return self._start((_ALL_REDUCE, (count,), dtype, op, 0, source == target), source, target, options)

    def reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, root: int, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """`root` gets the reduction."""
        fields = _REDUCE, (count,), dtype, op, self._root(root), source == target
        return self._start(fields, source, target, options)

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """Every rank gets the bytes of `root`."""
        fields = _BROADCAST, (count,), dtype, None, self._root(root), True
        return self._start(fields, address, address, options)

    def reduce_scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, op: Op,
        options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """Rank r gets part r of the reduction."""
        in_place = self._is_own_part(source, target, counts, dtype)
        fields = _REDUCE_SCATTER, self._parts(counts), dtype, op, 0, in_place
        return self._start(fields, source, target, options)

    def all_gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """Every rank gets the sources of all."""
        in_place = self._is_own_part(target, source, counts, dtype)
        fields = _ALL_GATHER, self._parts(counts), dtype, None, 0, in_place
        return self._start(fields, source, target, options)

    def scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """Rank r gets part r of the source of `root`."""
        in_place = self.rank == root and self._is_own_part(source, target, counts, dtype)
        fields = _SCATTER, self._parts(counts), dtype, None, self._root(root), in_place
        return self._start(fields, source, target, options)

    def gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """`root` gets the sources of all."""
        in_place = self.rank == root and self._is_own_part(target, source, counts, dtype)
        fields = _GATHER, self._parts(counts), dtype, None, self._root(root), in_place
        return self._start(fields, source, target, options)

    def all_to_all(
        self, source: Addresses, target: Addresses, send_counts: int | Sequence[int],
        receive_counts: int | Sequence[int], dtype: DType, options: CallOptions = DEFAULT,
    ) -> CollectiveOperation:  # fmt: skip
        """Part d of the source goes to rank d; part s of the target comes from rank s."""
        if isinstance(send_counts, int) and isinstance(receive_counts, int):
            if send_counts != receive_counts:
                sizes = f"sends {send_counts} elements to each, but gets {receive_counts}"
                raise InvalidArgumentError(f"all_to_all: {sizes}")
            return self._start((_ALL_TO_ALL, send_counts, dtype, source == target), source, target, options)
        sent, got = self._parts(send_counts), self._parts(receive_counts)
        fields = _ALL_TO_ALL, sent, dtype, None, 0, source == target, got, False
        return self._start(fields, source, target, options)

    def barrier(self, options: CallOptions = DEFAULT) -> CollectiveOperation:
        """Done when every rank has called it."""
        return self._start(_BARRIER_FIELDS, self._given, self._given + _TOKEN // 2, options)

    def send(
        self, address: int, nbytes: int, peer: int, tag: int = 0, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """To group rank `peer`."""
        completion = self._core.send(
            self.lane, self.ranks, tag, self._root(peer, "peer"), address, nbytes,
            *self._terms(options, Traffic.POINT_TO_POINT),
        )  # fmt: skip
        return self._operation(completion, "send")

    def receive(
        self, address: int, nbytes: int, peer: int | None, tag: int = 0, options: CallOptions = DEFAULT
    ) -> CollectiveOperation:
        """From group rank `peer`, or from anybody."""
        completion = self._core.receive(
            self.lane, self.ranks, tag, -1 if peer is None else self._root(peer, "peer"), address, nbytes,
            *self._terms(options, Traffic.POINT_TO_POINT),
        )  # fmt: skip
        return self._operation(completion, "receive")

    def release(self) -> None:
        """Gives back what the group holds but its place in the count of calls: for one that may be used no more."""
        self._known.clear()
        self._plans.clear()
        self._planner.release()

    def end(self) -> None:
        """See collectives.api.Group."""
        self.release()
        self._forget(self.name)

    def explain(self, kind: Kind, count: int, dtype: DType, options: CallOptions = DEFAULT) -> str:
        """Which algorithm a call with `count` elements in its longer buffer would take here, and why."""
        return self._planner.explain(CallShape(kind, self.size, (count,), dtype), options)

    def _start(
        self, fields: tuple[Any, ...], source: Addresses, target: Addresses, options: CallOptions
    ) -> CollectiveOperation:
        """`fields`: of the call's CallShape, as a plain tuple: to make one takes longer than to reduce a kilobyte."""
        run, plan, terms, names = self._known.get((fields, options)) or self._learn(fields, source, target, options)
        if run is not None:
            failed = run(source, target, terms[0])
            return ENDED if failed is None else Ended(typed(failed, self._world_rank, names))
        if plan.staged:
            copied = (ctypes.c_char * plan.staged)()
            _gather(ctypes.addressof(copied), source, plan.staged, self._shape(fields))
            source = ctypes.addressof(copied)
        completion = plan.launch(next(self._calls), source, target, terms)
        if plan.staged:
            self._notifier.watch(completion, Keeper(copied))
        return NativeOperation(completion, self._notifier, self._world_rank, names, plan.cancel)

    def _shape(self, fields: tuple[Any, ...]) -> CallShape:
        kind, counts, *rest = fields
        if isinstance(counts, int):  # an all-to-all of equal parts, in brief
            parts, (dtype, in_place) = self._parts(counts), rest
            return CallShape(kind, self.size, parts, dtype, in_place=in_place, received=parts)
        return CallShape(kind, self.size, counts, *rest)

    def _learn(self, fields: tuple[Any, ...], source: Addresses, target: Addresses, options: CallOptions) -> _Known:
        """What all calls of this shape have in common. Kept, but where parts are scattered: each call has its own."""
        kind = fields[0]
        terms = self._terms(options, _TRAFFIC.get(kind, Traffic.GRADIENT))
        names = kind.value, self.name
        if not (isinstance(source, int) and isinstance(target, int)):
            plan = self._planner.make(self._shape(fields), options, source, target)
            return _at_first(plan.run) if options.waits and not plan.staged else None, plan, terms, names
        plan = self._plan(fields, options)
        _bound(self._known)
        known = plan.run if options.waits and not plan.staged else None, plan, terms, names
        self._known[fields, options] = known
        return known

    def _plan(self, fields: tuple[Any, ...], options: CallOptions) -> Plan:
        """One for calls that differ in their deadline, class and priority only: to make it takes up to milliseconds."""
        key = fields, options.algorithm, options.reduction, options.segment_bytes
        plan = self._plans.get(key)
        if plan is None:
            _bound(self._plans)
            plan = self._plans[key] = self._planner.make(self._shape(fields), options, 0, 0)
        return plan

    def _terms(self, options: CallOptions, traffic: Traffic) -> Terms:
        timeout = self.timeout if options.timeout is None else options.timeout
        return timeout, int(traffic if options.traffic is None else options.traffic), options.priority

    def _operation(self, completion: Any, what: str) -> CollectiveOperation:
        return NativeOperation(completion, self._notifier, self._world_rank, (what, self.name))

    def _is_own_part(self, parts: Addresses, part: int, counts: Sequence[int], dtype: DType) -> bool:
        if not isinstance(parts, int):
            return parts[self.rank] == part
        return parts + sum(counts[: self.rank]) * dtype.itemsize == part

    def _root(self, rank: int, what: str = "root") -> int:
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(f"{what}={rank} is not a rank of group {self.name!r}, which has {self.size}")
        return rank

    def _parts(self, counts: int | Sequence[int]) -> tuple[int, ...]:
        if isinstance(counts, int):
            counts = [counts] * self.size
        if len(counts) != self.size or min(counts) < 0:
            raise InvalidArgumentError(
                f"group {self.name!r} needs {self.size} counts of 0 or more, one for each rank, not {list(counts)}"
            )
        return tuple(counts)


def _bound(kept: dict[Any, Any]) -> None:
    """Programs that see ever new sizes must not fill the memory."""
    if len(kept) >= _MOST_KNOWN:
        kept.clear()


def _at_first(run: _Run | None) -> _Run | None:
    """`run` of scattered parts, whose places the plan counts from the first of each list."""
    if run is None:
        return None
    return lambda source, target, timeout: run(first_address(source), first_address(target), timeout)


def _gather(to: int, source: Addresses, nbytes: int, shape: CallShape) -> None:
    """Copies the parts of a source one behind the other."""
    if isinstance(source, int):
        ctypes.memmove(to, source, nbytes)
        return
    for address, count in zip(source, shape.counts, strict=True):
        ctypes.memmove(to, address, count * shape.dtype.itemsize)
        to += count * shape.dtype.itemsize
