"""Partitions cover a tensor exactly, and no slot carries more than one partition above another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.placement import ALIGNMENT, SMALLEST_PIECE, Placer, cut
from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.worker.api import TensorSpec

SIZES = st.one_of(st.integers(0, 4096), st.integers(0, 300 << 20))
PARTITIONS = st.sampled_from([64, 4096, 1 << 20, 4 << 20, 4_096_000])


@given(SIZES, PARTITIONS.filter(lambda size: size >= 4096), st.integers(1, 24))
def test_pieces_cover_the_tensor(nbytes: int, partition_bytes: int, slots: int) -> None:
    pieces = cut(nbytes, partition_bytes, slots)
    end = 0
    for offset, size in pieces:
        assert offset == end
        assert offset % ALIGNMENT == 0
        assert 0 < size <= partition_bytes
        end = offset + size
    assert end == nbytes
    assert len({size for _, size in pieces[:-1]}) <= 1


@given(st.integers(1, 64 << 20), st.integers(1, 16))
def test_large_tensors_load_all_slots_equally(nbytes: int, slots: int) -> None:
    pieces = cut(nbytes, 4 << 20, slots)
    if nbytes >= 2 * slots * max(SMALLEST_PIECE, slots * ALIGNMENT):
        # Rounding a piece up to whole lines can only ever make the last one short, or save one.
        assert len(pieces) % slots in (0, slots - 1)


@given(st.lists(SIZES, max_size=40), st.lists(st.integers(1, 4), min_size=1, max_size=6), PARTITIONS)
def test_slots_are_balanced_within_one_partition(sizes: list[int], shards: list[int], partition_bytes: int) -> None:
    placer = Placer(shards, max(partition_bytes, 4096))
    specs = [TensorSpec(f"t{i}", DType.UINT8, (min(size, 100 << 20),)) for i, size in enumerate(sizes)]
    loads: dict[tuple[int, int], int] = {
        (server, shard): 0 for server in range(len(shards)) for shard in range(shards[server])
    }
    largest, keys = 0, set()
    for tensor_id, spec in enumerate(specs):
        for part in placer.place(tensor_id, spec).partitions:
            loads[part.server, part.shard] += part.nbytes
            largest = max(largest, part.nbytes)
            keys.add(part.key)
            assert part.key >> 16 == tensor_id
    assert loads == placer.loads()
    assert max(loads.values()) - min(loads.values()) <= largest
    assert sum(loads.values()) == sum(spec.nbytes for spec in specs)


def test_consecutive_partitions_go_to_different_servers() -> None:
    declared = Placer([2, 2], 1 << 20).place(0, TensorSpec("w", DType.FLOAT32, (1 << 20,)))
    assert [(part.server, part.shard) for part in declared.partitions] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="no servers"):
        Placer([], 4096).place(0, TensorSpec("w", DType.FLOAT32, (1,)))
    with pytest.raises(InvalidArgumentError, match="raise partition_bytes=64"):
        Placer([1], 64).place(0, TensorSpec("w", DType.UINT8, (64 << 17,)))
