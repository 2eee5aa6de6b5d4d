"""The scheduler's tables through views of other sizes and members: what holds is what the view in force says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.members.barriers import Barriers
from byteps_like.control.members.meetings import Meetings
from byteps_like.control.placing.declarations import Declarations
from byteps_like.control.placing.placement import Placer
from byteps_like.control.placing.weights import server_weights
from byteps_like.control.types import View
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.worker.api import Answer, Declared, Meeting, Question, TensorSpec
from tests.fakes.views import view_of

MEMBERS = st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True)
SERVERS = st.dictionaries(st.integers(100, 109), st.integers(1, 3), min_size=1, max_size=4)
W = TensorSpec("w", DType.INT8, (9000,))


def table_of(view: View) -> Declarations:
    """A table whose placer is the first view's."""
    return Declarations(view, placer_of(view))


def placer_of(view: View) -> Placer:
    """Of the servers of `view`, by their weights in it."""
    return Placer.of(view, 4096, server_weights(view))


def in_turn(members: list[int]) -> list[bool]:
    """What they hear one after the other: the last completes the barrier."""
    return [member == members[-1] for member in members]


def bytes_by_shard(placed: Declared) -> dict[tuple[int, int], int]:
    """What each (server, shard) has of a tensor."""
    found: dict[tuple[int, int], int] = {}
    for part in placed.partitions:
        found[part.server, part.shard] = found.get((part.server, part.shard), 0) + part.nbytes
    return found


@given(MEMBERS)
def test_ranks_are_places_in_the_view(members: list[int]) -> None:
    view = view_of(members)
    assert view.size == len(members)
    assert view.ranks == {member: rank for rank, member in enumerate(members)}


def test_whoever_stays_keeps_the_name_and_whoever_left_has_no_say_in_it() -> None:
    table = table_of(view_of([5, 6, 7], {100: 1}))
    placed, _ = [table.declare(member, [W])[0] for member in (5, 6)]
    table.follow(view_of([6, 8], {100: 1}, number=2))
    assert table.declare(8, [W]) == [placed]
    with pytest.raises(MismatchError, match=r"'w': rank 1 declared int8 \[1\], but ranks 0, 1 declared int8 \[9000\]"):
        table.declare(8, [TensorSpec("w", DType.INT8, (1,))])
    for member in (6, 8):
        table.retire(member, [placed.tensor_id])
    assert table.declare(6, [W])[0].tensor_id != placed.tensor_id, "5, which left, must not hold the name"


@pytest.mark.parametrize("left", [[], [8]])
def test_what_only_those_who_left_had_not_retired_is_let_go(left: list[int]) -> None:
    table = table_of(view_of([5, 6, 7], {100: 1}))
    placed = [table.declare(member, [W])[0] for member in (5, 6)]
    table.retire(5, [placed[0].tensor_id])
    table.follow(view_of([5, *left], {100: 1}, number=2))
    other = TensorSpec("w", DType.FLOAT32, (3,))
    assert table.declare(5, [other])[0].spec == other


def test_an_epoch_of_new_members_begins_with_an_empty_table() -> None:
    table = table_of(view_of([1, 2], {100: 1}))
    table.declare(1, [W])
    table.follow(view_of([3, 4], {100: 1}, number=2))
    assert table.replan(placer_of(view_of([3, 4], {100: 1}))) == ()
    other = TensorSpec("w", DType.FLOAT32, (3,))
    assert table.declare(4, [other])[0].spec == other


@given(SERVERS, SERVERS, st.lists(st.integers(1, 1 << 19), min_size=1, max_size=5))
def test_after_a_change_of_servers_tensors_lie_as_if_placed_in_the_new_view_first(
    before: dict[int, int], after: dict[int, int], sizes: list[int]
) -> None:
    first, second = view_of([1, 2], before), view_of([2, 3], after, number=2)
    specs = [TensorSpec(str(number), DType.INT8, (size,)) for number, size in enumerate(sizes)]
    table, fresh = table_of(first), placer_of(second)
    for member in (1, 2):
        table.declare(member, specs)
    table.follow(second)
    moves = table.replan(placer_of(second))
    for move, spec in zip(moves, specs, strict=True):
        moved = Declared(spec, move.new_id, move.partitions)
        assert bytes_by_shard(moved) == bytes_by_shard(fresh.place(move.new_id, spec))


