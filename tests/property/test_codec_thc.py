"""THC: the errors it is known for, its tables, sums of any part of the ranks; the rotation below it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import byteps_like._core as _core
from byteps_like.compression.codec import Draw, Floats
from byteps_like.compression.quantised.codes import pack, sum_order, unpack
from byteps_like.compression.quantised.rotation import blocks, hadamard, padded
from byteps_like.compression.quantised.thc import Thc
from byteps_like.compression.quantised.thc_table import (
    CLAMPS,
    best_table,
    clamp_cost,
    known_tables,
    optimal_table,
    table_cost,
    table_for,
)
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from tests.fakes.codec_rounds import Native, natively

SIZE = 1 << 18


def written(points: tuple[int, ...]) -> str:
    return ".".join(map(str, points))


def with_points(granularity: int, one_in: int = 32) -> Thc:
    return Thc(clamp=one_in, table=written(optimal_table(4, granularity, one_in)))


def gradients(kind: str, world: int, seed: int, size: int = SIZE) -> list[Floats]:
    random = np.random.default_rng(seed)
    xs = [random.standard_normal(size, dtype=np.float32) for _ in range(world)]
    if kind == "lognormal":
        xs = [np.exp(x) * np.where(random.integers(0, 2, size), 1, -1).astype(np.float32) for x in xs]
    elif kind == "skewed":
        scale = np.where(np.arange(size) < size // 8, 10, 1).astype(np.float32)
        xs = [x * scale for x in xs]
    return xs


def error(codec: Thc, xs: list[Floats], number: int = 0) -> float:
    """Of the mean, squared, as a part of the mean's square."""
    mean = np.mean(xs, axis=0, dtype=np.float64)
    found = natively(codec, xs, number=number, factor=1 / len(xs)).out
    return float(np.sum((found - mean) ** 2) / np.sum(mean**2))


def test_errors_are_as_published() -> None:
    coarse, fine = [], []
    for seed, kind in itertools.product(range(4), ("gauss", "lognormal")):
        xs = gradients(kind, 8, seed)
        coarse.append(error(with_points(30), xs, seed))
        fine.append(error(Thc(), xs, seed))
    assert Thc().points(8)[-1] == 17
    assert min(coarse) > 0.0185 and max(coarse) < 0.0225
    assert min(fine) > 0.0180 and max(fine) < 0.0215
    assert np.mean(fine) < np.mean(coarse) - 0.0003
    assert error(Thc(), gradients("skewed", 8, 0)) < 0.0225


@pytest.mark.parametrize(
    ("text", "least", "most"), [("thc3", 0.055, 0.068), ("thc2", 0.24, 0.30), ("uhc4", 0.0195, 0.0220)]
)
def test_errors_of_fewer_bits_and_of_the_uniform_form(text: str, least: float, most: float) -> None:
    codec = codec_of(text)
    assert isinstance(codec, Thc)
    assert least < error(codec, gradients("gauss", 8, 1)) < most


def test_identical_gradients_leave_the_clamp_s_error_alone() -> None:
    x = gradients("lognormal", 1, 3)[0]
    expected = table_cost(Thc().points(8), 32) / 8 + clamp_cost(32)
    assert error(Thc(), [x] * 8) == pytest.approx(expected, rel=0.05)


def test_without_the_clamp_the_expectation_is_exact() -> None:
    x, native = gradients("lognormal", 1, 1, 256)[0], Native(Thc(), 8)
    agreed = np.array([3 * np.linalg.norm(x)], np.float32)
    found = np.empty((1000, x.size))
    for i in range(len(found)):
        draw = Draw(1, i, i % 8)
        payload, _ = native.encode(x, draw, agreed)
        found[i] = native.decode(native.sum([payload], x.size, draw), draw, agreed, x.size, count=1)
    scores = (found.mean(axis=0) - x) / (found.std(axis=0) / np.sqrt(len(found)))
    assert np.abs(scores).max() < 4
    assert 0.85 < np.sqrt(np.mean(scores**2)) < 1.15


def test_error_feedback_makes_the_mean_over_rounds_exact() -> None:
    x = gradients("lognormal", 1, 5, 1 << 14)[0]
    native, residual = Native(Thc(), 1), np.zeros_like(x)
    total = np.zeros(x.size)
    for i in range(100):
        fed, draw = x + residual, Draw(1, i, 0)
        agreed = np.array([np.linalg.norm(fed)], np.float32)
        payload, residual = native.encode(fed, draw, agreed)
        total += native.decode(native.sum([payload], x.size, draw), draw, agreed, x.size, count=1)
    assert np.sum((total + residual - 100 * x) ** 2) < 1e-8 * np.sum((100 * x) ** 2)
    assert np.sum((total / 100 - x) ** 2) < 1e-5 * np.sum(x**2)


def test_a_part_of_the_ranks_can_be_summed() -> None:
    xs = gradients("gauss", 8, 2, 40000)
    whole, native = natively(Thc(), xs), Native(Thc(), 8)
    result = native.sum(whole.payloads[:5], 40000, Draw(7, 3, 0))
    found = native.decode(result, Draw(7, 3, 0), whole.agreed, 40000, count=5)
    wanted = np.sum(xs[:5], axis=0)
    assert np.sum((found - wanted) ** 2) < 0.0225 * np.sum(wanted**2)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf, np.float32(3e38)])
def test_a_block_that_is_not_finite_is_nan_and_leaves_no_residual(spoilt: float) -> None:
    xs = gradients("gauss", 2, 2, 70000)
    xs[1][40000:40002] = spoilt
    done = natively(Thc(), xs)
    assert np.isnan(done.out[32768:65536]).all()
    assert np.isfinite(done.out[:32768]).all() and np.isfinite(done.out[65536:]).all()
    assert all(np.isfinite(residual).all() and not residual[32768:65536].any() for residual in done.residuals)


