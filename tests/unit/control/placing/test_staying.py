"""What servers keep stays where it is in the next world, but for what is beyond the parts that they have then."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.placing.placement import ALIGNMENT, SMALLEST_PIECE, Placer
from byteps_like.control.placing.staying import Former
from byteps_like.control.types import View
from byteps_like.dtypes import DType
from byteps_like.worker.api import Declared, TensorSpec
from tests.fakes.views import view_of

LARGEST = 1 << 20
SERVERS = st.dictionaries(st.integers(0, 7), st.just(2), min_size=1)
"""Shards by number, which stands for their addresses, too."""


def tensor(nbytes: int, name: str = "t", **more: int) -> TensorSpec:
    return TensorSpec(name, DType.UINT8, (nbytes,), on_loss="finish", **more)


def placed(view: View, specs: Sequence[TensorSpec], before: Sequence[Declared] = (), old: View | None = None):
    placer = Placer.of(view, LARGEST)
    if old is None:
        return [placer.place(number, spec) for number, spec in enumerate(specs)], placer
    return [placer.place_again(number, spec, Former.of(one, [server.urls for server in old.servers]))
            for number, (spec, one) in enumerate(zip(specs, before, strict=True))], placer  # fmt: skip


def owners(view: View, one: Declared) -> list[tuple[int, int, tuple[str, int]]]:
    return [(part.offset, part.nbytes, (view.servers[part.server].urls[0], part.shard)) for part in one.partitions]


def moved(old: View, before: Declared, new: View, after: Declared) -> int:
    """Bytes that have another shard."""
    staying, shard = 0, owners(old, before)
    for begin, nbytes, name in owners(new, after):
        for other, length, former in shard:
            if former == name:
                staying += max(0, min(begin + nbytes, other + length) - max(begin, other))
    return before.spec.nbytes - staying


def beyond(old: View, before: Declared, new: View, after: Declared) -> int:
    """The least that has to move for all to have what they have afterwards."""
    had, has = dict[object, int](), dict[object, int]()
    for counted, view, one in ((had, old, before), (has, new, after)):
        for _, nbytes, name in owners(view, one):
            counted[name] = counted.get(name, 0) + nbytes
    return sum(max(0, nbytes - had.get(name, 0)) for name, nbytes in has.items())


@given(SERVERS, SERVERS, st.lists(st.one_of(st.integers(1, 200_000), st.integers(1, 60 << 20)), max_size=5))
def test_nothing_moves_but_what_has_to(before: dict[int, int], after: dict[int, int], sizes: list[int]) -> None:
    old, new = view_of([0], before), view_of([0], after)
    specs = [tensor(size, str(size)) for size in sizes]
    first, _ = placed(old, specs)
    second, placer = placed(new, specs, first, old)
    for one, other in zip(first, second, strict=True):
        end = 0
        for part in other.partitions:
            assert part.offset == end and part.offset % ALIGNMENT == 0 and 0 < part.nbytes <= LARGEST
            end += part.nbytes
        assert end == one.spec.nbytes
        assert moved(old, one, new, other) == beyond(old, one, new, other)
    ideal, loads = sum(sizes) / len(placer.loads()), placer.loads()
    assert sum(loads.values()) == sum(sizes)
    assert all(abs(load - ideal) <= 3 * SMALLEST_PIECE * len(loads) for load in loads.values())


def test_all_stays_where_nothing_has_changed() -> None:
    old, new = view_of([0], {3: 2, 4: 2}), view_of([1], {4: 2, 3: 2})
    specs = [tensor(size, str(size)) for size in (100, 70_000, 9 << 20, 5, 30 << 20)]
    first, _ = placed(old, specs)
    second, _ = placed(new, specs, first, old)
    assert [owners(new, one) for one in second] == [owners(old, one) for one in first]


@pytest.mark.parametrize("servers", [2, 3, 5])
def test_one_more_server_gets_its_part_and_no_more_moves(servers: int) -> None:
    old, new = view_of([0], dict.fromkeys(range(servers), 2)), view_of([0], dict.fromkeys(range(servers + 1), 2))
    size = 64 << 20
    first, _ = placed(old, [tensor(size)])
    second, placer = placed(new, [tensor(size)], first, old)
    ideal = size / (servers + 1)
    assert 0.9 * ideal < moved(old, first[0], new, second[0]) < 1.1 * ideal
    assert list(placer.loads().values()) == pytest.approx([ideal / 2] * (2 * servers + 2), rel=0.1)


def test_servers_that_come_and_go_leave_no_splinters() -> None:
    """Over many worlds there are not many more partitions than at first, and none are small."""
    draw = random.Random(7)
    sizes = [7 << 20] * 10 + [300 << 10] * 10
    specs = [tensor(size, str(number)) for number, size in enumerate(sizes)]
    old = view_of([0], {0: 2, 1: 2})
    now, _ = placed(old, specs)
    for _ in range(60):
        new = view_of([0], dict.fromkeys(draw.sample(range(6), draw.randint(1, 5)), 2))
        now, placer = placed(new, specs, now, old)
        old, slots = new, len(placer.loads())
        assert all(len(one.partitions) <= 2 * (-(-one.spec.nbytes // LARGEST) + slots) for one in now)
        assert min(part.nbytes for one in now for part in one.partitions) >= SMALLEST_PIECE // 2
        ideal = sum(sizes) / slots
        assert all(abs(load - ideal) < 0.1 * ideal + SMALLEST_PIECE for load in placer.loads().values())


def test_what_is_not_cut_stays_whole() -> None:
    old, new = view_of([0], {3: 1}), view_of([0], {4: 1, 3: 1, 5: 1})
    spec = tensor(3 << 20, partition_bytes=3 << 20, row_bytes=3 << 20)
    (first,), _ = placed(old, [spec])
    (second,), _ = placed(new, [spec], [first], old)
    assert owners(new, second) == owners(old, first)


def test_buckets_of_a_table_move_one_by_one() -> None:
    old, new = view_of([0], {3: 2}), view_of([0], {3: 2, 4: 2})
    spec = tensor(4096 * 64, partition_bytes=64, row_bytes=64)
    (first,), _ = placed(old, [spec])
    (second,), placer = placed(new, [spec], [first], old)
    assert len(second.partitions) == 4096 and set(placer.loads().values()) == {1024 * 64}
    assert moved(old, first, new, second) == 2048 * 64
