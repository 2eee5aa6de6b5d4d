"""From what a caller asks for to what the core runs: algorithm, program and sizes, worked out once per shape."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import byteps_like._core as _core
from byteps_like.collectives import library
from byteps_like.collectives.api import Addresses, CallOptions, Terms
from byteps_like.collectives.planning import compile
from byteps_like.collectives.planning.shape import CallShape, first_address
from byteps_like.collectives.planning.shared_plan import shared_plan
from byteps_like.collectives.schedules.schedule import Buffer, Layout, RankSchedule
from byteps_like.collectives.selection.default_table import SHARED
from byteps_like.collectives.selection.selector import Choice, Limits, Selector
from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError

_HOST_SECONDS = 30.0  # until the lowest rank of the host must have shared its memory
_UNEVEN = 1 << 20  # bytes that an all-to-all of unknown sizes is taken for


class Plan(Protocol):
    """Something that can be launched any number of times.

    `staged`: bytes of the source that the caller copies elsewhere first, since this plan can't work in place.
    """

    @property
    def staged(self) -> int:
        """See above."""

    @property
    def run(self) -> Callable[[int, int, float], tuple[int, str] | None] | None:
        """Of source, target and timeout, where it can: blocks to the call's end, which costs less than to launch and
        to wait. Returns (code, text) of an error."""

    @property
    def cancel(self) -> Callable[[Any, int, str], None]:
        """Fails what `launch` returned on all ranks, soon: with a code and a text."""

    def launch(self, call: int, source: Addresses, target: Addresses, terms: Terms) -> Any:
        """Starts it as call number `call` of its lane; returns the core's completion."""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """A schedule bound to sizes. `first` are the addresses from which the tables of scattered buffers count."""

    core: Any
    native: Any
    lane: int
    description: str
    dtype: int
    op: int
    divisor: int
    segment_bytes: int
    staged: int = 0

    run = None

    @property
    def cancel(self) -> Callable[[Any, int, str], None]:
        """See Plan.cancel."""
        return self.core.cancel  # type: ignore[no-any-return]

    def launch(self, call: int, source: Addresses, target: Addresses, terms: Terms) -> Any:
        """See Plan.launch."""
        timeout, traffic, priority = terms
        return self.core.launch(
            self.native, self.lane, call, self.description, self.dtype, self.op, self.divisor, first_address(source),
            first_address(target), traffic, priority, self.segment_bytes, timeout,
        )  # fmt: skip


class Planner:
    """Makes the plans of one group. Thread-safe."""

    def __init__(
        self, core: Any, selector: Selector, lane: int, ranks: tuple[int, ...], rank: int, layout: Layout, apart: str
    ) -> None:
        self._core, self._selector, self._lane, self._ranks, self._rank = core, selector, lane, ranks, rank
        self._layout = layout
        self._apart = apart
        self._host: Any = None
        self._lock = threading.Lock()

    def release(self) -> None:
        """Gives the place in shared memory back, once no plan uses it; it is made again when it is needed."""
        with self._lock:
            self._host = None

    def explain(self, shape: CallShape, options: CallOptions) -> str:
        """The algorithm for calls of this shape, and why, beside the others."""
        return self._selector.explain(
            shape.kind, shape.nbytes, self._layout, reduction=options.reduction, algorithm=options.algorithm,
            limits=self._limits(shape, scattered=False),
        )  # fmt: skip

    def _limits(self, shape: CallShape, *, scattered: bool) -> Limits:
        return Limits(self._apart, known_sizes=shape.uniform, one_run=not scattered)

    def _choose(self, shape: CallShape, options: CallOptions, *, scattered: bool) -> Choice:
        limits = self._limits(shape, scattered=scattered)
        # What no two ranks need have in common can't decide.
        nbytes = shape.nbytes if shape.uniform else _UNEVEN
        return self._selector.choose(
            shape.kind, nbytes, self._layout, reduction=options.reduction, algorithm=options.algorithm, limits=limits
        )

    def make(self, shape: CallShape, options: CallOptions, source: Addresses, target: Addresses) -> Plan:
        """The plan for calls of this shape. Raises InvalidArgumentError for an algorithm that can't be had here."""
        choice = self._choose(shape, options, scattered=not (isinstance(source, int) and isinstance(target, int)))
        if choice.algorithm == SHARED:
            return shared_plan(self._host_group(), shape, self._rank, source, target)
        schedule = library.rank_schedule(shape.kind, choice.algorithm, self._rank, self._layout, shape.root)
        in_place = shape.in_place and schedule.alias is not None
        program = compile.program(shape.kind, choice.algorithm, self._rank, self._layout, shape.root, in_place)
        counts, itemsize = shape.sections(self._rank), shape.dtype.itemsize
        tables = compile.tables(schedule, counts, itemsize)
        staged = shape.in_place and not in_place  # parts that lie apart are put one behind the other
        given = tables.input if staged else self._scattered(schedule, Buffer.INPUT, tables.input, shape, source)
        wanted = self._scattered(schedule, Buffer.OUTPUT, tables.output, shape, target)
        return SchedulePlan(
            core=self._core,
            native=_core.Plan(program, self._ranks, given, wanted, tables.scratch),
            lane=self._lane,
            description=shape.describe(choice.algorithm),
            dtype=int(shape.dtype),
            op=int(Op.SUM if shape.op is None else shape.op),
            divisor=shape.divisor,
            segment_bytes=options.segment_bytes or choice.segment_bytes,
            staged=sum(size for _, size in tables.input) if staged else 0,
        )

    def _host_group(self) -> Any:
        """The group in shared memory, made when it is first needed: blocks for the milliseconds that this takes."""
        with self._lock:
            if self._host is None:
                self._host = _core.HostGroup(self._core, self._lane, list(self._ranks), _HOST_SECONDS)
            return self._host

    def _scattered(
        self, schedule: RankSchedule, buffer: Buffer, table: compile.ChunkTable, shape: CallShape, where: Addresses
    ) -> compile.ChunkTable:
        if isinstance(where, int) or not table:
            return table
        if compile.takes_runs(schedule, buffer):
            raise InvalidArgumentError(f"{shape.kind}: the algorithm requires the parts of a tensor to be contiguous")
        chunks = (schedule.input, schedule.output)[buffer]
        return compile.scattered(chunks, shape.sections(self._rank), shape.dtype.itemsize, where)
