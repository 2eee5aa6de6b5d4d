"""What holds for every codec: the native one gives the reference's bytes, whatever comes is decoded or refused."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import byteps_like._core as _core
from byteps_like.compression.codec import Codec, Draw, Floats, Trait
from byteps_like.compression.registry import CODECS, SHORT, codec_of
from byteps_like.errors import CorruptError, InvalidArgumentError
from tests.fakes.codec_rounds import Native, by_reference, natively

VARIANTS: tuple[str, ...] = (
    "fp8:block=256", "fixed:block=100,bits=16", "sign:block=64,magnitude=unit",
    "int:bits=8,rounding=stochastic,scale=shared", "int:bits=4,scale=shared", "int:bits=2,block=128", "onebit:block=64",
    "qsgd:norm=l2,levels=127", "qsgd:scale=shared", "ternary:scale=shared", "ternary:clip=0,block=1024",
    "dithering:partition=natural", "dithering:partition=natural,levels=127,norm=l2",
    "thc:table=0.22.41.58.74.89.103.117.131.145.159.174.190.207.226.248",  # sums of 16 bits
    "thc:bits=3,clamp=64,table=0.9.15.20.25.30.36.100",
    "thc:bits=2,table=uniform,seed=5",
    "topk:ratio=0.3", "topk:ratio=0.1,select=sampled", "randomk:ratio=0.3,scale=1", "chunktopk:chunk=20,ratio=0.4",
    "blocksparse:block=16", "blocksparse:block=1",
)  # fmt: skip
"""Texts of codecs to try beside all defaults and short names."""

ALL = list(dict.fromkeys([*(kind() for kind in CODECS), *SHORT.values(), *map(codec_of, VARIANTS)]))
KINDS = ("gauss", "lognormal", "zeros", "sparse", "denormal", "same", "not finite")
SIZES = (1, 31, 256, 1000, 33000)

each_codec = pytest.mark.parametrize("codec", ALL, ids=lambda codec: codec.spec())


def make(kind: str, numel: int, world: int = 3, seed: int = 0) -> list[Floats]:
    """Gradients of `world` ranks."""
    random = np.random.default_rng(seed)
    xs = [random.standard_normal(numel).astype(np.float32) for _ in range(world)]
    if kind == "lognormal":
        xs = [np.sign(x) * np.exp(x * 2).astype(np.float32) for x in xs]
    elif kind == "zeros":
        xs = [np.zeros_like(x) for x in xs]
    elif kind == "sparse":
        xs = [x * (random.random(numel) < 0.02) for x in xs]
    elif kind == "denormal":
        xs = [x * np.float32(1e-41) for x in xs]
    elif kind == "same":
        xs = [np.full(numel, np.float32(-0.25)) for _ in xs]
    elif kind == "not finite":
        xs[0][numel // 2], xs[1][0], xs[1][-1] = np.nan, np.inf, -np.inf
    return [np.ascontiguousarray(x, np.float32) for x in xs]


def same_bits(a: Floats, b: Floats) -> bool:
    """Bit by bit, but for the payload of a NaN."""
    return bool(np.all((a.view(np.uint32) == b.view(np.uint32)) | (np.isnan(a) & np.isnan(b))))


@each_codec
@pytest.mark.parametrize("kind", KINDS)
def test_the_native_codec_gives_the_reference_s_bytes(codec: Codec, kind: str) -> None:
    with np.errstate(all="ignore"):
        for numel in SIZES:
            xs = make(kind, numel)
            wanted, found = by_reference(codec, xs, factor=1 / 3), natively(codec, xs, factor=1 / 3)
            assert found.agreed.tobytes() == wanted.agreed.tobytes(), numel
            assert found.payloads == wanted.payloads, numel
            assert all(same_bits(*pair) for pair in zip(found.residuals, wanted.residuals, strict=True)), numel
            assert found.result == wanted.result, numel
            assert same_bits(found.out, wanted.out), numel


@each_codec
def test_all_instruction_sets_give_the_same_bytes(codec: Codec) -> None:
    xs = make("lognormal", 33000)
    chosen = _core.kernels.instruction_set()
    rounds = []
    try:
        names = [name for name in ("avx512", "avx2", "neon", "scalar") if _core.kernels.select_instruction_set(name)]
        for name in names:
            assert _core.kernels.select_instruction_set(name)
            rounds.append(natively(codec, xs))
    finally:
        assert _core.kernels.select_instruction_set(chosen)
    for other in rounds[1:]:
        assert (other.payloads, other.result) == (rounds[0].payloads, rounds[0].result)
        assert same_bits(other.out, rounds[0].out)


@each_codec
def test_zeros_stay_zeros(codec: Codec) -> None:
    for numel in SIZES:
        assert not natively(codec, make("zeros", numel)).out.any(), numel


@each_codec
def test_what_is_not_finite_is_seen(codec: Codec) -> None:
    for numel in SIZES:
        assert not np.isfinite(natively(codec, make("not finite", numel)).out).all(), numel


@each_codec
def test_sizes_are_within_the_plan(codec: Codec) -> None:
    for numel in SIZES:
        plan, native = codec.plan(numel, 3), _core.Codec(codec.spec(), 3).plan(numel)
        assert (plan.payload, plan.result, plan.prelude) == (native["payload"], native["result"], native["prelude"])
        done = by_reference(codec, make("gauss", numel))
        assert max(map(len, done.payloads)) <= plan.payload
        assert len(done.result) <= plan.result


@pytest.mark.parametrize(
    "codec", [codec for codec in ALL if codec.trait in (Trait.WIDENING, Trait.VOTE)], ids=lambda codec: codec.spec()
)
def test_the_order_of_contributions_makes_no_difference(codec: Codec) -> None:
    native, xs = Native(codec, 5), make("lognormal", 2000, world=5)
    done = natively(codec, xs)
    for _ in range(5):
        shuffled = [done.payloads[i] for i in np.random.default_rng(1).permutation(5)]
        assert native.sum(shuffled, 2000, Draw(7, 3, 0xFFFFFFFF)) == done.result


@each_codec
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_bytes_are_decoded_or_refused(codec: Codec, data: st.DataObject) -> None:
    numel = data.draw(st.sampled_from((1, 100, 513)))
    xs = make("gauss", numel)
    done, native = natively(codec, xs), Native(codec, 3)
    origin = data.draw(st.sampled_from([done.payloads[0], done.result]))
    at = data.draw(st.integers(0, max(0, len(origin) - 1)))
    junk = data.draw(st.binary(max_size=40))
    mutated = data.draw(st.sampled_from([origin[:at] + junk + origin[at + len(junk) :], origin[:at], origin + junk]))
    for attempt in (
        lambda: native.decode(mutated, Draw(7, 3, 0), done.agreed, numel),
        lambda: native.sum([mutated], numel, Draw(7, 3, 0)) if codec.trait is not Trait.DENSE else None,
    ):
        with contextlib.suppress(CorruptError):
            attempt()


def test_both_registries_have_the_same_codecs_with_ids_of_their_own() -> None:
    for kind in CODECS:
        native = _core.Codec(kind().spec(), 2)
        assert (native.id, native.trait, native.spec) == (kind.id, int(kind().trait), kind().spec())
    ids = [kind.id for kind in CODECS]
    assert ids == sorted(set(ids))
    assert _core.codec_names() == [kind.name for kind in CODECS]


@pytest.mark.parametrize(
    ("text", "why"),
    [("thunder", "there is no codec 'thunder'"), ("onebit:brick=3", "'brick'"), ("onebit:block=x", "invalid literal"),
     ("onebit:block", "not key=value")],
)  # fmt: skip
def test_mistakes_in_a_codec_s_text_are_named(text: str, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        codec_of(text)


@pytest.mark.parametrize("spec", ["onebit", "onebit:block=31", "onebit:block=64,extra=1", "nothing:a=1"])
def test_the_core_refuses_what_it_does_not_know(spec: str) -> None:
    with pytest.raises(InvalidArgumentError):
        _core.Codec(spec, 2)