def test_what_is_clamped_can_be_counted() -> None:
    x, draw = gradients("lognormal", 1, 1, 100_000)[0], Draw(3, 4, 1)
    for one_in in CLAMPS:
        codec = Thc(clamp=one_in)
        agreed = codec.prepare(x, draw, 8)
        native = _core.Codec(codec.spec(), 8).clamped(x, (draw.key, draw.round, draw.rank), agreed)
        assert native == codec.clamped(x, draw, agreed)
        assert native / padded(x.size) == pytest.approx(1 / one_in, rel=0.1)


@pytest.mark.parametrize(
    ("bits", "granularity", "cost"),
    [(4, 15, 0.01332), (4, 17, 0.01253), (4, 25, 0.01415), (4, 30, 0.01306), (4, 53, 0.01194), (3, 7, 0.0612),
     (3, 15, 0.0588), (3, 27, 0.05534), (2, 11, 0.3136), (2, 31, 0.3149)],
)  # fmt: skip
def test_tables_cost_what_is_published(bits: int, granularity: int, cost: float) -> None:
    assert table_cost(optimal_table(bits, granularity, 32), 32) == pytest.approx(cost, rel=6e-4)


def test_tables_are_the_best_of_all() -> None:
    for granularity in (3, 7, 12):
        least = min(
            table_cost((0, *inner, granularity), 32) for inner in itertools.combinations(range(1, granularity), 2)
        )
        assert table_cost(optimal_table(2, granularity, 32), 32) == pytest.approx(least, rel=1e-9)
    for world in (8, 10, 15):
        assert table_for(4, 32, world)[-1] == 17
    assert table_for(4, 32, 17)[-1] == 15
    assert best_table(4, 32, 63)[-1] == 53


def test_the_native_core_has_the_same_tables() -> None:
    """Which it chose shows in the payload's codes and in what they are summed to."""
    x = gradients("gauss", 1, 0, 4096)[0]
    for bits, world in [*itertools.product((2, 3, 4), (3, 5, 7, 17)), (2, 40), (2, 900), (3, 60)]:
        codec, draw = Thc(bits=bits), Draw(1, 2, 0)
        agreed, native = codec.prepare(x, draw, world), Native(codec, world)
        payload, _ = native.encode(x, draw, agreed)
        assert payload == codec.encode(x, draw, agreed, world)
        wanted = codec.accumulate(codec.reset(x.size, world), payload, x.size, world)
        assert native.sum([payload], x.size, draw) == wanted.tobytes()
    assert all(points[-1] <= 255 for points in known_tables(2, 64))


def test_sums_that_do_not_fit_are_refused() -> None:
    assert _core.Codec(Thc(table="uniform").spec(), 17).plan(256)["result"] == 256
    assert _core.Codec(Thc(table="uniform").spec(), 18).plan(256)["result"] == 512
    assert _core.Codec(Thc(table="uniform").spec(), 4369).plan(256)["result"] == 512
    for codec in (Thc(table="uniform"), Thc()):
        with pytest.raises(InvalidArgumentError, match="16 bits"):
            _core.Codec(codec.spec(), 4370)
        with pytest.raises(InvalidArgumentError, match="16 bits"):
            codec.plan(256, 4370)


@pytest.mark.parametrize(
    "table", ["0.1.2", "0.1.1.2", "1.2.3.4", "0.1.2.256", "0.1.2.3.", "0.1.2.3.4", "0.-1.2.3", "x"]
)
def test_tables_that_are_none_are_refused(table: str) -> None:
    with pytest.raises(InvalidArgumentError):
        codec_of(f"thc:bits=2,table={table}")
    with pytest.raises(InvalidArgumentError, match="rise from 0"):
        _core.Codec(f"thc:bits=2,clamp=32,seed=0,table={table}", 2)


@pytest.mark.parametrize("size", [256, 512, 1024, 4096, 8192, 16384, 32768])
def test_the_transform_is_a_hadamard_matrix(size: int) -> None:
    at = np.random.default_rng(size).integers(0, size, 3)
    unit = np.zeros((3, size), np.float32)
    unit[np.arange(3), at] = 1
    found = np.stack([hadamard(x) for x in unit])
    parity = np.array([[bin(int(i) & j).count("1") % 2 for j in range(size)] for i in at])
    np.testing.assert_array_equal(found, 1 - 2 * parity)


@pytest.mark.parametrize("numel", [1, 255, 256, 257, 1000, 33000, 32768 * 3 + 16384 + 300])
def test_blocks_cover_a_partition(numel: int) -> None:
    found = list(blocks(numel, 32768))
    assert [block.begin for block in found] == list(itertools.accumulate([0, *(b.size for b in found[:-1])]))
    assert sum(block.size for block in found) == numel
    assert sum(block.padded for block in found) == padded(numel) < numel + 256
    assert all(block.padded in (1 << i for i in range(8, 16)) for block in found)


@pytest.mark.parametrize("bits", [1, 2, 3, 4])
def test_packing_is_undone(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, 1024).astype(np.uint32)
    payload = pack(codes, bits)
    assert len(payload) == 128 * bits
    np.testing.assert_array_equal(unpack(payload, bits), codes)


@pytest.mark.parametrize("wide", [False, True])
def test_every_coordinate_has_its_sum(wide: bool) -> None:
    np.testing.assert_array_equal(np.sort(sum_order(1024, wide)), np.arange(1024))
