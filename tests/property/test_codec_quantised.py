"""int, qsgd, ternary, dithering, natural: their errors are those measured in specs, and they have no bias."""

from __future__ import annotations

import numpy as np
import pytest

import byteps_like._core as _core
from byteps_like.compression.codec import SERVER_RANK, Draw, Floats
from byteps_like.compression.registry import codec_of
from tests.fakes.codec_rounds import Native, Round, natively, nmse

NUMEL = 1 << 18
RANKS = 10


def drawn(kind: str, ranks: int = RANKS, numel: int = NUMEL, seed: int = 0) -> list[Floats]:
    """Independent gradients: normal, or log-normal with random signs."""
    random = np.random.default_rng(seed)
    xs = [random.standard_normal(numel, dtype=np.float32) for _ in range(ranks)]
    if kind == "gauss":
        return xs
    return [np.exp(x) * np.where(random.random(numel) < 0.5, -1, 1).astype(np.float32) for x in xs]


GAUSS, LOGNORMAL = drawn("gauss"), drawn("lognormal")


def one_way(xs: list[Floats], done: Round) -> float:
    """The error of the mean of what the payloads say, without the result's own encoding."""
    said = np.sum([x - left for x, left in zip(xs, done.residuals, strict=True)], axis=0)
    return nmse(xs, said)


@pytest.mark.parametrize(
    ("text", "gauss", "lognormal"),
    [
        ("int8", 4.8e-5, 3.0e-4), ("int:bits=4", 0.0159, 0.0798), ("int4", 0.0318, 0.179),
        ("qsgd", 0.0362, 0.256), ("qsgd:norm=l2", 1.58, 1.17),
        ("ternary:clip=0", 2.74, 20.9), ("ternary", 1.01, 0.940),
    ],
)  # fmt: skip
def test_errors_one_way_are_those_of_the_table(text: str, gauss: float, lognormal: float) -> None:
    for xs, wanted in ((GAUSS, gauss), (LOGNORMAL, lognormal)):
        assert one_way(xs, natively(codec_of(text), xs)) == pytest.approx(wanted, rel=0.1 if xs is GAUSS else 0.35)


@pytest.mark.parametrize(
    ("text", "gauss", "lognormal"),
    [("qsgd", 0.0738, 0.368), ("qsgd:norm=l2", 5.44, 4.29), ("ternary:clip=0", 13.8, 75.4), ("ternary", 2.88, 2.23)],
)
def test_errors_both_ways_are_those_of_the_table(text: str, gauss: float, lognormal: float) -> None:
    for xs, wanted in ((GAUSS, gauss), (LOGNORMAL, lognormal)):
        done = natively(codec_of(text), xs)
        # Without a clip, all hangs on the greatest of the few values that the mean has.
        assert nmse(xs, done.out) == pytest.approx(wanted, rel=0.1 if xs is GAUSS and "clip" not in text else 0.35)


def test_more_levels_and_powers_of_two() -> None:
    """8 bits in place of 4 divide the variance by (127 / 7)^2; powers of two follow numbers over many magnitudes."""
    coarse, fine = (one_way(GAUSS, natively(codec_of(f"dithering:levels={levels}"), GAUSS)) for levels in (7, 127))
    assert coarse / fine == pytest.approx((127 / 7) ** 2, rel=0.03)
    linear, natural = (
        one_way(LOGNORMAL, natively(codec_of(f"dithering:levels={levels},partition={partition}"), LOGNORMAL))
        for levels, partition in ((7, "linear"), (7, "natural"))
    )
    assert natural < linear / 3
    # Where no number is below the least power, the error is that of natural compression.
    deep = one_way(GAUSS, natively(codec_of("dithering:levels=127,partition=natural"), GAUSS))
    assert deep == pytest.approx(0.0816, rel=0.05)


