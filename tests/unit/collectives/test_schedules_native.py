"""Every algorithm run by the native executor over real links, six ranks in one process, against NumPy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from schedule_model import Arrays, expected

from byteps_like.collectives import library
from byteps_like.collectives.library import Algorithm
from byteps_like.collectives.planning import compile
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.dtypes import DType, Op

core = pytest.importorskip("byteps_like._core", reason="the native core is not built")

RANKS = 6
LAYOUTS = [Layout((0, 0, 0, 1, 1, 1)), Layout((0, 1, 0, 1, 1, 2)), Layout(tuple(range(RANKS)))]
ROWS = [row for row in library.algorithms() if row.kind is not Kind.BARRIER]
DEADLINE = 20.0


class World:
    """Six communicators with links among all of them."""

    def __init__(self) -> None:
        secret = bytes(range(32))
        self.members = [core.Communicator("schedules", secret, ["tcp://127.0.0.1:0"], 5.0) for _ in range(RANKS)]
        peers = [(member.urls, f"host {rank}", f"rank {rank}", rank + 1) for rank, member in enumerate(self.members)]
        for rank, member in enumerate(self.members):
            member.set_world(bytes(16), 1, rank, peers)
        self._calls = itertools.count()

    def run(self, plans: Sequence[object], op: Op, inputs: Arrays, outputs: Arrays) -> None:
        """One call by all ranks."""
        call, divisor = next(self._calls), RANKS if op is Op.AVERAGE else 1
        flights = [
            member.launch(
                plan, 7, call, "", int(DType.FLOAT64), int(op), divisor, source.ctypes.data, target.ctypes.data,
                3, 0, 16 << 10, DEADLINE,
            )
            for member, plan, source, target in zip(self.members, plans, inputs, outputs, strict=True)
        ]  # fmt: skip
        for flight in flights:
            assert flight.wait(DEADLINE)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World()
    yield made
    for member in made.members:
        member.close()


def run(world: World, row: Algorithm, layout: Layout, counts: list[int], root: int, op: Op, in_place: bool) -> None:
    name = "multi_ring:1,5" if row.name == "multi_ring" else row.name
    if library.why_unavailable(row.kind, name, layout):
        return
    schedules = [library.rank_schedule(row.kind, name, rank, layout, root) for rank in range(RANKS)]
    tables = [compile.tables(one, counts, 8) for one in schedules]
    random = np.random.default_rng(1)
    inputs, outputs, plans = [], [], []
    for rank, (one, table) in enumerate(zip(schedules, tables, strict=True)):
        source = random.integers(0, 1000, sum(length for _, length in table.input) // 8).astype(np.float64)
        target = np.full(sum(length for _, length in table.output) // 8, -1.0)
        here = in_place and one.alias is not None
        if here and source.size:
            first = table.output[one.alias][0] // 8
            target[first : first + source.size] = source
        program = compile.program(row.kind, name, rank, layout, root, here)
        plans.append(core.Plan(program, list(range(RANKS)), *table))
        inputs.append(source)
        outputs.append(target)
    wanted = expected(row.kind, counts, [source.copy() for source in inputs], root)
    world.run(plans, op, inputs, outputs)
    divisor = RANKS if op is Op.AVERAGE else 1
    for rank, (found, sums) in enumerate(zip(outputs, wanted, strict=True)):
        np.testing.assert_allclose(found, sums / divisor, rtol=1e-15, err_msg=f"{row.kind} by {name}, rank {rank}")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.name}")
def test_the_executor_gives_what_numpy_gives(world: World, row: Algorithm) -> None:
    small = [0, 3, 17, 0, 1, 40] * RANKS
    large = [9000, 0, 20011, 5, 12345, 8191] * RANKS
    reduces = row.kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)
    for layout, counts, in_place in itertools.product(LAYOUTS, (small, large), (False, True)):
        shift = 2 if counts is small and row.kind in (Kind.ALL_REDUCE, Kind.REDUCE, Kind.BROADCAST) else 0
        rooted = row.kind in (Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER, Kind.GATHER)
        op = Op.AVERAGE if reduces and in_place else Op.SUM
        run(world, row, layout, counts[shift:], 4 if rooted and in_place else 0, op, in_place)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind is Kind.REDUCE_SCATTER], ids=lambda row: row.name)
def test_a_reduce_scatter_may_write_over_its_own_part_of_the_source(world: World, row: Algorithm) -> None:
    counts = [9000, 0, 20011, 5, 12345, 8191]
    schedules = [library.rank_schedule(row.kind, row.name, rank, LAYOUTS[1]) for rank in range(RANKS)]
    programs = [compile.program(row.kind, row.name, rank, LAYOUTS[1]) for rank in range(RANKS)]
    tables = [compile.tables(one, counts, 8) for one in schedules]
    plans = [core.Plan(program, [*range(RANKS)], *table) for program, table in zip(programs, tables, strict=True)]
    inputs = [np.random.default_rng(rank).integers(0, 99, sum(counts)).astype(np.float64) for rank in range(RANKS)]
    wanted = expected(row.kind, counts, [source.copy() for source in inputs], 0)
    bounds = np.cumsum([0, *counts])
    outputs = [source[bounds[rank] : bounds[rank + 1]] for rank, source in enumerate(inputs)]
    world.run(plans, Op.SUM, inputs, outputs)
    for found, sums in zip(outputs, wanted, strict=True):
        np.testing.assert_array_equal(found, sums)


def test_a_barrier_holds_until_the_last_rank_has_come(world: World) -> None:
    layout = LAYOUTS[2]
    plans = []
    for rank in range(RANKS):
        tables = compile.tables(library.rank_schedule(Kind.BARRIER, "dissemination", rank, layout), 1, 1)
        plans.append(core.Plan(compile.program(Kind.BARRIER, "dissemination", rank, layout), [*range(RANKS)], *tables))
    options = (int(DType.UINT8), int(Op.SUM), 1, 0, 0, 0, 0, 16 << 10, DEADLINE)
    early = [world.members[rank].launch(plans[rank], 8, 0, "", *options) for rank in range(1, RANKS)]
    assert not any(flight.wait(0.02) for flight in early)
    late = world.members[0].launch(plans[0], 8, 0, "", *options)
    assert all(flight.wait(DEADLINE) for flight in [*early, late])
