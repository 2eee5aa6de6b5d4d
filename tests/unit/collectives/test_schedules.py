"""Every generator under the checker: all numbers of ranks up to 33, all roots, host layouts; and wrong ones refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.collectives import library
from byteps_like.collectives.algorithms import hierarchical
from byteps_like.collectives.library import Algorithm
from byteps_like.collectives.schedules import count
from byteps_like.collectives.schedules.builder import Task
from byteps_like.collectives.schedules.check import check
from byteps_like.collectives.schedules.dependencies import ScheduleError
from byteps_like.collectives.schedules.schedule import Kind, Layout, RankSchedule, StepKind
from byteps_like.errors import InvalidArgumentError

ROWS = list(library.algorithms())


def _name(row: Algorithm) -> str:
    return f"{row.kind}-{row.name}"


ROOTED = (Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER, Kind.GATHER)
LARGEST = 33


def grid(hosts: int, ranks: int) -> Layout:
    return Layout(tuple(rank // ranks for rank in range(hosts * ranks)))


def flat(size: int) -> Layout:
    return grid(size, 1)


def full_name(row: Algorithm, size: int) -> str:
    if row.name != "multi_ring":
        return row.name
    if 3 <= size <= 12:
        return f"multi_ring:1,{size - 1}"
    return f"multi_ring:{max(1, size - 1)}"


def everybody(kind: Kind, name: str, layout: Layout, root: int = 0) -> list[RankSchedule]:
    return [library.rank_schedule(kind, name, rank, layout, root) for rank in range(layout.size)]


def prove(row: Algorithm, layout: Layout) -> None:
    """Right, and what is counted is what the formula says."""
    name = full_name(row, layout.size)
    schedules = everybody(row.kind, name, layout)
    graph = check(row.kind, schedules)
    counted, formula = count.measured(schedules, graph), library.cost(row.kind, name, layout)
    assert (counted.messages, counted.sections) == (formula.messages, formula.sections)
    assert counted.rounds <= formula.rounds
    grid_like = len({len(ranks) for ranks in layout.members}) == 1
    if grid_like and layout.size & (layout.size - 1) == 0:
        assert counted.rounds == formula.rounds


def layouts(size: int) -> Iterator[Layout]:
    """One rank on each host, and hosts of 3 ranks with the rest on the last: full grids, uneven ones, one host."""
    yield flat(size)
    if size <= 4 or size % 4 == 1 or size % 6 == 0:
        yield Layout(tuple(rank // 3 for rank in range(size)))


@pytest.mark.parametrize("row", ROWS, ids=_name)
@pytest.mark.slow
def test_right_for_all_sizes(row: Algorithm) -> None:
    for size in range(1, LARGEST + 1):
        for layout in layouts(size):
            if not library.why_unavailable(row.kind, full_name(row, size), layout):
                prove(row, layout)


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_right_in_place(row: Algorithm) -> None:
    for layout in (flat(1), flat(2), flat(5), flat(8), grid(2, 3), grid(3, 4), Layout((0, 0, 0, 1, 1))):
        name = full_name(row, layout.size)
        if not library.why_unavailable(row.kind, name, layout):
            check(row.kind, everybody(row.kind, name, layout), in_place=True)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind in ROOTED], ids=_name)
def test_right_for_all_roots(row: Algorithm) -> None:
    for layout in (flat(2), flat(3), flat(8), flat(13), grid(3, 3)):
        for root in range(layout.size):
            check(row.kind, everybody(row.kind, row.name, layout, root), root)


@settings(max_examples=60)
@given(st.sampled_from(ROWS), st.lists(st.integers(0, 4), min_size=1, max_size=14))
def test_right_for_any_layout(row: Algorithm, hosts: list[int]) -> None:
    layout = Layout(tuple(hosts))  # hosts of any sizes, their ranks anywhere
    if not library.why_unavailable(row.kind, full_name(row, layout.size), layout):
        prove(row, layout)


def test_every_algorithm_is_tested_on_two_levels() -> None:
    for row in ROWS:
        assert not library.why_unavailable(row.kind, full_name(row, 12), grid(3, 4)), row


# What is counted in particular


def test_a_ring_uses_only_links_to_neighbours_and_all_alike() -> None:
    links = count.links(everybody(Kind.ALL_REDUCE, "ring", flat(6)))
    assert links == {(rank, (rank + 1) % 6): count.TrafficCount(10, Fraction(10, 6)) for rank in range(6)}


@pytest.mark.parametrize("hosts, ranks", [(2, 4), (4, 4), (3, 2)])
def test_hierarchical_crosses_with_the_ranks_share_of_a_rings_bytes(hosts: int, ranks: int) -> None:
    layout = grid(hosts, ranks)
    across = count.sent(everybody(Kind.ALL_REDUCE, "hierarchical", layout), layout)
    per_rank = hierarchical.across_cost(Task(0, layout))
    assert {traffic.sections for traffic in across} == {per_rank}
    flat_ring = count.sent(everybody(Kind.ALL_REDUCE, "ring", flat(hosts)), flat(hosts))
    assert per_rank == flat_ring[0].sections / ranks


def test_2dh_sends_6_messages_for_15() -> None:
    layout = grid(4, 4)
    for name, messages in (("2dh", 6), ("pairwise", 15)):
        sent = count.sent(everybody(Kind.ALL_TO_ALL, name, layout))
        assert {traffic.messages for traffic in sent} == {messages}
        across = count.sent(everybody(Kind.ALL_TO_ALL, name, layout), layout)
        assert {traffic.sections for traffic in across} == {12}, "the same bytes cross in both"


@pytest.mark.parametrize("kind", [Kind.ALL_GATHER, Kind.REDUCE_SCATTER])
def test_two_levels_enter_each_host_once_with_each_section(kind: Kind) -> None:
    layout = Layout((0, 0, 0, 1, 1, 2))
    across = count.sent(everybody(kind, "two_level", layout), layout)
    assert sum(traffic.sections for traffic in across) == 6 * 2


def test_two_rings_share_their_bytes_between_their_links() -> None:
    links = count.links(everybody(Kind.ALL_REDUCE, "multi_ring:1,5", flat(6)))
    assert set(links) == {(rank, (rank + step) % 6) for rank in range(6) for step in (1, 5)}
    assert {traffic.sections for traffic in links.values()} == {Fraction(10, 12)}


# What can't be had


@pytest.mark.parametrize(
    "kind, name, layout, reason",
    [
        (Kind.ALL_REDUCE, "multi_ring:2", flat(4), "stride 2"),
        (Kind.ALL_REDUCE, "multi_ring", flat(4), "needs strides"),
        (Kind.ALL_REDUCE, "hierarchical", grid(1, 4), "share one host"),
        (Kind.ALL_TO_ALL, "2dh", Layout((0, 0, 1)), "different numbers"),
        (Kind.ALL_REDUCE, "bruck", flat(4), "it has ring"),
    ],
)
def test_what_cannot_be_had_says_why(kind: Kind, name: str, layout: Layout, reason: str) -> None:
    with pytest.raises(InvalidArgumentError, match=reason):
        library.rank_schedule(kind, name, 0, layout)


# The checker refuses what is wrong


def mutated(schedules: list[RankSchedule], rank: int, index: int, **changes: object) -> list[RankSchedule]:
    steps = list(schedules[rank].steps)
    steps[index] = replace(steps[index], **changes)
    return [replace(one, steps=tuple(steps)) if one.rank == rank else one for one in schedules]


@settings(max_examples=60)
@given(st.sampled_from(ROWS), st.integers(2, 7), st.data())
def test_a_dropped_step_is_refused(row: Algorithm, size: int, data: st.DataObject) -> None:
    layout = grid(3, 2) if row.why_unavailable(Task(0, flat(size))) else flat(size)
    schedules = everybody(row.kind, full_name(row, layout.size), layout)
    rank = data.draw(st.integers(0, layout.size - 1))
    steps = schedules[rank].steps
    dropped = data.draw(st.integers(0, len(steps) - 1))
    schedules[rank] = replace(schedules[rank], steps=steps[:dropped] + steps[dropped + 1 :])
    with pytest.raises(ScheduleError):
        check(row.kind, schedules)


@pytest.mark.parametrize("row", [row for row in ROWS if row.kind is not Kind.BARRIER], ids=_name)
def test_a_wrong_tag_is_refused(row: Algorithm) -> None:
    layout = grid(2, 2) if row.why_unavailable(Task(0, flat(4))) else flat(4)
    schedules = everybody(row.kind, full_name(row, 4), layout)
    for rank, one in enumerate(schedules):
        for index, step in enumerate(one.steps):
            if step.kind is StepKind.SEND:
                with pytest.raises(ScheduleError, match="no partner"):
                    check(row.kind, mutated(schedules, rank, index, tag=step.tag + 7))


def test_swapped_tags_are_refused() -> None:
    schedules = everybody(Kind.ALL_REDUCE, "ring", flat(4))
    first, second = (n for n, step in enumerate(schedules[1].steps) if step.kind is StepKind.SEND and step.tag < 2)
    swapped = mutated(mutated(schedules, 1, first, tag=1), 1, second, tag=0)
    with pytest.raises(ScheduleError):
        check(Kind.ALL_REDUCE, swapped)


@pytest.mark.parametrize("name", ["ring", "direct", "double_tree", "recursive_doubling"])
def test_a_contribution_reduced_twice_is_refused(name: str) -> None:
    schedules = everybody(Kind.ALL_REDUCE, name, flat(4))
    sender = schedules[0]
    index, send = next((n, step) for n, step in enumerate(sender.steps) if step.kind is StepKind.SEND)
    receiver = schedules[send.peer]
    place = next(n for n, step in enumerate(receiver.steps) if step.peer == 0 and step.kind is StepKind.RECEIVE_REDUCE)
    reduce = receiver.steps[place]
    again = replace(reduce, tag=999, source=reduce.target)
    first = (*sender.steps[: index + 1], replace(send, tag=999), *sender.steps[index + 1 :])
    schedules[0] = replace(sender, steps=first)
    steps = (*receiver.steps[: place + 1], again, *receiver.steps[place + 1 :])
    schedules[send.peer] = replace(receiver, steps=steps)
    with pytest.raises(ScheduleError, match="twice"):
        check(Kind.ALL_REDUCE, schedules)


@pytest.mark.parametrize("name", ["ring", "halving_doubling", "double_tree", "direct", "hierarchical"])
def test_a_wrong_final_is_refused(name: str) -> None:
    layout = grid(2, 2)
    schedules = everybody(Kind.ALL_REDUCE, name, layout)
    for rank, one in enumerate(schedules):
        for index, step in enumerate(one.steps):
            if step.kind is StepKind.RECEIVE_REDUCE:
                with pytest.raises(ScheduleError, match="final"):
                    check(Kind.ALL_REDUCE, mutated(schedules, rank, index, final=not step.final))


def test_steps_that_wait_for_each_other_are_refused() -> None:
    schedules = everybody(Kind.ALL_GATHER, "ring", flat(2))
    backwards = [replace(one, steps=_received_before_sent(one)) for one in schedules]
    with pytest.raises(ScheduleError, match=r"wait for themselves: rank \d step"):
        check(Kind.ALL_GATHER, backwards)


def _received_before_sent(one: RankSchedule) -> tuple[object, ...]:
    """Receives the other's section first, then sends that very one back."""
    send, receive, copy = one.steps
    return (receive, replace(send, source=receive.target), copy)
