"""fp16, bf16, fp8 and natural by torch's conversions and by their errors; sign by counting votes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from byteps_like.compression.codec import SERVER_RANK, Draw, Floats
from byteps_like.compression.quantised.fp8 import Fp8
from byteps_like.compression.registry import codec_of
from tests.fakes.codec_rounds import Native, natively, nmse

NONE = np.zeros(0, np.float32)


def gauss(ranks: int, numel: int, seed: int = 0) -> list[Floats]:
    """Independent normal numbers."""
    random = np.random.default_rng(seed)
    return [random.standard_normal(numel, dtype=np.float32) for _ in range(ranks)]


def everything(numel: int = 1 << 16) -> Floats:
    """Floats of all magnitudes, with infinities and NaNs."""
    bits = np.random.default_rng(1).integers(0, 1 << 32, numel, dtype=np.uint32)
    return bits.view(np.float32)


@pytest.mark.parametrize(("text", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_casts_are_torch_s(text: str, dtype: torch.dtype) -> None:
    x = everything()
    native = Native(codec_of(text), 1)
    said = native.decode(native.encode(x, Draw(), NONE)[0], Draw(), NONE, x.size)
    np.testing.assert_array_equal(said, torch.from_numpy(x).to(dtype).float().numpy())


@pytest.mark.parametrize(("text", "least", "most"), [("fp16", 4e-8, 4.6e-8), ("bf16", 2.5e-6, 2.95e-6)])
def test_errors_of_casts(text: str, least: float, most: float) -> None:
    xs = gauss(10, 1 << 16)
    said = np.sum([x - left for x, left in zip(xs, natively(codec_of(text), xs).residuals, strict=True)], axis=0)
    assert least < nmse(xs, said) < most


@pytest.mark.parametrize(
    ("text", "dtype", "top", "places"),
    [("fp8", torch.float8_e4m3fn, 448, 4), ("fp8-e5m2", torch.float8_e5m2, 57344, 3)],
)
def test_fp8_is_torch_s_of_scaled_blocks(text: str, dtype: torch.dtype, top: float, places: int) -> None:
    x = gauss(1, 4096)[0] * np.exp2(np.random.default_rng(2).integers(-20, 20, 4096)).astype(np.float32)
    blocks = x.reshape(-1, 32)
    most = np.abs(blocks).max(axis=1, keepdims=True)
    power = np.exp2(np.ceil(np.log2(most / np.float32(top)))).astype(np.float32)
    wanted = torch.from_numpy(blocks / power).to(dtype).float().numpy() * power
    native = Native(codec_of(text), 1)
    said = native.decode(native.encode(x, Draw(), NONE)[0], Draw(), NONE, x.size).reshape(-1, 32)
    np.testing.assert_array_equal(said, wanted)
    large = np.abs(blocks) >= most * 2.0**-10  # not among the format's denormals
    assert (np.abs(said - blocks) <= np.abs(blocks) * 2.0**-places)[large].all()


@pytest.mark.parametrize(("text", "least", "most"), [("fp8", 6e-4, 7.5e-4), ("fp8-e5m2", 2.4e-3, 3e-3)])
def test_errors_of_fp8(text: str, least: float, most: float) -> None:
    xs = gauss(10, 1 << 16)
    said = np.sum([x - left for x, left in zip(xs, natively(codec_of(text), xs).residuals, strict=True)], axis=0)
    assert least < nmse(xs, said) < most


def test_only_the_block_that_is_not_finite_is_lost() -> None:
    x = gauss(1, 256)[0]
    x[40] = np.inf
    out = natively(Fp8(), [x]).out
    assert np.isnan(out[32:64]).all() and np.isfinite(np.delete(out, np.s_[32:64])).all()


def test_natural_has_the_variance_of_the_paper_and_no_bias() -> None:
    xs = gauss(10, 1 << 18)
    done = natively(codec_of("natural"), xs)
    said = np.sum([x - left for x, left in zip(xs, done.residuals, strict=True)], axis=0)
    assert nmse(xs, said) == pytest.approx(0.0816, rel=0.03)
    x, native = everything(512), Native(codec_of("natural"), 1)
    x = x[(np.abs(x) < 1e38) & (np.abs(x) > 1e-37)]
    said = np.array([x - native.encode(x, Draw(5, number, 0), NONE)[1] for number in range(1000)], np.float64)
    deviation = np.sqrt(said.var(axis=0) + x.astype(np.float64) ** 2 / 1000)
    assert np.abs((said.mean(axis=0) - x) / (deviation / np.sqrt(1000))).max() < 4


def test_natural_keeps_powers_of_two_and_rounds_denormals_without_bias() -> None:
    native = Native(codec_of("natural"), 1)
    powers = np.exp2(np.arange(-126, 128)).astype(np.float32)
    assert not native.encode(powers, Draw(), NONE)[1].any()
    tiny = np.full(100000, np.finfo(np.float32).tiny / 4, np.float32)
    said = native.decode(native.encode(tiny, Draw(), NONE)[0], Draw(), NONE, tiny.size)
    assert set(np.unique(said)) == {0, np.finfo(np.float32).tiny}
    assert said.mean(dtype=np.float64) == pytest.approx(float(tiny[0]), rel=0.02)
    largest = np.full(8, np.finfo(np.float32).max, np.float32)
    assert np.isfinite(natively(codec_of("natural"), [largest]).out).all()


@pytest.mark.parametrize("world", [1, 2, 3, 8, 31, 64, 100])
def test_the_majority_wins_and_ties_fall_by_a_fair_coin(world: int) -> None:
    xs = gauss(world, 5000)
    done = natively(codec_of("sign:magnitude=unit"), xs)
    votes = np.sum([np.where(np.signbit(x), -1, 1) for x in xs], axis=0)
    decided = votes != 0
    np.testing.assert_array_equal(done.out[decided], world * np.sign(votes[decided]))
    assert set(np.abs(done.out)) == {world}
    if world % 2 == 0:
        tied = done.out[~decided]
        assert abs(np.sign(tied).mean()) < 4 / np.sqrt(tied.size)


def test_coins_are_the_same_on_all_servers_and_others_in_the_next_round() -> None:
    native, numel = Native(codec_of("sign"), 2), 4096
    payloads = [native.encode(sign * np.ones(numel, np.float32), Draw(), NONE)[0] for sign in (1, -1)]
    first = native.sum(payloads, numel, Draw(7, 3, SERVER_RANK))
    assert native.sum(payloads[::-1], numel, Draw(7, 3, 0)) == first
    assert native.sum(payloads, numel, Draw(7, 4, SERVER_RANK)) != first


def test_the_magnitude_of_a_vote_is_the_greatest_mean_of_the_ranks() -> None:
    xs = [np.full(100, value, np.float32) for value in (-0.5, -2.0, 3.0)]
    np.testing.assert_array_equal(natively(codec_of("sign"), xs, factor=1 / 3).out, np.full(100, -3.0, np.float32))
