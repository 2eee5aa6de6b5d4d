"""One name, one shape and dtype; barriers count ranks."""

from dataclasses import replace

import pytest

from byteps_like.control.members.barriers import Barriers
from byteps_like.control.placing import declarations
from byteps_like.control.placing.declarations import Declarations, name_keys
from byteps_like.control.placing.placement import Placer
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.worker.api import Declared, TensorSpec
from tests.fakes.views import view_of


def test_all_ranks_get_the_same_partitions_and_empty_tensors_none() -> None:
    table = Declarations(view_of(range(3)), Placer([1, 1], 4096))
    specs = [
        TensorSpec("a", DType.FLOAT32, (5000,)),
        TensorSpec("empty", DType.INT8, (0, 3)),
        TensorSpec("b", DType.INT8, (7,)),
    ]
    first = table.declare(0, specs)
    assert table.declare(1, list(reversed(specs))) == list(reversed(first))
    assert [item.tensor_id for item in first] == [0, 1, 2]
    assert first[1].partitions == ()


@pytest.mark.parametrize("other", [TensorSpec("w", DType.FLOAT32, (3, 5)), TensorSpec("w", DType.INT8, (3, 4))])
def test_a_mismatch_names_the_ranks_and_what_each_declared(other: TensorSpec) -> None:
    table = Declarations(view_of(range(3)), Placer([1], 4096))
    for rank in (0, 2):
        table.declare(rank, [TensorSpec("w", DType.FLOAT32, (3, 4))])
    with pytest.raises(MismatchError) as caught:
        table.declare(1, [other])
    shown = f"{other.dtype.name.lower()} {list(other.shape)}"
    assert f"'w': rank 1 declared {shown}, but ranks 0, 2 declared float32 [3, 4]" in str(caught.value)
    assert (caught.value.key, caught.value.rank) == ("w", 1)


def test_a_codec_is_agreed_on_and_named():
    table = Declarations(view_of(range(3)), Placer([1], 4096))
    table.declare(0, [TensorSpec("w", DType.FLOAT32, (3,), codec="onebit:block=512")])
    with pytest.raises(MismatchError, match=r"rank 1 declared float32 \[3\], but rank 0 declared .* by codec onebit"):
        table.declare(1, [TensorSpec("w", DType.FLOAT32, (3,))])


def test_keys_of_preludes_have_the_names_of_their_partitions():
    assert name_keys(f"key {1 << 63 | 2 << 16 | 5}", {2: "w"}) == "'w' (partition 5)"


def test_keys_of_shares_have_the_names_of_their_partitions():
    assert name_keys(f"key {3 << 56 | 2 << 16 | 5}", {2: "w"}) == "'w' (partition 5, share 2)"


def test_reuse_of_a_name_on_one_rank() -> None:
    table = Declarations(view_of(range(3)), Placer([1], 4096))
    table.declare(0, [TensorSpec("w", DType.FLOAT32, (3,))])
    with pytest.raises(MismatchError, match="use another name"):
        table.declare(0, [TensorSpec("w", DType.FLOAT32, (4,))])


def test_tensors_that_move_for_days_cost_no_more_than_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(declarations, "MOST_NAMES", 16)
    monkeypatch.setattr(declarations, "MOST_PARTS", 16)
    table, specs = (
        Declarations(view_of(range(3)), Placer([1], 4096)),
        [TensorSpec(name, DType.INT8, (8000,)) for name in "ab"],
    )
    placed = table.declare(0, specs)
    for number in range(100):
        moves = table.replan(Placer([1], 4096 * (1 + number % 2)))
        assert table.name_keys(f"key {moves[1].new_id << 16}") == "'b' (partition 0)"
    assert len(table._names) <= 8
    table.retire(0, [item.tensor_id for item in placed])
    assert (table._names, table._parts) == ({}, 0)
    assert set(table._placer.loads().values()) == {0}


def test_a_name_stays_until_all_that_have_declared_it_are_done_with_it() -> None:
    table, spec = Declarations(view_of(range(3)), Placer([1, 1], 4096)), TensorSpec("w", DType.INT8, (9000,))
    (placed,) = table.declare(0, [spec])
    table.declare(1, [spec])
    table.retire(0, [placed.tensor_id])
    assert table.declare(0, [spec]) == [placed]
    table.retire(1, [placed.tensor_id])
    assert table.declare(2, [spec]) == [placed]
    for rank in (0, 2):
        table.retire(rank, [placed.tensor_id])
    (again,) = table.declare(1, [spec])
    assert again.tensor_id != placed.tensor_id
    assert sum(table._placer.loads().values()) == 9000


