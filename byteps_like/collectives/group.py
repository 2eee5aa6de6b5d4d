"""Groups over the native core: every call becomes a plan (once per shape) and a launch of it."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import partial
from typing import Any

from byteps_like.collectives.api import DEFAULT, Addresses, CallOptions, Traffic
from byteps_like.collectives.operation import NativeOperation, Notifier
from byteps_like.collectives.planning import Planner
from byteps_like.collectives.schedule import Kind, Layout
from byteps_like.collectives.selector import Selector
from byteps_like.collectives.shape import Shape
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError

_TOKEN = 256  # bytes of a barrier's two buffers
_TRAFFIC = {Kind.ALL_TO_ALL: Traffic.ALL_TO_ALL, Kind.BARRIER: Traffic.CONTROL}


class NativeGroup:
    """Some ranks of a world, with a lane of their own. See collectives.api.Group for the calls."""

    def __init__(
        self, core: Any, notifier: Notifier, selector: Selector, name: str, lane: int, ranks: tuple[int, ...],
        world_rank: int, layout: Layout, shares: bool, timeout: float,
    ) -> None:  # fmt: skip
        self.name, self.ranks, self.lane, self.layout = name, ranks, lane, layout
        self.rank, self.size = ranks.index(world_rank), len(ranks)
        self.timeout = timeout
        self._core, self._notifier, self._world_rank = core, notifier, world_rank
        self._calls = itertools.count()
        self._token = (ctypes.c_char * _TOKEN)()
        self._planner = Planner(core, selector, lane, ranks, self.rank, layout, shares)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, options: CallOptions = DEFAULT
    ) -> NativeOperation:
        """Every rank gets the reduction of all sources."""
        shape = Shape(Kind.ALL_REDUCE, self.size, (count,), dtype, op, in_place=source == target)
        return self._start(shape, source, target, options)

    def reduce(
        self, source: int, target: int, count: int, dtype: DType, op: Op, root: int, options: CallOptions = DEFAULT
    ) -> NativeOperation:
        """`root` gets the reduction."""
        shape = Shape(Kind.REDUCE, self.size, (count,), dtype, op, self._root(root), in_place=source == target)
        return self._start(shape, source, target, options)

    def broadcast(
        self, address: int, count: int, dtype: DType, root: int, options: CallOptions = DEFAULT
    ) -> NativeOperation:
        """Every rank gets the bytes of `root`."""
        shape = Shape(Kind.BROADCAST, self.size, (count,), dtype, root=self._root(root), in_place=True)
        return self._start(shape, address, address, options)

    def reduce_scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, op: Op,
        options: CallOptions = DEFAULT,
    ) -> NativeOperation:  # fmt: skip
        """Rank r gets part r of the reduction."""
        in_place = self._is_own_part(source, target, counts, dtype)
        return self._start(
            Shape(Kind.REDUCE_SCATTER, self.size, self._parts(counts), dtype, op, in_place=in_place),
            source,
            target,
            options,
        )

    def all_gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, options: CallOptions = DEFAULT
    ) -> NativeOperation:
        """Every rank gets the sources of all."""
        in_place = self._is_own_part(target, source, counts, dtype)
        return self._start(
            Shape(Kind.ALL_GATHER, self.size, self._parts(counts), dtype, in_place=in_place), source, target, options
        )

    def scatter(
        self, source: Addresses, target: int, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> NativeOperation:  # fmt: skip
        """Rank r gets part r of the source of `root`."""
        in_place = self.rank == root and self._is_own_part(source, target, counts, dtype)
        shape = Shape(Kind.SCATTER, self.size, self._parts(counts), dtype, root=self._root(root), in_place=in_place)
        return self._start(shape, source, target, options)

    def gather(
        self, source: int, target: Addresses, counts: Sequence[int], dtype: DType, root: int,
        options: CallOptions = DEFAULT,
    ) -> NativeOperation:  # fmt: skip
        """`root` gets the sources of all."""
        in_place = self.rank == root and self._is_own_part(target, source, counts, dtype)
        shape = Shape(Kind.GATHER, self.size, self._parts(counts), dtype, root=self._root(root), in_place=in_place)
        return self._start(shape, source, target, options)

    def all_to_all(
        self, source: Addresses, target: Addresses, send_counts: int | Sequence[int],
        receive_counts: int | Sequence[int], dtype: DType, options: CallOptions = DEFAULT,
    ) -> NativeOperation:  # fmt: skip
        """Part d of the source goes to rank d; part s of the target comes from rank s."""
        uniform = isinstance(send_counts, int) and isinstance(receive_counts, int)
        if uniform and send_counts != receive_counts:
            raise InvalidArgumentError(f"all_to_all: sends {send_counts} elements to each, but gets {receive_counts}")
        sent = self._parts([send_counts] * self.size if isinstance(send_counts, int) else send_counts)
        got = self._parts([receive_counts] * self.size if isinstance(receive_counts, int) else receive_counts)
        shape = Shape(Kind.ALL_TO_ALL, self.size, sent, dtype, received=got, uniform=uniform, in_place=source == target)
        return self._start(shape, source, target, options)

    def barrier(self, options: CallOptions = DEFAULT) -> NativeOperation:
        """Done when every rank has called it."""
        token = ctypes.addressof(self._token)
        return self._start(Shape(Kind.BARRIER, self.size, (1,), DType.UINT8), token, token + _TOKEN // 2, options)

    def send(
        self, address: int, nbytes: int, peer: int, tag: int = 0, options: CallOptions = DEFAULT
    ) -> NativeOperation:
        """To group rank `peer`."""
        completion = self._core.send(
            self.lane, self.ranks, tag, self._root(peer, "peer"), address, nbytes,
            *self._terms(options, Traffic.POINT_TO_POINT),
        )  # fmt: skip
        return self._operation(completion, "send")

    def receive(
        self, address: int, nbytes: int, peer: int | None, tag: int = 0, options: CallOptions = DEFAULT
    ) -> NativeOperation:
        """From group rank `peer`, or from anybody."""
        completion = self._core.receive(
            self.lane, self.ranks, tag, -1 if peer is None else self._root(peer, "peer"), address, nbytes,
            *self._terms(options, Traffic.POINT_TO_POINT),
        )  # fmt: skip
        return self._operation(completion, "receive")

    def release(self) -> None:
        """Gives back what the group holds but its place in the count of calls: for one that may be used no more."""
        self._planner.release()

    def explain(self, kind: Kind, count: int, dtype: DType, options: CallOptions = DEFAULT) -> str:
        """Which algorithm a call with `count` elements in its longer buffer would take here, and why."""
        return self._planner.explain(Shape(kind, self.size, (count,), dtype), options)

    def _start(self, shape: Shape, source: Addresses, target: Addresses, options: CallOptions) -> NativeOperation:
        plan = self._planner.plan(shape, options, source, target)
        terms = self._terms(options, _TRAFFIC.get(shape.kind, Traffic.GRADIENT))
        if not plan.staged:
            return self._operation(plan.launch(next(self._calls), source, target, terms, options.waits), shape.kind)
        copied = (ctypes.c_char * plan.staged)()
        _gather(ctypes.addressof(copied), source, plan.staged, shape)
        completion = plan.launch(next(self._calls), ctypes.addressof(copied), target, terms, options.waits)
        self._notifier.watch(completion, partial(_release, copied))
        return self._operation(completion, shape.kind)

    def _terms(self, options: CallOptions, traffic: Traffic) -> tuple[float, int, int]:
        timeout = self.timeout if options.timeout is None else options.timeout
        return timeout, int(traffic if options.traffic is None else options.traffic), options.priority

    def _operation(self, completion: Any, what: str) -> NativeOperation:
        return NativeOperation(completion, self._notifier, self._world_rank, (what, self.name))

    def _is_own_part(self, parts: Addresses, part: int, counts: Sequence[int], dtype: DType) -> bool:
        if not isinstance(parts, int):
            return parts[self.rank] == part
        return parts + sum(counts[: self.rank]) * dtype.itemsize == part

    def _root(self, rank: int, what: str = "root") -> int:
        if not 0 <= rank < self.size:
            raise InvalidArgumentError(f"{what}={rank} is not a rank of group {self.name!r}, which has {self.size}")
        return rank

    def _parts(self, counts: Sequence[int]) -> tuple[int, ...]:
        if len(counts) != self.size or min(counts) < 0:
            raise InvalidArgumentError(
                f"group {self.name!r} needs {self.size} counts of 0 or more, one for each rank, not {list(counts)}"
            )
        return tuple(counts)


def _gather(to: int, source: Addresses, nbytes: int, shape: Shape) -> None:
    """Copies the parts of a source one behind the other."""
    if isinstance(source, int):
        ctypes.memmove(to, source, nbytes)
        return
    for address, count in zip(source, shape.counts, strict=True):
        ctypes.memmove(to, address, count * shape.dtype.itemsize)
        to += count * shape.dtype.itemsize


def _release(_copied: object) -> None:
    """Called when the operation has ended, which holds the copy until then."""
