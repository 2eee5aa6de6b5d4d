"""Every algorithm of the library through the native executor: ranks of one process, over real links, against NumPy."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import numpy as np
import pytest

from byteps_like import _core
from byteps_like.collectives import library
from byteps_like.collectives.library import Algorithm
from byteps_like.collectives.planning import compile
from byteps_like.collectives.schedules.schedule import Kind, Layout, RankSchedule
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError

ROWS = [row for row in library.algorithms() if row.kind is not Kind.BARRIER]
REDUCING = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
ROOTED = (Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER, Kind.GATHER)
LANE, SEGMENT, SECONDS = 7, 4096, 60.0
SIZES = [17, 0, 3000, 1, 16, 999]
Arrays = list[np.ndarray]


class World:
    """n communicators, connected."""

    def __init__(self, size: int, scheme: str) -> None:
        place = "127.0.0.1:0" if scheme == "tcp" else ""
        names = [f"{scheme}://{place or f'schedules-{os.getpid()}-{size}-{rank}'}" for rank in range(size)]
        self.communicators = [_core.Communicator("job", b"s" * 32, [name], 5.0) for name in names]
        peers = [(one.urls, "host", f"rank {rank}", rank + 1) for rank, one in enumerate(self.communicators)]
        for rank, one in enumerate(self.communicators):
            one.set_world(bytes(16), 1, rank, peers)
        self.size, self.calls = size, itertools.count()

    def close(self) -> None:
        for one in self.communicators:
            one.close()

    def run(self, plans: list[_core.Plan], sources: Arrays, targets: Arrays, op: Op, what: str) -> None:
        """One call on all ranks, whose buffers are of int64; raises what it failed with."""
        call = next(self.calls)
        runs = [
            one.launch(
                plan, LANE, call, what, int(DType.INT64), int(op), self.size, _address(source), _address(target),
                3, 0, SEGMENT, SECONDS,
            )
            for one, plan, source, target in zip(self.communicators, plans, sources, targets, strict=True)
        ]  # fmt: skip
        for rank, run in enumerate(runs):
            assert run.wait(SECONDS), f"{what}: rank {rank} has not ended"


@pytest.fixture(scope="module", params=[*((n, "inproc") for n in range(1, 7)), (4, "tcp")], ids=str)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Worlds of 1 to 6 ranks."""
    made = World(*request.param)
    yield made
    made.close()


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0] if array.size else 0


