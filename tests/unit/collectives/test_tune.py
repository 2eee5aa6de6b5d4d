"""Tuning against groups of threads: what is called, that all ranks agree, and that the selector takes the result."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from byteps_like.cli.main import app
from byteps_like.cli.tune import save, show
from byteps_like.collectives.api import CallOptions
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection import tune as tuning
from byteps_like.collectives.selection.measured_table import MeasuredTable, Point
from byteps_like.collectives.selection.selector import Selector
from byteps_like.collectives.selection.tune import Timing, TuneOptions, layout_of, tune
from byteps_like.errors import InvalidArgumentError
from tests.fakes.thread_group import GroupWorld, ThreadGroup

RANKS = 3
SLOW = 0.2
"""Seconds, beside which all else is fast, also where others have the machine."""
FAST = TuneOptions(sizes=(256, 4096), repeats=2, seconds=0.0)


class Uneven(ThreadGroup):
    """Direct takes rank 1 long; nobody can have `double_tree`."""

    def all_reduce(self, *arguments: Any) -> Any:
        options = arguments[-1]
        if not isinstance(options, CallOptions):  # tune's own
            return super().all_reduce(*arguments)
        if options.algorithm == "double_tree":
            raise InvalidArgumentError("not here")
        if options.algorithm == "direct" and self.rank == 1:
            time.sleep(SLOW)
        return super().all_reduce(*arguments)


def on_all_ranks(body: Any, kind: type[ThreadGroup] = ThreadGroup) -> list[Any]:
    world = GroupWorld()
    with ThreadPoolExecutor(RANKS) as pool:
        groups = [kind(world, "tune", tuple(range(RANKS)), rank) for rank in range(RANKS)]
        return [flight.result(timeout=20) for flight in [pool.submit(body, group) for group in groups]]


def test_the_layout_is_found_from_the_names_of_hosts() -> None:
    names = ["a", "b", "a"]
    assert on_all_ranks(lambda group: layout_of(group, names[group.rank])) == [Layout((0, 1, 0))] * RANKS


def test_every_kind_is_measured_and_all_ranks_agree() -> None:
    tables = on_all_ranks(lambda group: tune(group, Layout((0, 1, 2)), FAST))
    assert tables[0].worlds == tables[1].worlds == tables[2].worlds
    kinds = tables[0].worlds[0, 1, 2]
    assert set(kinds) == set(Kind) - {Kind.BARRIER}
    assert all([point.nbytes for point in points] == [256, 4096] for points in kinds.values())
    assert set(kinds[Kind.ALL_TO_ALL][0].seconds) == {"direct", "pairwise", "bruck"}


def test_the_slowest_rank_counts_and_what_is_slow_is_not_measured_again() -> None:
    options = TuneOptions((Kind.ALL_REDUCE,), (256, 1024), repeats=1, seconds=0.0, slow=3.0)
    small, large = on_all_ranks(lambda group: tune(group, Layout((0, 1, 2)), options), Uneven)[0].worlds[0, 1, 2][
        Kind.ALL_REDUCE
    ]
    assert small.seconds["direct"] > SLOW, "rank 1's time is everybody's"
    assert "double_tree" not in small.seconds
    best = min(small.seconds.values())
    assert set(large.seconds) == {name for name, seconds in small.seconds.items() if seconds <= 3.0 * best}
    assert large.seconds.keys() and "direct" not in large.seconds


def test_what_is_measured_is_saved_beside_other_layouts_and_chosen(tmp_path: Path) -> None:
    other, here = MeasuredTable(), MeasuredTable()
    other.put(Layout((0, 1)), Kind.REDUCE, [Point(1, {"chain": 1.0})])
    here.put(Layout((5, 5, 9)), Kind.BROADCAST, [Point(1024, {"chain": 2.0, "binomial": 1.0})])
    save(tmp_path / "t.json", other, Layout((0, 1)))
    save(tmp_path / "t.json", here, Layout((5, 5, 9)))
    selector = Selector.from_settings(collective_table=str(tmp_path / "t.json"))
    assert selector.choose(Kind.REDUCE, 1 << 20, Layout((3, 4))).algorithm == "chain"
    assert selector.choose(Kind.BROADCAST, 1 << 20, Layout((0, 0, 1))).algorithm == "binomial"


def test_the_table_that_is_shown_names_the_fastest() -> None:
    table = show([Timing(Kind.REDUCE, 256, "chain", 3e-6), Timing(Kind.REDUCE, 256, "binomial", 2e-6)])
    assert [list(column.cells) for column in table.columns] == [
        ["reduce"], ["256"], ["binomial"], ["2.0"], ["chain"], ["1.50"],
    ]  # fmt: skip


def test_the_command_measures_and_writes_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("BYTEPS_", "DMLC_", "WORLD_SIZE", "RANK"))]:
        monkeypatch.delenv(name)
    file = tmp_path / "table.json"
    words = ["tune", "collectives", str(file), "--largest", "1024", "--repeats", "1", "--kinds", "all_reduce,reduce"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert f"BYTEPS_LIKE_COLLECTIVE_TABLE={file}" in result.output.replace("\n", "")
    kinds = MeasuredTable.load(file).worlds[0,]
    assert {kind: [point.nbytes for point in points] for kind, points in kinds.items()} == {
        Kind.ALL_REDUCE: [256, 1024],
        Kind.REDUCE: [256, 1024],
    }


def test_an_unknown_kind_is_refused() -> None:
    from byteps_like.cli.tune import _kinds

    with pytest.raises(InvalidArgumentError, match="allreduce"):
        _kinds("allreduce")
    assert tuning.SIZES[0] == 256 and tuning.SIZES[-1] == 64 << 20
