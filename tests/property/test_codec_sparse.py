"""The sparse codecs: exact sums, exact bytes, the right elements, and a sketch that says so when it can't be read."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.compression.codec import Draw, Floats
from byteps_like.compression.registry import codec_of
from byteps_like.compression.sparse.chunktopk import ChunkTopK
from byteps_like.compression.sparse.randomk import RandomK
from byteps_like.compression.sparse.sketch import Sketch, peel
from byteps_like.compression.sparse.sparse import to_words
from byteps_like.compression.sparse.topk import TopK
from byteps_like.errors import CapacityError, CorruptError
from tests.fakes.codec_rounds import Native, by_reference, natively

LOSSLESS = ("blocksparse", "blocksparse:block=7", "blocksparse:block=32,dense=1", "bitmap", "coo", "sketch:density=0.9")


def whole_numbers(world: int, numel: int, density: float, seed: int, block: int = 1) -> list[Floats]:
    """Gradients of small whole numbers, of which fp32 sums are exact; `density` of the blocks aren't zero."""
    random = np.random.default_rng(seed)
    values = random.integers(-1000, 1001, (world, numel)).astype(np.float32)
    masks = np.repeat(random.random((world, -(-numel // block))) < density, block, axis=1)[:, :numel]
    return list(values * masks)


@pytest.mark.parametrize("text", LOSSLESS)
@settings(max_examples=25, deadline=None)
@given(
    world=st.integers(1, 8), numel=st.integers(1, 3000), density=st.floats(0, 0.5), block=st.sampled_from([1, 100]),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_sums_of_whole_numbers_are_exact(
    text: str, world: int, numel: int, density: float, block: int, seed: int
) -> None:
    xs = whole_numbers(world, numel, density, seed, block)
    done = natively(codec_of(text), xs)
    if codec_of(text).name == "sketch":  # rounded to 2^-30 / world of a block's largest number
        assert np.abs(done.out - np.sum(xs, axis=0)).max() <= 1e-4
    else:
        assert np.array_equal(done.out, np.sum(xs, axis=0))
        assert not any(residual.any() for residual in done.residuals)


def test_one_dense_rank_and_one_of_zeros() -> None:
    random = np.random.default_rng(0)
    xs = [random.standard_normal(5000).astype(np.float32), np.zeros(5000, np.float32)]
    for text in ("blocksparse", "bitmap", "coo"):
        assert np.array_equal(natively(codec_of(text), xs).out, xs[0]), text


@pytest.mark.parametrize("density", [0.01, 0.1, 0.4, 0.7])
def test_blocks_cost_what_they_hold(density: float) -> None:
    numel, block, world = 256 * 4000 + 13, 256, 8
    xs = whole_numbers(world, numel, density, 1, block)
    done = natively(codec_of("blocksparse"), xs)
    starts = np.arange(0, numel, block)
    bitmap = 4 * -(-starts.size // 32)
    live = [np.add.reduceat(x != 0, starts) > 0 for x in xs]
    sizes = np.diff([*starts, numel])
    for payload, blocks in zip(done.payloads, live, strict=True):
        assert len(payload) == 4 + bitmap + 4 * sizes[blocks].sum() <= 4 * numel * blocks.mean() * 1.01 + bitmap
    union = np.any(live, axis=0)
    sparse = 4 + bitmap + 4 * sizes[union].sum()
    assert len(done.result) == (4 + 4 * numel if union.all() else sparse)


@settings(max_examples=40, deadline=None)
@given(
    block=st.sampled_from([1, 16, 33, 48]), blocks=st.integers(1, 300), tail=st.integers(0, 47),
    shares=st.lists(st.floats(0, 1), min_size=1, max_size=4), seed=st.integers(0, 99),
)  # fmt: skip
def test_blocks_are_the_reference_s_wherever_they_are_dense(
    block: int, blocks: int, tail: int, shares: list[float], seed: int
) -> None:
    random = np.random.default_rng(seed)
    codec, numel = codec_of(f"blocksparse:block={block}"), block * blocks + tail % block
    parts = np.array_split(np.arange(numel) // block, len(shares))
    live = np.concatenate([random.random(blocks + 1)[part] < share for part, share in zip(parts, shares, strict=True)])
    special = random.choice(np.array([1, -0.0, np.nan, 1e-45, np.inf], np.float32), numel)
    x = np.where(live & (random.random(numel) < 0.1), special, random.choice(np.array([0, -0.0], np.float32), numel))
    payload = Native(codec, 1).encode(x, Draw(), np.zeros(0, np.float32))[0]
    assert payload == codec.encode(x, Draw(), np.zeros(0, np.float32), 1)


def test_few_elements_cost_eight_bytes_each_as_pairs_and_four_in_the_order_of_the_union() -> None:
    xs = whole_numbers(4, 20000, 0.01, 2)
    union = int(np.any([x != 0 for x in xs], axis=0).sum())
    pairs, ordered = natively(codec_of("coo"), xs), natively(codec_of("bitmap"), xs)
    assert [len(payload) for payload in pairs.payloads] == [4 + 8 * np.count_nonzero(x) for x in xs]
    assert len(pairs.result) == 4 + 8 * union
    assert {len(payload) for payload in ordered.payloads} == {4 * union}


@settings(max_examples=30, deadline=None)
@given(
    numel=st.integers(1, 4000), ratio=st.sampled_from([0.0, 0.001, 0.01, 0.3, 1.0]), seed=st.integers(0, 99),
    kinds=st.sampled_from([3, 50, 10**6]),
)  # fmt: skip
def test_the_largest_are_taken_and_of_equal_ones_the_first(numel: int, ratio: float, seed: int, kinds: int) -> None:
    random = np.random.default_rng(seed)
    x = (random.integers(-kinds, kinds + 1, numel) * (random.random(numel) < 0.5)).astype(np.float32)
    k = max(1, int(ratio * numel))
    wanted = sorted(sorted(range(numel), key=lambda i: (-abs(x[i]), i))[:k])
    payload, residual = Native(TopK(ratio=ratio), 1).encode(x, Draw(), np.zeros(0, np.float32))
    assert np.frombuffer(payload, np.uint32, k).tolist() == wanted
    assert np.array_equal(np.frombuffer(payload, np.float32, offset=4 * k), x[wanted])
    assert np.sum(residual.astype(np.float64) ** 2) <= (1 - k / numel) * np.sum(x.astype(np.float64) ** 2) + 1e-9


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("sigma", [0.01, 1.0, 3.0])
def test_a_sampled_threshold_takes_about_as_many(ratio: float, sigma: float) -> None:
    random = np.random.default_rng(3)
    codec = TopK(ratio=ratio, select="sampled")
    x = (random.choice([-1, 1], 200_000) * np.exp(sigma * random.standard_normal(200_000))).astype(np.float32)
    payload = Native(codec, 1).encode(x, Draw(), np.zeros(0, np.float32))[0]
    assert payload == codec.encode(x, Draw(), np.zeros(0, np.float32), 1)
    count = int(np.frombuffer(payload, np.uint32, 1)[0])
    k = ratio * x.size
    taken = np.abs(x)[np.frombuffer(payload, np.uint32, count, 4)]
    assert 0.8 * k <= count <= 1.3 * k
    assert taken.min() >= np.sort(np.abs(x))[-count]
    assert len(payload) == 4 + 8 * count


def test_a_sampled_threshold_never_takes_zeros() -> None:
    x = np.zeros(50_000, np.float32)
    x[::1000] = 1
    payload = Native(TopK(select="sampled"), 1).encode(x, Draw(), np.zeros(0, np.float32))[0]
    assert int(np.frombuffer(payload, np.uint32, 1)[0]) == 50


def test_random_elements_are_the_same_on_all_ranks_none_twice_others_each_round() -> None:
    codec, numel = RandomK(ratio=0.03), 1000
    seen = [codec.elements(numel, Draw(5, number, rank))[0] for number in (1, 2) for rank in (0, 1)]
    assert all(np.unique(elements).size == 30 for elements in seen)
    assert np.array_equal(seen[0], seen[1])
    assert not np.array_equal(seen[1], seen[2])
    xs = whole_numbers(4, numel, 1.0, 4)
    done = natively(codec, xs, key=5, number=1)
    wanted = np.zeros(numel, np.float32)
    wanted[seen[0]] = np.sum(xs, axis=0)[seen[0]]
    assert np.array_equal(done.out, wanted)


def test_random_elements_scaled_are_unbiased() -> None:
    codec, encodes = RandomK(ratio=0.06, scale=True), 1000  # 6 stretches of 16 or 17 elements
    x = np.random.default_rng(5).standard_normal(100).astype(np.float32)
    native = Native(codec, 1)
    outs = [_alone(native, x, Draw(0, number)) for number in range(encodes)]
    lengths = np.repeat(*(np.diff(np.arange(7) * 100 // 6),) * 2)
    error = np.mean(outs, axis=0) - x
    assert np.all(np.abs(error) <= 4 * np.abs(x) * np.sqrt((lengths - 1) / encodes))


def _alone(native: Native, x: Floats, draw: Draw) -> Floats:
    nothing = np.zeros(0, np.float32)
    return native.decode(native.encode(x, draw, nothing)[0], draw, nothing, x.size)


def test_all_ranks_choose_the_chunks_of_the_largest_norms_together() -> None:
    codec, numel = ChunkTopK(chunk=64, ratio=0.1), 64 * 100 + 5
    random = np.random.default_rng(6)
    xs = [(x * np.exp(random.standard_normal(numel // 64 + 1)).repeat(64)[:numel]).astype(np.float32)
          for x in whole_numbers(4, numel, 1.0, 6)]  # fmt: skip
    norms = sum(np.array([np.linalg.norm(x[i : i + 64]) for i in range(0, numel, 64)]) for x in xs)
    done = natively(codec, xs)
    chosen = np.isin(np.arange(numel) // 64, np.argsort(-norms)[:10])
    assert np.allclose(done.out, np.where(chosen, np.sum(xs, axis=0), 0), rtol=1e-6)
    assert all(np.array_equal(left, np.where(chosen, 0, x)) for x, left in zip(xs, done.residuals, strict=True))
    assert {len(payload) for payload in done.payloads} == {10 * 64 * 4}


def _keys(numel: int, count: int, seed: int) -> Floats:
    """Values at `count` random elements."""
    random = np.random.default_rng(seed)
    x = np.zeros(numel, np.float32)
    x[random.choice(numel, count, replace=False)] = 1 + random.random(count, np.float32)
    return x


def test_the_native_sketch_is_the_reference_s_and_sums_integers_exactly() -> None:
    codec = Sketch(density=0.1)
    xs = whole_numbers(3, 33000, 0.03, 7)
    wanted, found = by_reference(codec, xs), natively(codec, xs)
    assert (found.payloads, found.result) == (wanted.payloads, wanted.result)
    assert np.array_equal(found.out, wanted.out)
    assert all(np.array_equal(*pair) for pair in zip(found.residuals, wanted.residuals, strict=True))
    native = Native(codec, 3)
    assert native.sum(found.payloads[::-1], 33000, Draw()) == found.result
    assert np.abs(found.out - np.sum(xs, axis=0)).max() <= 3 * 512 * 2.0**-28
    cells = len(found.result) // 4 - -(-33000 // 32)
    assert cells == codec.cells(33000) < 1.31 * 0.1 * 33000


def test_a_hundred_sketches_of_a_hundred_are_read() -> None:
    numel, keys = 400_000, 40_000
    x = _keys(numel, keys, 8)
    for seed in range(100):
        native = Native(Sketch(density=0.1, seed=seed), 1)
        agreed = np.full(-(-numel // 256), -1, np.int8)  # biased exponent 127: below 2
        out = native.decode(native.encode(x, Draw(0, seed), agreed)[0], Draw(0, seed), agreed, numel)
        assert np.abs(out - x).max() <= 2.0**-30


def test_peeling_takes_few_rounds() -> None:
    numel, keys = 400_000, 40_000
    for seed in range(3):
        codec, live = Sketch(density=0.1, seed=seed), np.flatnonzero(_keys(numel, keys, seed))
        cells, signs = codec.places(live, numel, Draw())
        values = np.random.default_rng(seed).integers(-(2**31), 2**31, keys)
        sums = np.zeros(codec.cells(numel), np.int64)
        np.add.at(sums, cells, signs * values)
        found, left, rounds = peel(sums, cells, signs)
        assert left == 0
        assert rounds <= 30
        assert np.array_equal(found, values)


def test_a_sketch_of_too_many_says_so() -> None:
    numel = 400_000
    x = _keys(numel, int(40_000 * 1.3 / 1.1), 9)  # 1.1 cells for each
    codec, agreed = Sketch(density=0.1), np.full(-(-numel // 256), -1, np.int8)
    native = Native(codec, 1)
    payload, _ = native.encode(x, Draw(), agreed)
    with pytest.raises(CapacityError, match="raise density"):
        native.decode(payload, Draw(), agreed, numel)
    with pytest.raises(CapacityError, match="raise density"):
        codec.decode(payload, 1, Draw(), agreed, numel, 1)


def test_a_sketch_that_holds_more_than_its_index_says_is_corrupt() -> None:
    numel = 50_000
    x = _keys(numel, 1000, 10)
    codec, agreed = Sketch(density=0.1), np.full(-(-numel // 256), -1, np.int8)
    payload = Native(codec, 1).encode(x, Draw(), agreed)[0]
    without = to_words((x != 0) & (np.arange(numel) != np.flatnonzero(x)[5])).tobytes()
    with pytest.raises(CorruptError):
        Native(codec, 1).decode(without + payload[len(without) :], Draw(), agreed, numel)
    with pytest.raises(CorruptError):
        codec.decode(without + payload[len(without) :], 1, Draw(), agreed, numel, 1)
