"""What is chosen: forced, measured, by default; never what can't be had; and why."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.collectives import library
from byteps_like.collectives.schedules.schedule import Kind, Layout
from byteps_like.collectives.selection import selector
from byteps_like.collectives.selection.default_table import RULES, SHARED
from byteps_like.collectives.selection.forced import parse_forced
from byteps_like.collectives.selection.measured_table import MeasuredTable, Point
from byteps_like.collectives.selection.selector import Limits, Selector
from byteps_like.config import Config
from byteps_like.errors import ConfigError, InvalidArgumentError

FOUR_HOSTS = Layout((0, 1, 2, 3))
GRID = Layout(tuple(rank // 4 for rank in range(16)))
ONE_HOST = Layout((0, 0, 0, 0))


def chosen(kind: Kind, nbytes: int, layout: Layout, **options: object) -> str:
    return Selector().choose(kind, nbytes, layout, **options).algorithm


@settings(max_examples=200)
@given(
    st.sampled_from(list(Kind)),
    st.integers(0, 1 << 31),
    st.lists(st.integers(0, 5), min_size=1, max_size=20),
    st.builds(Limits, st.sampled_from(["", "they have none"]), st.booleans(), st.booleans()),
)
def test_every_call_gets_what_it_can_have(kind: Kind, nbytes: int, hosts: list[int], limits: Limits) -> None:
    layout = Layout(tuple(hosts))
    choice = Selector().choose(kind, nbytes, layout, limits=limits)
    assert 0 < choice.segment_bytes <= 256 << 10
    if choice.algorithm == SHARED:
        assert not limits.apart and len(set(hosts)) == 1
    else:
        assert library.why_unavailable(kind, choice.algorithm, layout) == ""
        assert limits.known_sizes or not library.find(kind, choice.algorithm).relays


def test_the_default_table_names_only_what_there_is() -> None:
    for kind, rules in RULES.items():
        assert {rule.algorithm for rule in rules} <= set(library.TABLE[kind])
        assert rules[-1].up_to is None and rules[-1].ranks is None, "the last rule takes everything"


def test_by_default() -> None:
    assert chosen(Kind.ALL_REDUCE, 1 << 26, ONE_HOST) == "shared"
    assert chosen(Kind.ALL_REDUCE, 1 << 26, FOUR_HOSTS) == "ring"
    assert chosen(Kind.ALL_REDUCE, 1 << 26, GRID) == "hierarchical"
    assert chosen(Kind.ALL_REDUCE, 64, FOUR_HOSTS) == "recursive_doubling"
    assert chosen(Kind.ALL_TO_ALL, 64 << 10, GRID) == "2dh"
    assert chosen(Kind.ALL_TO_ALL, 64 << 10, GRID, limits=Limits(known_sizes=False)) == "pairwise"


def test_sections_that_lie_apart_rule_out_runs() -> None:
    layout = Layout(tuple(range(12)))
    assert chosen(Kind.ALL_GATHER, 100 << 10, layout) == "recursive_doubling"
    assert chosen(Kind.ALL_GATHER, 100 << 10, layout, limits=Limits(one_run=False)) == "ring"


@pytest.mark.parametrize(
    "text, found",
    [
        ("", {}),
        ("all_reduce=ring", {Kind.ALL_REDUCE: "ring"}),
        ("all_reduce=multi_ring:1,5, all_to_all=2dh", {Kind.ALL_REDUCE: "multi_ring:1,5", Kind.ALL_TO_ALL: "2dh"}),
        ("ring", dict.fromkeys((Kind.ALL_REDUCE, Kind.REDUCE_SCATTER, Kind.ALL_GATHER), "ring")),
        ("chain,broadcast=binomial", {Kind.BROADCAST: "binomial", Kind.REDUCE: "chain"}),
    ],
)
def test_what_is_forced(text: str, found: dict[Kind, str]) -> None:
    assert parse_forced(text) == found


@pytest.mark.parametrize("text", ["rings", "all_reduce=bruck", "allreduce=ring", "=ring"])
def test_what_cannot_be_forced_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="collective_algorithm"):
        Selector(text)


def test_the_settings_force_it() -> None:
    config = Config.from_env({"BYTEPS_LIKE_COLLECTIVE_ALGORITHM": "all_reduce=double_tree"})
    made = Selector.from_settings(config.collective_algorithm, config.collective_table)
    choice = made.choose(Kind.ALL_REDUCE, 64, ONE_HOST)
    assert (choice.algorithm, choice.why) == ("double_tree", "the settings force it")
    assert made.choose(Kind.ALL_REDUCE, 64, ONE_HOST, algorithm="ring").algorithm == "ring", "the call goes first"


def test_what_is_forced_for_all_kinds_gives_way_where_it_cannot_be_had() -> None:
    assert Selector("hierarchical").choose(Kind.ALL_REDUCE, 64, ONE_HOST).algorithm == "shared"
    with pytest.raises(InvalidArgumentError, match="share one host"):
        Selector("all_reduce=hierarchical").choose(Kind.ALL_REDUCE, 64, ONE_HOST)
    with pytest.raises(InvalidArgumentError, match="share one host"):
        Selector().choose(Kind.ALL_REDUCE, 64, ONE_HOST, algorithm="hierarchical")


def measured() -> MeasuredTable:
    table = MeasuredTable()
    small = Point(1 << 10, {"ring": 9e-5, "double_tree": 5e-5})
    large = Point(1 << 20, {"ring": 1e-3, "hierarchical": 0.5e-3, "direct": 2e-3}, 64 << 10)
    table.put(FOUR_HOSTS, Kind.ALL_REDUCE, [large, small])
    return table


def test_what_was_measured_goes_before_the_default(tmp_path: Path) -> None:
    measured().save(tmp_path / "table.json")
    made = Selector.from_settings(collective_table=str(tmp_path / "table.json"))
    same_layout = Layout((7, 3, 9, 1))
    assert made.choose(Kind.ALL_REDUCE, 3 << 10, same_layout).algorithm == "double_tree"
    choice = made.choose(Kind.ALL_REDUCE, 100 << 10, same_layout)
    assert (choice.algorithm, choice.segment_bytes) == ("ring", 64 << 10), "the fastest that this layout can have"
    assert made.choose(Kind.ALL_REDUCE, 1 << 26, GRID).algorithm == "hierarchical", "another layout: the default"
    assert made.choose(Kind.ALL_REDUCE, 3 << 10, same_layout, reduction="ordered").algorithm == "recursive_doubling"


@pytest.mark.parametrize("text", ["", "[]", '{"version": 2, "worlds": []}', '{"version": 1, "worlds": [{"hosts": 3}]}'])
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(ConfigError, match=r"table\.json"):
        Selector.from_settings(collective_table=str(tmp_path / "table.json"))


def test_explain_tells_all() -> None:
    text = Selector(measured=measured()).explain(Kind.ALL_REDUCE, 1 << 20, FOUR_HOSTS)
    assert text.startswith("all_reduce of 1048576 bytes on 4 ranks, 4 hosts: ring, segments of 65536 bytes\nbecause")
    assert "ring: 6 rounds, 6 messages and 1572864 bytes from the busiest rank; measured 1000 µs" in text
    assert "hierarchical: one rank on each host" in text
    assert "shared: its ranks are on several hosts" in text


def test_a_choice_costs_microseconds() -> None:
    def cost() -> float:
        began = time.process_time()
        for nbytes in range(1000):
            selector.DEFAULT.choose(Kind.ALL_REDUCE, nbytes, GRID)
        return time.process_time() - began

    assert min(cost() for _ in range(5)) < 30e-3
