"""Chunk tables and programs: every algorithm on real bytes, with uneven and empty sections, against NumPy."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_model import Arrays, Model, expected

from byteps_like.collectives import library
from byteps_like.collectives.library import Algorithm
from byteps_like.collectives.planning import compile
from byteps_like.collectives.schedules.schedule import Buffer, Kind, Layout
from byteps_like.errors import InvalidArgumentError

ROWS = list(library.algorithms())
FLAT_OR_GRID = [Layout((0, 0, 1, 1)), Layout((0, 1, 0, 1)), Layout((0, 0, 0, 1, 1, 1)), Layout((0, 1, 2, 3, 4))]
SIZES = st.lists(st.sampled_from([0, 0, 1, 3, 16, 17, 40, 200]), min_size=36, max_size=36)


def _run(row: Algorithm, layout: Layout, counts: list[int], root: int) -> tuple[Arrays, Arrays]:
    name = "multi_ring:1" if row.name == "multi_ring" else row.name
    schedules = [library.rank_schedule(row.kind, name, rank, layout, root) for rank in range(layout.size)]
    tables = [compile.tables(one, counts, 8) for one in schedules]
    random = np.random.default_rng(3)
    inputs = [random.integers(0, 1000, sum(n for _, n in table.input) // 8) for table in tables]
    return inputs, Model(schedules, tables, inputs).run(seed=sum(counts))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.kind is not Kind.BARRIER], ids=lambda r: f"{r.kind}-{r.name}"
)
@settings(max_examples=12)
@given(layout=st.sampled_from(FLAT_OR_GRID), counts=SIZES, data=st.data())
def test_any_sizes_give_what_numpy_gives(
    row: Algorithm, layout: Layout, counts: list[int], data: st.DataObject
) -> None:
    if library.why_unavailable(row.kind, "multi_ring:1" if row.name == "multi_ring" else row.name, layout):
        layout = FLAT_OR_GRID[0]
    rooted = row.kind in (Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER, Kind.GATHER)
    root = data.draw(st.integers(0, layout.size - 1)) if rooted else 0
    inputs, outputs = _run(row, layout, counts, root)
    for found, wanted in zip(outputs, expected(row.kind, counts, inputs, root), strict=True):
        np.testing.assert_array_equal(found, wanted)


@given(st.integers(0, 5000), st.integers(1, 40), st.integers(1, 5))
def test_pieces_are_even_aligned_and_agree(nbytes: int, pieces: int, finer: int) -> None:
    found = compile.cut(nbytes, pieces)
    assert sum(length for _, length in found) == nbytes
    assert all(offset % compile.GRAIN == 0 or offset == nbytes for offset, _ in found)
    full = [length for _, length in found if length % compile.GRAIN == 0]
    assert not full or max(full) - min(full) <= 2 * compile.GRAIN
    assert [offset for offset, _ in found] == [offset for offset, _ in compile.cut(nbytes, pieces * finer)[::finer]]


def test_sections_apart() -> None:
    schedule = library.rank_schedule(Kind.ALL_GATHER, "ring", 1, Layout((0, 1, 2)))
    assert not compile.takes_runs(schedule, Buffer.OUTPUT)
    table = compile.scattered(schedule.output, [1, 0, 5], 4, [1000, 5000, 200])
    assert table == [(0, 4), (4000, 0), (-800, 20)]
    with pytest.raises(InvalidArgumentError, match="2 addresses for 3 parts"):
        compile.scattered(schedule.output, 1, 4, [1000, 5000])


@pytest.mark.parametrize("layout", [*FLAT_OR_GRID, Layout(tuple(range(9)))], ids=str)
def test_the_library_says_which_algorithms_need_sections_in_one_run(layout: Layout) -> None:
    for row in (
        row for row in ROWS if row.name != "multi_ring" and not library.why_unavailable(row.kind, row.name, layout)
    ):
        schedules = [library.rank_schedule(row.kind, row.name, rank, layout) for rank in range(layout.size)]
        found = [compile.takes_runs(one, buffer) for one in schedules for buffer in (Buffer.INPUT, Buffer.OUTPUT)]
        scattered_hosts = layout.hosts == (0, 1, 0, 1)  # their ranks' blocks are no run: they are copied
        assert any(found) == (row.runs and not (scattered_hosts and row.kind is Kind.ALL_TO_ALL)), row


def test_the_native_core_takes_every_program() -> None:
    core = pytest.importorskip("byteps_like._core", reason="the native core is not built")
    for row in ROWS:
        name = "multi_ring:1" if row.name == "multi_ring" else row.name
        schedule = library.rank_schedule(row.kind, name, 1, Layout((0, 0, 1, 1)))
        made = compile.program(row.kind, name, 1, Layout((0, 0, 1, 1)))
        assert made.steps == len(schedule.steps)
        tables = compile.tables(schedule, 8, 4)
        core.Plan(made, [0, 1, 2, 3], *tables)
        if schedule.alias is not None:
            compile.program(row.kind, name, 1, Layout((0, 0, 1, 1)), in_place=True)


def test_a_call_in_place_that_cannot_be_is_refused() -> None:
    schedule = library.rank_schedule(Kind.ALL_TO_ALL, "direct", 0, Layout((0, 1)))
    with pytest.raises(InvalidArgumentError, match="in place"):
        compile.arguments(schedule, in_place=True)


@pytest.mark.parametrize("kind, name", [(Kind.ALL_REDUCE, "ring"), (Kind.ALL_TO_ALL, "2dh")])
def test_tables_for_64_ranks_cost_less_than_a_millisecond(kind: Kind, name: str) -> None:
    schedule = library.rank_schedule(kind, name, 5, Layout(tuple(rank // 8 for rank in range(64))))

    def cost(count: int) -> float:
        began = time.process_time()
        compile.tables(schedule, count, 4)
        return time.process_time() - began

    assert min(cost(1_000_000 + extra) for extra in range(9)) < 1e-3, "of new sizes"
    assert min(cost(1_000_000) for _ in range(9)) < 1e-3, "of sizes seen before"