def test_barriers() -> None:
    barriers = Barriers()
    barriers.follow(view_of(range(3)))
    assert not barriers.arrive("a", 0, 0)
    assert not barriers.arrive("b", 0, 1)
    assert not barriers.arrive("a", 0, 2)
    assert (barriers.missing("a"), barriers.pending()) == ([1], ["a", "b"])
    with pytest.raises(InvalidArgumentError, match="rank 2 is in barrier 'a' already"):
        barriers.arrive("a", 0, 2)
    barriers.withdraw("b", 1)
    assert barriers.arrive("a", 0, 1)
    assert barriers.pending() == []
    assert barriers.arrive("a", 0, 2)  # a repeated call, whose answer was lost
    assert not barriers.arrive("a", 1, 1)


def test_barriers_without_those_who_come_no_more() -> None:
    barriers = Barriers()
    barriers.follow(view_of(range(4)))
    assert not any([barriers.arrive("a", 0, 0), barriers.arrive("a", 0, 1), barriers.arrive("b", 0, 3)])
    assert barriers.leave_out({3}) == []
    assert (barriers.missing("a"), barriers.pending()) == ([2], ["a"])
    assert barriers.leave_out({3}) == []
    assert barriers.leave_out({2, 3}) == ["a"]
    assert [barriers.arrive("b", 0, member) for member in (0, 1)] == [False, True]
    barriers.follow(view_of(range(5, 7), number=2))
    assert [barriers.arrive("b", 0, member) for member in (5, 6)] == [False, True]


@pytest.mark.parametrize(
    ("kinds", "can"), [([], False), ([""], False), (["finish", ""], True), (["finish", "raise"], False)]
)
def test_workers_can_be_lost_where_all_that_servers_keep_is_declared_so(kinds: list[str], can: bool) -> None:
    table = Declarations(view_of(range(2)), Placer([1], 4096))
    table.declare(0, [TensorSpec(f"w{n}", DType.INT8, (9,), on_loss=kind) for n, kind in enumerate(kinds)])
    assert table.can_lose_workers is can


def test_what_is_let_go_of_has_no_say_in_losses() -> None:
    table = Declarations(view_of(range(2)), Placer([1], 4096))
    specs = [TensorSpec(kind, DType.INT8, (9,), on_loss=kind) for kind in ("raise", "finish")]
    raising, _ = [placed for rank in (0, 1) for placed in table.declare(rank, specs)][:2]
    table.retire(0, [raising.tensor_id])
    assert not table.can_lose_workers
    table.retire(1, [raising.tensor_id])
    assert table.can_lose_workers


def test_what_servers_keep_stays_in_the_next_view() -> None:
    given = [view_of(range(2), {9: 2}), view_of((3, 4), {9: 2, 10: 2}), view_of((5, 6), {10: 2})]
    views = [replace(view, settings={**view.settings, "elastic": "True"}) for view in given]
    table = Declarations(views[0], Placer.of(views[0], 1 << 20))
    spec = TensorSpec("w", DType.INT8, (8 << 20,), on_loss="finish")
    found = [table.declare(0, [spec])[0]]
    for view in views[1:]:
        table.follow(view)
        table.replan(Placer.of(view, 1 << 20))
        found.append(table.declare(view.workers[0].number, [spec])[0])
    first, second, third = ({(part.offset, part.shard): part.server for part in one.partitions} for one in found)
    assert sorted(second.values()) == [0] * 4 + [1] * 4
    assert {at for at, server in second.items() if server == 0} < set(first)
    assert {at for at, server in second.items() if server == 1} < set(third), "by its address, whatever its number is"
    sums = replace(spec, on_loss="")
    table.follow(views[0])
    table.replan(Placer.of(views[0], 1 << 20))
    assert table.declare(0, [sums])[0].partitions == Placer.of(views[0], 1 << 20).place(3, sums).partitions


def test_what_those_who_live_are_done_with_is_let_go_of() -> None:
    table = Declarations(view_of(range(3)), Placer([1], 4096))
    spec, own = TensorSpec("w", DType.INT8, (9,)), TensorSpec("of the dead", DType.INT8, (9,))
    [[first], _, _] = [table.declare(rank, [spec]) for rank in range(3)]
    table.declare(2, [own])
    table.leave_out({2})
    assert table.uses(2) == []
    assert table.declare(0, [own])[0].tensor_id == 1, "what others may yet come to stays where it is"
    table.retire(0, [first.tensor_id])
    table.retire(1, [first.tensor_id])
    assert table.declare(0, [TensorSpec("w", DType.INT8, (10,))])[0].tensor_id == 2