def _layouts(size: int) -> list[Layout]:
    layouts = [Layout(tuple(range(size)))]
    if size in (4, 6):
        layouts.append(Layout(tuple(rank // 2 for rank in range(size))))
    return layouts


def _parts(counts: list[int], flat: np.ndarray) -> Arrays:
    return np.split(flat, np.cumsum(counts)[:-1])


def _expected(kind: Kind, counts: list[int], inputs: Arrays, root: int) -> Arrays:
    """Reductions are sums; the ranks that get nothing get an empty array."""
    n = len(inputs)
    at_root = [rank == root for rank in range(n)]
    match kind:
        case Kind.ALL_REDUCE:
            return [sum(inputs)] * n
        case Kind.REDUCE:
            return [sum(inputs) if here else inputs[0][:0] for here in at_root]
        case Kind.BROADCAST:
            return [inputs[root]] * n
        case Kind.REDUCE_SCATTER:
            return _parts(counts[:n], sum(inputs))
        case Kind.ALL_GATHER:
            return [np.concatenate(inputs)] * n
        case Kind.SCATTER:
            return _parts(counts[:n], inputs[root])
        case Kind.GATHER:
            return [np.concatenate(inputs) if here else inputs[0][:0] for here in at_root]
        case _:
            sent = [_parts(counts[rank * n : rank * n + n], one) for rank, one in enumerate(inputs)]
            return [np.concatenate([sent[source][rank] for source in range(n)]) for rank in range(n)]


def _room(table: compile.ChunkTable) -> int:
    return max((offset + length for offset, length in table), default=0) // 8


class Call:
    """Buffers and plans of one algorithm on all ranks; ranks that can are called in place if so wanted."""

    def __init__(self, row: Algorithm, layout: Layout, counts: list[int], root: int, in_place: bool) -> None:
        name = "multi_ring:1" if row.name == "multi_ring" else row.name
        random = np.random.default_rng(len(counts) + root)
        self.inputs, self.sources, self.targets, self.plans = [], [], [], []
        for rank in range(layout.size):
            schedule = library.rank_schedule(row.kind, name, rank, layout, root)
            here = in_place and schedule.alias is not None
            tables = compile.tables(schedule, counts, 8)
            program = compile.program(row.kind, name, rank, layout, root, here)
            self.plans.append(_core.Plan(program, list(range(layout.size)), *tables))
            self.inputs.append(random.integers(0, 1000, _room(tables.input)))
            self._lay(schedule, tables, here)

    def _lay(self, schedule: RankSchedule, tables: compile.Tables, here: bool) -> None:
        source, target = self.inputs[-1].copy(), np.full(_room(tables.output), -1)
        if here and schedule.input:
            first = tables.output[schedule.alias][0] // 8
            target[first : first + source.size] = source
        self.sources.append(source)
        self.targets.append(target)


def _check(world: World, row: Algorithm, layout: Layout, counts: list[int], root: int, in_place: bool, op: Op) -> None:
    call = Call(row, layout, counts, root, in_place)
    world.run(call.plans, call.sources, call.targets, op, f"{row.kind} {row.name}")
    wanted = _expected(row.kind, counts, call.inputs, root)
    for rank, (found, sums) in enumerate(zip(call.targets, wanted, strict=True)):
        right = sums // world.size if op is Op.AVERAGE else sums
        np.testing.assert_array_equal(found, right, err_msg=f"rank {rank} of {world.size}, {layout}, root {root}")
    for source, before in zip(call.sources, call.inputs, strict=True):
        np.testing.assert_array_equal(source, before)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.name}")
def test_algorithm_gives_what_numpy_gives(world: World, row: Algorithm) -> None:
    """Uneven and empty sections, in place and not, sums and averages, the last rank as root, each layout there is."""
    name = "multi_ring:1" if row.name == "multi_ring" else row.name
    root = world.size - 1 if row.kind in ROOTED else 0
    for layout in _layouts(world.size):
        if library.why_unavailable(row.kind, name, layout):
            continue
        for start, in_place in itertools.product((0, 2), (False, True)):
            counts = [SIZES[(start + i) % len(SIZES)] for i in range(world.size**2)]
            op = Op.AVERAGE if row.kind in REDUCING and in_place else Op.SUM
            _check(world, row, layout, counts, root, in_place, op)


def test_all_at_once(world: World) -> None:
    """Calls on one lane that were begun before the first of them ended."""
    rows = [row for row in ROWS if not library.why_unavailable(row.kind, row.name, Layout(tuple(range(world.size))))]
    layout, counts = Layout(tuple(range(world.size))), [500] * world.size**2
    calls = [(row, Call(row, layout, counts, 0, False)) for row in rows]
    runs = []
    for number, (row, call) in enumerate(calls):
        for rank, one in enumerate(world.communicators):
            runs.append(
                one.launch(
                    call.plans[rank], LANE + 1, number, row.name, int(DType.INT64), int(Op.SUM), 1,
                    _address(call.sources[rank]), _address(call.targets[rank]), 3, 0, SEGMENT, SECONDS,
                )
            )  # fmt: skip
    for run in runs:
        assert run.wait(SECONDS)
    for row, call in calls:
        for found, wanted in zip(call.targets, _expected(row.kind, counts, call.inputs, 0), strict=True):
            np.testing.assert_array_equal(found, wanted, err_msg=row.name)


def test_cancelled_on_one_rank_fails_on_all(world: World) -> None:
    """In the words of whoever cancelled it; the lane goes on with its next call."""
    if world.size == 1:
        return
    row, layout = library.find(Kind.ALL_REDUCE, "ring"), Layout(tuple(range(world.size)))
    call = Call(row, layout, [500], 0, False)

    def launch(number: int, rank: int) -> _core.Completion:
        addresses = _address(call.sources[rank]), _address(call.targets[rank])
        code = int(DType.INT64)
        plan = call.plans[rank]
        return world.communicators[rank].launch(
            plan, LANE + 3, number, "x", code, 0, 1, *addresses, 3, 0, SEGMENT, SECONDS
        )

    first = [launch(0, rank) for rank in range(world.size - 1)]
    world.communicators[0].cancel(first[0], InvalidArgumentError.code, "not wanted any more")
    for run in [*first, launch(0, world.size - 1)]:
        with pytest.raises(InvalidArgumentError, match="not wanted any more"):
            run.wait(SECONDS)
    assert all(run.wait(SECONDS) for run in [launch(1, rank) for rank in range(world.size)])


def test_barrier_waits_for_the_last(world: World) -> None:
    """By empty messages: chunks of no bytes keep their order."""
    layout, runs = Layout(tuple(range(world.size))), []
    for row in library.algorithms(Kind.BARRIER):
        call = Call(row, layout, [0], 0, False)
        for rank, (one, plan) in enumerate(zip(world.communicators, call.plans, strict=True)):
            if 0 < rank == world.size - 1:
                assert not any(run.wait(0.02) for run in runs)
            runs.append(one.launch(plan, LANE + 2, 0, row.name, 0, 0, 1, 0, 0, 0, 0, SEGMENT, SECONDS))
    assert all(run.wait(SECONDS) for run in runs)
