"""The arena's layout: aligned, without overlap, of one total size in any order; partitions cover it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from byteps_like.torch.ops.packed import capacity
from byteps_like.worker.layout import ALIGNMENT, FINEST, lay_out, partitions_of, pieces, runs

sizes = st.lists(st.integers(0, 300), min_size=1, max_size=20)
itemsizes = st.sampled_from([2, 4, 8])


@given(sizes, itemsizes, st.randoms(use_true_random=False))
def test_places_are_aligned_and_apart(numbers, itemsize, random):
    order = list(range(len(numbers)))
    plain = lay_out(numbers, order, itemsize)
    random.shuffle(order)
    layout = lay_out(numbers, order, itemsize)
    assert (layout.tail, layout.total) == (plain.tail, plain.total)
    places = [(layout.offsets[index], layout.offsets[index] + numbers[index]) for index in order]
    assert all(start * itemsize % ALIGNMENT == 0 for start, _ in [*places, (layout.tail, 0), (layout.total, 0)])
    ends = [0, *(end for _, end in places)]
    starts = [*(start for start, _ in places), layout.tail]
    assert all(end <= start for end, start in zip(ends, starts, strict=True))
    assert layout.total - layout.tail >= len(numbers) + 1


@given(st.integers(1, 1 << 24), itemsizes)
def test_pieces_halve_towards_the_end(blocks, itemsize):
    total = blocks * (ALIGNMENT // itemsize)
    found = [piece * itemsize for piece in pieces(total, itemsize)]
    assert sum(found) == total * itemsize
    assert all(piece % ALIGNMENT == 0 for piece in found)
    ends = found[1:]
    assert all(earlier == sum(ends[number + 1 :]) for number, earlier in enumerate(ends[:-1]))
    if ends:
        assert ends[-1] >= FINEST and total * itemsize / 8 <= sum(ends) <= total * itemsize / 4
        assert ends[-1] <= max(FINEST, total * itemsize / 512)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=20), st.data())
def test_partitions_of_a_range(pieces, data):
    bounds = [sum(pieces[:number]) for number in range(len(pieces) + 1)]
    begin = data.draw(st.integers(0, bounds[-1]))
    end = data.draw(st.integers(begin, bounds[-1]))
    expected = [part for part in range(len(pieces)) if max(begin, bounds[part]) < min(end, bounds[part + 1])]
    assert list(partitions_of(bounds[:-1], begin, end)) == expected


@given(st.sets(st.integers(0, 40)))
def test_runs_are_maximal(parts):
    found = runs(sorted(parts))
    assert [part for run in found for part in run] == sorted(parts)
    assert all(one.stop < other.start for one, other in pairwise(found))


@given(st.integers(1, 1 << 30))
def test_capacities_are_few_and_tight(nbytes):
    room = capacity(nbytes)
    assert room >= nbytes and room % 64 == 0
    assert room <= max(256, nbytes * 1.25 + 1)
    assert capacity(room) == room
