"""Partitions cover a tensor exactly, and every slot has its share of all bytes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.compression.registry import codec_of
from byteps_like.control.placing.optimum import Machine, shares
from byteps_like.control.placing.placement import (
    ALIGNMENT,
    FINEST_PIECE,
    SMALLEST_PIECE,
    Placer,
    least_segment,
    smallest_piece,
)
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.planner import workloads
from byteps_like.worker.api import Partition, TensorSpec

SIZES = st.one_of(st.integers(0, 4096), st.integers(0, 300 << 20))
PARTITIONS = st.sampled_from([4096, 1 << 20, 4 << 20, 4_096_000])
SHARDS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


def tensor(nbytes: int, name: str = "t") -> TensorSpec:
    return TensorSpec(name, DType.UINT8, (nbytes,))


@given(SIZES, PARTITIONS, SHARDS, st.data())
def test_partitions_cover_the_tensor(nbytes: int, largest: int, shards: list[int], data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.01, 1.0), min_size=len(shards), max_size=len(shards)))
    largest = max(largest, nbytes >> 15)  # which leaves room for each slot's last piece, a shorter one
    parts = Placer(shards, largest, weights).place(7, tensor(nbytes)).partitions
    end = 0
    for number, part in enumerate(parts):
        assert (part.offset, part.key) == (end, 7 << 16 | number)
        assert part.offset % ALIGNMENT == 0
        assert 0 < part.nbytes <= largest
        end += part.nbytes
    assert end == nbytes


@given(st.lists(SIZES, max_size=40), SHARDS, PARTITIONS, st.data())
def test_slots_get_what_they_weigh(sizes: list[int], shards: list[int], largest: int, data: st.DataObject) -> None:
    weights = data.draw(st.lists(st.floats(0.0, 1.0), min_size=len(shards), max_size=len(shards)))
    weights[0] += 0.1
    placer = Placer(shards, max(largest, 64 << 10), weights)
    for number, size in enumerate(sizes):
        placer.place(number, tensor(size))
    total, loads = sum(sizes), placer.loads()
    assert sum(loads.values()) == total
    for (server, _), load in loads.items():
        ideal = total * weights[server] / sum(weights) / shards[server]
        assert abs(load - ideal) <= 2 * SMALLEST_PIECE * len(loads)


@given(st.integers(1, 5000), st.integers(1, 300), SHARDS, st.sampled_from([4096, 64 << 10, 1 << 20]))
def test_rows_that_a_codec_sends_whole_are_not_cut(rows: int, width: int, shards: list[int], largest: int) -> None:
    """Unless a partition has no room for as many as fill whole cache lines."""
    spec = TensorSpec("t", DType.FLOAT32, (rows * width + 2,), codec=f"blocksparse:block={width},dense=0.8")
    placer = Placer(shards, max(largest, spec.nbytes >> 16))
    placer.place(0, tensor(12345))
    parts, row = placer.place(1, spec).partitions, 4 * width
    assert sum(part.nbytes for part in parts) == spec.nbytes and max(part.nbytes for part in parts) <= largest
    grain = row if math.lcm(row, ALIGNMENT) <= largest else ALIGNMENT
    assert all(part.offset % grain == part.offset % ALIGNMENT == 0 for part in parts)


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "bert-large", "gpt2"])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_servers_sum_their_share_of_real_models(name: str, k: int) -> None:
    n = 4
    weights = shares([Machine(1, True)] * n + [Machine(0, True)] * k)
    layers = workloads.load(name).layers
    specs = [(key, shape) for layer in layers for key, shape in layer.parameters]
    placer = Placer([2] * (n + k), 4 << 20, weights)
    for number, (key, shape) in enumerate(specs):
        placer.place(number, TensorSpec(key, DType.FLOAT32, shape))
    assert bytes_by_server(placer, n + k) == pytest.approx(
        [sum(placer.loads().values()) * w for w in weights], rel=0.02
    )


def test_one_arena_is_spread_exactly() -> None:
    weights = shares([Machine(1, True)] * 4 + [Machine(0, True)] * 3)
    placer = Placer([1] * 7, 4 << 20, weights)
    parts = placer.place(0, tensor(64 << 20)).partitions
    assert bytes_by_server(placer, 7) == pytest.approx([(64 << 20) * weight for weight in weights], abs=ALIGNMENT)
    assert stretches(parts, 10, weights) < 0.15


def bytes_by_server(placer: Placer, servers: int) -> list[int]:
    loads = placer.loads()
    return [sum(load for (owner, _), load in loads.items() if owner == server) for server in range(servers)]


def stretches(parts: tuple[Partition, ...], length: int, weights: list[float]) -> float:
    """How far from its weight any server is in any stretch of so many partitions, at the worst."""
    worst = 0.0
    for start in range(len(parts) - length + 1):
        some = parts[start : start + length]
        whole = sum(part.nbytes for part in some)
        for server, weight in enumerate(weights):
            own = sum(part.nbytes for part in some if part.server == server)
            worst = max(worst, abs(own / whole - weight))
    return worst


@given(st.lists(SIZES, max_size=10), SHARDS)
def test_placement_is_deterministic(sizes: list[int], shards: list[int]) -> None:
    first, second = Placer(shards, 4 << 20), Placer(shards, 4 << 20)
    for number, size in enumerate(sizes):
        assert first.place(number, tensor(size)) == second.place(number, tensor(size))


def test_consecutive_partitions_go_to_different_servers() -> None:
    declared = Placer([2, 2], 1 << 20).place(0, TensorSpec("w", DType.FLOAT32, (1 << 20,)))
    assert [(part.server, part.shard) for part in declared.partitions] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_small_tensors_are_not_cut() -> None:
    placer = Placer([1] * 4, 4 << 20)
    for number in range(4):
        assert len(placer.place(number, tensor(SMALLEST_PIECE)).partitions) == 1
    assert set(placer.loads().values()) == {SMALLEST_PIECE}


@pytest.mark.parametrize(
    ("gbps", "nbytes", "count"),
    [
        (math.inf, 64 << 10, 1), (10, 64 << 10, 1), (5, 64 << 10, 1), (5, 256 << 10, 4), (1, 64 << 10, 4),
        (1, 16 << 10, 1), (0.1, 16 << 10, 4), (0.1, 4 << 10, 2), (0.001, 4 << 10, 4), (0.001, 1000, 1),
    ],
)  # fmt: skip
def test_small_tensors_are_cut_where_cards_are_so_slow_that_it_pays(gbps: float, nbytes: int, count: int) -> None:
    parts = Placer([1] * 4, 4 << 20, slowest_gbps=gbps).place(0, tensor(nbytes)).partitions
    assert len(parts) == count and sum(part.nbytes for part in parts) == nbytes
    encoded = TensorSpec("e", DType.FLOAT32, (16 << 10,), codec=codec_of("int8").spec())
    assert len(Placer([1] * 4, 4 << 20, slowest_gbps=gbps).place(0, encoded).partitions) == 1


def test_segments_are_as_short_as_pieces_but_no_longer_than_where_cards_are_fast() -> None:
    assert [least_segment(gbps) for gbps in (math.inf, 1, 0.5, 0.1, 0.0001)] == [16384, 16384, 8192, 2048, 1024]


@given(st.floats(0, 1000) | st.just(math.inf), st.integers(0, 1 << 20), SHARDS)
def test_pieces_are_worth_their_messages(gbps: float, nbytes: int, shards: list[int]) -> None:
    """All servers get a piece that takes their cards long enough, or none; and no server gets more for that."""
    least = smallest_piece(gbps)
    assert FINEST_PIECE <= least <= SMALLEST_PIECE and least % ALIGNMENT == 0
    parts = Placer(shards, 4 << 20, slowest_gbps=gbps).place(0, tensor(nbytes)).partitions
    assert len(parts) <= max(1, nbytes // (least - ALIGNMENT))
    fine = Placer(shards, 4 << 20, slowest_gbps=gbps / 2 if gbps < math.inf else 1).place(0, tensor(nbytes)).partitions
    assert len(fine) >= len(parts)


def test_a_server_without_weight_gets_nothing() -> None:
    placer = Placer([1, 1, 1], 1 << 20, [0.5, 0.0, 0.5])
    for number, size in enumerate([1, 1000, 10 << 20]):
        placer.place(number, tensor(size))
    assert placer.loads()[1, 0] == 0


def test_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no servers"):
        Placer([], 4096).place(0, TensorSpec("w", DType.FLOAT32, (1,)))
    with pytest.raises(InvalidArgumentError, match="raise partition_bytes=64"):
        Placer([1], 64).place(0, TensorSpec("w", DType.UINT8, (64 << 17,)))


def test_what_is_answered_when_it_is_whole_is_cut_finer() -> None:
    """Dense sums and merged ones are answered while they come in; who says a size gets it."""
    placer, numel = Placer([1], 4 << 20), 1 << 22

    def parts(codec: str, partition_bytes: int = 0) -> int:
        spec = TensorSpec("t", DType.FLOAT32, (numel,), partition_bytes=partition_bytes, codec=codec)
        return len(placer.place(1, spec).partitions)

    assert [parts(codec_of(name).spec()) for name in ("int8", "thc4", "sign")] == [16, 16, 16]
    assert [parts(""), parts("bf16"), parts(codec_of("blocksparse").spec())] == [4, 4, 4]
    assert parts(codec_of("int8").spec(), 8 << 20) == 2
    small = Placer([1], 512 << 10).place(1, TensorSpec("t", DType.FLOAT32, (1 << 18,), codec="onebit:block=32768"))
    assert [part.nbytes for part in small.partitions] == [512 << 10] * 2


@given(st.lists(SIZES, min_size=1, max_size=6), SHARDS)
def test_what_is_beside_another_tensor_counts_where_it_lies(sizes: list[int], shards: list[int]) -> None:
    placer = Placer(shards, 4 << 20)
    placed = []
    for number, size in enumerate(sizes):
        first = placer.place(2 * number, tensor(size, f"t{number}"))
        spec = TensorSpec("u", DType.UINT8, (size,), beside=f"t{number}")
        placed += [first, placer.place_beside(2 * number + 1, spec, first)]
    assert sum(placer.loads().values()) == 2 * sum(sizes)
    for declared in placed:
        placer.leave(declared)
    assert not any(placer.loads().values())