@given(MEMBERS, MEMBERS, st.integers(0, 3), st.data())
def test_a_barrier_waits_for_the_members_of_the_view_in_force(
    before: list[int], after: list[int], rounds: int, data: st.DataObject
) -> None:
    barriers, calls = Barriers(), dict.fromkeys(range(10), 0)
    barriers.follow(view_of(before))
    for _ in range(rounds):
        assert [barriers.arrive("a", calls[member], member) for member in before] == in_turn(before)
        calls.update((member, calls[member] + 1) for member in before)
    come = data.draw(st.lists(st.sampled_from(before), max_size=len(before) - 1, unique=True))
    assert not any(barriers.arrive("a", calls[member], member) for member in come)
    stayed = [member for member in come if member in after]
    complete = barriers.follow(view_of(after, number=2))
    assert complete == (["a"] if set(stayed) == set(after) else [])
    if not complete:
        assert barriers.missing("a") == [rank for rank, member in enumerate(after) if member not in come]
        late = [member for member in after if member not in come]
        assert [barriers.arrive("a", calls[member], member) for member in late] == in_turn(late)


def test_a_member_that_joins_counts_its_barriers_from_its_own_first() -> None:
    barriers = Barriers()
    barriers.follow(view_of([1, 2]))
    for number in range(3):
        assert [barriers.arrive("a", number, member) for member in (1, 2)] == [False, True]
    barriers.follow(view_of([2, 9], number=2))
    barriers.follow(view_of([2, 9, 10], number=3))
    assert [barriers.arrive("a", 0, 9), barriers.arrive("a", 3, 2), barriers.arrive("a", 0, 10)] == [False, False, True]
    assert barriers.arrive("a", 0, 9), "a repeated call, whose answer was lost"
    with pytest.raises(InvalidArgumentError, match="rank 1 is in barrier 'a' already"):
        [barriers.arrive("a", 1, 9) for _ in range(2)]


def test_ranks_that_disagree_do_so_within_one_view() -> None:
    def at(data: str) -> list[Meeting]:
        return [Meeting("x", 0, "'x'", f"allreduce of {data}", data)]

    meetings = Meetings()
    meetings.follow(view_of([1, 2, 3]))
    assert meetings.report(1, at("a")) == []
    meetings.follow(view_of([1, 3], number=2))
    assert meetings.report(0, at("b")) == [], "rank 1 was another member's"
    assert len(meetings.report(1, at("a"))) == 1


def test_ranks_that_wait_for_each_other_are_those_of_the_view() -> None:
    def blocked(point: str) -> list[Meeting]:
        return [Meeting(point, 0, f"'{point}'", "allreduce", "a", blocks=True)]

    def asked(ranks: Sequence[int]) -> Question:
        for rank in ranks:
            meetings.report(rank, blocked("xy"[rank % 2]))
        found = meetings.question()
        assert found is not None
        assert found[1] == list(ranks)
        return found[0]

    meetings = Meetings()
    meetings.follow(view_of([1, 2, 3]))
    before = asked(range(3))
    meetings.follow(view_of([1, 3], number=2))
    question = asked(range(2))
    begun = {0: (True, False), 1: (False, True)}
    late = [meetings.report(rank, blocked("xy"[rank]), Answer(before.number, begun[rank])) for rank in range(2)]
    assert not any(late), "answers of the view before prove nothing"
    now = [meetings.report(rank, blocked("xy"[rank]), Answer(question.number, begun[rank])) for rank in range(2)]
    assert [one.ranks for one in now[1]] == [(0, 1)]


def test_barriers_of_workers_who_are_all_gone_are_forgotten() -> None:
    barriers = Barriers()
    for number, members in enumerate([(1, 2), (3, 4)], 1):
        barriers.follow(view_of(members, number=number))
        assert not barriers._completed
        for call in range(3):
            assert [barriers.arrive(f"of view {number}", call, member) for member in members] == [False, True]