def test_on_loss_is_agreed_on_and_named() -> None:
    table = Declarations(view_of(range(2)), Placer([1], 4096))
    table.declare(0, [TensorSpec("w", DType.FLOAT32, (3,), on_loss="finish")])
    with pytest.raises(MismatchError, match=r"rank 1 declared .* with on_loss='raise', but rank 0 .*on_loss='finish'"):
        table.declare(1, [TensorSpec("w", DType.FLOAT32, (3,), on_loss="raise")])


def test_a_tensor_beside_another_has_its_cuts_and_shards_and_follows_it() -> None:
    table = Declarations(view_of(range(3)), Placer([2, 2], 4096))
    shape = (20_000,)
    first = [TensorSpec("x", DType.FLOAT32, shape), TensorSpec("z", DType.FLOAT32, (3001,))]
    beside = TensorSpec("y", DType.FLOAT32, shape, beside="x")
    x, _, y = table.declare(0, [*first, beside])

    def places(declared: Declared) -> list[tuple[int, int, int, int]]:
        return [(part.offset, part.nbytes, part.server, part.shard) for part in declared.partitions]

    assert places(y) == places(x) and len(places(x)) > 4
    assert [part.key for part in y.partitions] == [y.tensor_id << 16 | part for part in range(len(y.partitions))]
    assert table.declare(1, [beside]) == [y]
    moved = {move.tensor_id: move.partitions for move in table.replan(Placer([2, 2], 4096, [1.0, 3.0]))}
    assert [(one.offset, one.server, one.shard) for one in moved[y.tensor_id]] == [
        (one.offset, one.server, one.shard) for one in moved[x.tensor_id]
    ]
    for rank in range(3):
        table.retire(rank, [x.tensor_id])
    assert len(table.replan(Placer([1], 1 << 20))) == 2  # y stays without it


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (TensorSpec("y", DType.FLOAT32, (8,), beside="w"), "'y' beside 'w': no rank has declared that"),
        (TensorSpec("y", DType.FLOAT32, (8,), beside="x"), "beside 'x': it has 32 bytes, not 20000"),
        (TensorSpec("y", DType.FLOAT32, (5000,), beside="x", row_bytes=1000), "beside 'x': it has rows of 1000 bytes"),
    ],
)
def test_where_no_tensor_can_be_beside_another(spec: TensorSpec, why: str) -> None:
    table = Declarations(view_of(range(3)), Placer([1, 1], 4096))
    table.declare(0, [TensorSpec("x", DType.FLOAT32, (5000,))])
    with pytest.raises(InvalidArgumentError, match=why):
        table.declare(0, [spec])


def test_new_tensors_go_to_servers_that_live_and_all_others_stay() -> None:
    table = Declarations(view_of(range(3)), Placer([1, 1], 4096))
    (before,) = table.declare(0, [TensorSpec("a", DType.FLOAT32, (5000,))])
    assert {part.server for part in before.partitions} == {0, 1}
    table.place_by(Placer([1, 1], 4096, [1.0, 0.0]))
    (after,) = table.declare(0, [TensorSpec("b", DType.FLOAT32, (5000,))])
    assert {part.server for part in after.partitions} == {0}
    assert table.declare(1, [before.spec]) == [before]


def _kept(name: str, replicas: int) -> TensorSpec:
    return TensorSpec(name, DType.FLOAT32, (64,), on_loss="raise", replicas=replicas)


def test_a_server_may_die_while_others_have_copies_of_all_that_it_keeps() -> None:
    view = replace(view_of(range(2)), settings={"elastic": "yes"})
    view = replace(view, servers=tuple(replace(view.workers[0], number=90 + rank, rank=rank) for rank in range(2)))
    table = Declarations(view, Placer([1, 1], 4096))
    assert table.can_lose_servers
    table.declare(0, [TensorSpec("sum", DType.FLOAT32, (64,)), _kept("copied", 2)])
    assert table.can_lose_servers
    (lone,) = table.declare(0, [_kept("lone", 1)])
    assert not table.can_lose_servers
    assert table.can_hand_over
    table.retire(0, [lone.tensor_id])
    assert table.can_lose_servers
    (encoded,) = table.declare(0, [TensorSpec("encoded", DType.FLOAT32, (64,), codec="twoway onebit")])
    assert not table.can_hand_over and not table.can_lose_servers
    table.retire(0, [encoded.tensor_id])
    assert table.can_hand_over and table.can_lose_servers


def test_replicas_are_agreed_on_and_named() -> None:
    table = Declarations(view_of(range(2)), Placer([1], 4096))
    table.declare(0, [_kept("w", 2)])
    with pytest.raises(MismatchError, match=r"rank 1 declared .*'raise', but rank 0 declared .*'raise', replicas=2"):
        table.declare(1, [_kept("w", 1)])
