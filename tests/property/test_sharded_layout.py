"""Sharded arenas: every element has one chunk and one owner, whatever the sizes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from byteps_like.torch.sharded.layout import UNIT, Stretches, lay_out_shards


@given(
    sizes=st.lists(st.integers(0, 700), max_size=12),
    itemsize=st.sampled_from([2, 4, 8, 16]),
    chunk_bytes=st.integers(1, 5000),
    ranks=st.integers(1, 9),
)
def test_everything_is_dealt_out_once(sizes: list[int], itemsize: int, chunk_bytes: int, ranks: int) -> None:
    layout = lay_out_shards(sizes, itemsize, chunk_bytes, ranks)
    owned = [0] * len(sizes)
    sums = [0] * ranks
    cursor = 0
    for chunk in layout.chunks:
        assert chunk.begin == cursor < chunk.end and sum(chunk.counts) == chunk.end - chunk.begin
        cursor = chunk.end
        assert max(chunk.counts) - min(chunk.counts) <= UNIT // itemsize
        assert layout.pieces(chunk.begin, chunk.end)
        for rank in range(ranks):
            begin, end = chunk.share(rank)
            sums[rank] += end - begin
            assert begin * itemsize % UNIT == 0
            for piece in layout.pieces(begin, end):
                assert layout.offsets[piece.slot] + piece.start == piece.begin
                assert piece.start == owned[piece.slot]  # slices of a parameter follow each other
                assert piece.start * itemsize % UNIT == 0
                owned[piece.slot] += piece.end - piece.begin
    assert owned == sizes and cursor == layout.total
    assert max(sums) - min(sums) <= UNIT // itemsize
    for slot, size in enumerate(sizes):
        holding = [
            n
            for n, chunk in enumerate(layout.chunks)
            if slot in {p.slot for p in layout.pieces(chunk.begin, chunk.end)}
        ]
        assert list(layout.chunks_of(slot)) == holding and bool(holding) == bool(size)


@given(
    sizes=st.lists(st.integers(0, 700), max_size=6),
    chunk_bytes=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
    ranks=st.integers(1, 5),
)
def test_what_changes_hands_is_what_one_had_and_another_gets(
    sizes: list[int], chunk_bytes: tuple[int, int], ranks: int
) -> None:
    before, after = (lay_out_shards(sizes, 4, nbytes, ranks) for nbytes in chunk_bytes)

    def elements(share: Stretches) -> list[int]:
        return [element for begin, end in share.stretches for element in range(begin, end)]

    moved: list[int] = []
    for giver in range(ranks):
        had = before.share(giver)
        assert [had.place(element) for element in elements(had)] == list(range(had.numel))
        for taker in range(ranks):
            common = had.common(after.share(taker))
            assert elements(common) == sorted({*elements(had)} & {*elements(after.share(taker))})
            moved += elements(common)
    assert sorted(moved) == list(range(before.total))