@pytest.mark.parametrize(
    "text",
    ["int4", "int:bits=8,rounding=stochastic", "int:bits=4,rounding=stochastic,scale=shared", "qsgd", "qsgd:norm=l2",
     "qsgd:scale=shared", "ternary:clip=0", "dithering:levels=3", "dithering:partition=natural,levels=5,norm=l2"],
)  # fmt: skip
def test_a_thousand_encodings_have_no_bias(text: str) -> None:
    codec = codec_of(text)
    x = drawn("gauss", 1, 256)[0]
    native, agreed = Native(codec, 1), codec.prepare(x, Draw(), 1)
    agreed = agreed if native.core.plan(x.size)["prelude"] else agreed[:0]
    said = np.array([x - native.encode(x, Draw(5, number, 0), agreed)[1] for number in range(1000)], np.float64)
    # The last term: what it takes where so few draws don't show the spread.
    deviation = np.sqrt(said.var(axis=0) + np.ptp(said, axis=0).max() ** 2 / 1000)
    assert np.abs((said.mean(axis=0) - x) / (deviation / np.sqrt(1000))).max() < 4


def test_ranks_and_rounds_draw_different_numbers_and_replays_the_same() -> None:
    native, x = Native(codec_of("int4"), 1), drawn("gauss", 1, 1000)[0]
    none = np.zeros(0, np.float32)
    first = native.encode(x, Draw(1, 2, 3), none)[0]
    assert native.encode(x, Draw(1, 2, 3), none)[0] == first
    for other in (Draw(1, 2, 4), Draw(1, 3, 3), Draw(2, 2, 3), Draw(1, 2, SERVER_RANK)):
        assert native.encode(x, other, none)[0] != first


@pytest.mark.parametrize(
    ("text", "world", "width"),
    [("int:bits=4,scale=shared", 18, 1), ("int:bits=4,scale=shared", 19, 2), ("int:bits=8,scale=shared", 2, 2),
     ("int:bits=8,scale=shared", 258, 2), ("int:bits=8,scale=shared", 259, 4), ("ternary:scale=shared", 127, 1),
     ("ternary:scale=shared", 128, 2)],
)  # fmt: skip
def test_sums_are_as_wide_as_the_world_needs(text: str, world: int, width: int) -> None:
    native, numel = Native(codec_of(text), world), 130
    assert native.core.plan(numel)["result"] == width * numel
    x = np.full(numel, -0.75, np.float32)
    x[::2] = 0.75
    agreed = np.full(native.core.plan(numel)["prelude"] // 4, 0.75, np.float32)
    payload = native.encode(x, Draw(), agreed)[0]
    out = native.decode(native.sum([payload] * world, numel, Draw()), Draw(), agreed, numel)
    np.testing.assert_array_equal(out, world * x)


@pytest.mark.parametrize(("text", "steps"), [("int:scale=shared", 0.5), ("int:scale=shared,rounding=stochastic", 1)])
def test_with_a_shared_scale_errors_are_bounded_and_the_sum_is_that_of_the_payloads(text: str, steps: float) -> None:
    xs = drawn("lognormal", 5, 3000)
    done = natively(codec_of(text), xs)
    step = np.repeat(done.agreed, 256)[:3000] / 127
    assert np.all(np.abs(done.out - np.sum(xs, axis=0)) <= 5 * steps * step * (1 + 1e-5) + 1e-6)
    said = np.sum([x - left for x, left in zip(xs, done.residuals, strict=True)], axis=0)
    np.testing.assert_allclose(done.out, said, rtol=1e-5, atol=1e-4)


def test_an_answer_of_fewer_ranks_is_their_sum() -> None:
    xs = drawn("gauss", 3, 1000)
    codec = codec_of("int:scale=shared")
    done, core = natively(codec, xs), _core.Codec(codec.spec(), 3)
    result = np.frombuffer(Native(codec, 3).sum(done.payloads[:2], 1000, Draw()), np.uint8)
    out = np.empty(1000, np.float32)
    core.decode(result, 2, (7, 3, 0), done.agreed, 1.0, out)
    assert nmse(xs[:2], out) < 1e-3


def test_clipping_holds_outliers() -> None:
    x = np.ones(4096, np.float32)
    x[7] = 1000
    limit = 2.5 * np.sqrt(np.mean(x.astype(np.float64) ** 2))
    for text, wanted in (("ternary", limit), ("ternary:clip=0", 1000)):
        said = x - natively(codec_of(text), [x]).residuals[0]
        assert said[7] == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "spec", ["int:bits=3", "int:block=100", "int:rounding=up", "qsgd:levels=128", "ternary:clip=-1"]
)
def test_wrong_parameters_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match=spec.partition(":")[0]):
        _core.Codec(codec_of(spec).spec(), 2)
