"""Whether to encode, by figures: what is usual, what is too much, what the clock says. Pure."""

from __future__ import annotations

import numpy as np
import pytest

import byteps_like._core as _core
from byteps_like.compression.codec import Draw
from byteps_like.compression.figures import RISES, Encoding, Figures, Usual, alarm, usual
from byteps_like.compression.quantised.ternary import Ternary
from byteps_like.compression.registry import CODECS, SHORT, codec_of
from byteps_like.tuner.probe import MARGIN, PACE, Probe, medians
from byteps_like.tuner.search import ParzenSearch, Trial
from byteps_like.tuner.setting import Setting, Space, load, pack, save, unpack

NUMEL = 1 << 12
SPECS = sorted({kind().spec() for kind in CODECS} | {codec.spec() for codec in SHORT.values()})


def numbers(kind: str, seed: int = 5) -> np.ndarray:
    random = np.random.default_rng(seed)
    if kind == "gauss":
        return random.standard_normal(NUMEL).astype(np.float32)
    if kind == "lognormal":
        return (np.exp(random.standard_normal(NUMEL)) * random.choice([-1, 1], NUMEL)).astype(np.float32)
    if kind == "tiny":
        return np.full(NUMEL, 1e-9, np.float32)
    return np.where(random.random(NUMEL) < 0.05, 100.0, random.standard_normal(NUMEL)).astype(np.float32)


def look(spec: str, x: np.ndarray) -> Figures:
    return Encoding.alone(_core.Codec(spec, 4), x).figures(x, x)


@pytest.mark.parametrize("spec", SPECS)
def test_usual_gradients_alarm_nobody(spec: str) -> None:
    like = usual(spec, 4, NUMEL)
    for kind in ("gauss", "lognormal"):
        assert alarm([look(spec, numbers(kind))], like, feedback=False) == ""


@pytest.mark.parametrize(
    ("spec", "error", "clamp"),
    [("int8", 4e-4, 0.0), ("thc4", 0.0195, 1 / 32), ("thc:clamp=64", 0.018, 1 / 64), ("ternary", 1.0, 0.0124)],
)
def test_what_is_usual_is_what_the_docs_say(spec: str, error: float, clamp: float) -> None:
    found = usual(codec_of(spec).spec(), 4, 1 << 15)
    assert found.nmse == pytest.approx(error, rel=0.15) and found.clamp == pytest.approx(clamp, rel=0.15, abs=1e-9)


@pytest.mark.parametrize("scale", ["own", "shared"])
def test_what_ternary_cuts_off_is_counted_as_the_reference_does(scale: str) -> None:
    codec, x = Ternary(scale=scale, block=1024), numbers("heavy")
    agreed = codec.prepare(x, Draw(), 4) if scale == "shared" else np.zeros(0, np.float32)
    found = _core.Codec(codec.spec(), 4).clamped(x, (0, 0, 0), agreed)
    assert found == codec.clamped(x, Draw(), agreed) == int((np.abs(x) > 50).sum())


def test_heavy_tails_are_cut_off_by_a_codec_with_a_clip() -> None:
    spec = codec_of("ternary").spec()
    assert "of the elements are clamped" in alarm([look(spec, numbers("heavy"))], usual(spec, 4, NUMEL), feedback=False)


def test_numbers_too_small_or_too_large_for_a_codec_are_noticed() -> None:
    like = usual("fp16", 4, NUMEL)
    assert "NMSE" in alarm([look("fp16", numbers("tiny"))], like, feedback=False)
    assert "not finite" in alarm([look("fp16", 1e6 * numbers("gauss"))], like, feedback=False)
    broken = look("fp16", np.full(8, np.nan, np.float32))
    assert broken == Figures(broken=1.0) and alarm([broken], like, feedback=False) == "", "not the codec's doing"


def seen(*ratios: float, nmse: float = 0.36) -> list[Figures]:
    return [Figures(energy=1.0, error=nmse, elements=100, gradient=1.0, residual=ratio**2) for ratio in ratios]


@pytest.mark.parametrize(
    ("ratios", "alarms"),
    [
        ((0.5, 0.8, 0.9, 0.95), False),  # grows, below the bound of 2 * 0.6 / 0.64
        ((5.0, 6.0, 5.5, 6.5), False),  # above it, to and fro
        ((2.0, 4.0, 6.0), False),  # not long enough
        ((2.0, 3.0, 4.0, 5.0), True),
        ((40.0,), True),
    ],
)
def test_a_residual_that_grows_beyond_its_bound(ratios: tuple[float, ...], alarms: bool) -> None:
    assert RISES == 3
    like = Usual(0.6, 0.0)
    assert bool(alarm(seen(*ratios), like, feedback=True)) is alarms
    assert alarm(seen(*ratios), like, feedback=False) == ""


def test_a_codec_that_shrinks_nothing_has_no_bound() -> None:
    assert "bound" in alarm(seen(1.0, 2.0, 3.0, 4.0, nmse=1.0), Usual(1.0, 0.0), feedback=True)


def probed(coded: float, raw: float) -> tuple[Setting, list[bool], list[Trial]]:
    probe, trials = Probe(Setting("allreduce", credit_bytes=0)), []
    for number in range(PACE.trials):
        setting = probe.ask()
        seconds = (coded if setting.coded else raw) + np.array([0.0, 0.0, 0.001 * number, 9.0])
        trials.append(Trial(setting, tuple(map(float, seconds))))
        probe.tell(trials[-1])
    return probe.keep(trials), [trial.setting.coded for trial in trials], trials


def test_the_probe_takes_turns_and_keeps_what_is_faster() -> None:
    kept, turns, trials = probed(1.0, 0.5)
    assert turns == [True, False, True, False] and not kept.coded
    assert medians(trials) == (pytest.approx(1.001, abs=2e-3), pytest.approx(0.501, abs=2e-3))
    assert probed(0.5, 1.0)[0].coded
    assert probed(1.0 + 0.5 * MARGIN, 1.0)[0].coded, "within the margin what was asked for stays"
    assert Probe(Setting()).keep(trials[:1]).coded, "nothing to compare with"


def test_on_and_off_is_a_dimension_of_the_tuner(tmp_path) -> None:
    space, first = Space(("server",), codings=(True, False)), Setting("server")
    search, tried = ParzenSearch(space, first), []
    for _ in range(14):
        tried.append(search.ask())
        search.tell(Trial(tried[-1], (1.0 if tried[-1].coded else 0.5,)))
    assert tried[0] == first.__class__("server", segment_bytes=tried[0].segment_bytes) and not tried[1].coded
    assert sum(not setting.coded for setting in tried) > 7, "it goes where it is fast"
    off = Setting("server", 1 << 20, 2 << 20, 65536, coded=False)
    assert unpack(pack(off, space), space) == off and "nothing encoded" in str(off)
    save(tmp_path / "tuned.json", off)
    assert load(tmp_path / "tuned.json") == off
