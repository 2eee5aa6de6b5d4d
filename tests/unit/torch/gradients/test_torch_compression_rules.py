"""What `compression=` may be, and which parameter travels how."""

from __future__ import annotations

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.compression.quantised.onebit import Onebit
from byteps_like.compression.registry import codec_of
from byteps_like.config import Config
from byteps_like.torch.compression.casts import BF16Compressor, FP16Compressor
from byteps_like.torch.compression.params import from_attributes
from byteps_like.torch.compression.policy import RAW, Compress, LowRank
from byteps_like.torch.compression.rules import rules_of, way_of
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.settings import configure

BIG, SMALL, BIAS = torch.empty(256, 64), torch.empty(255, 64), torch.empty(1 << 20)
ONEBIT = codec_of("onebit")


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, RAW),
        ("", RAW),
        ("none", RAW),
        ("fp16", Compress(FP16Compressor)),
        (bps.Compression.bf16, Compress(BF16Compressor)),
        ("onebit", Compress(Onebit())),
        (Onebit(64), Compress(Onebit(64))),
        ("onebit:block=64", Compress(Onebit(64))),
        (bps.Compression.onebit(64, feedback=True), Compress(Onebit(64), True)),
        (Compress("onebit", momentum=0.9), Compress(Onebit(), momentum=0.9)),
        ("powersgd:rank=2,feedback=0", Compress(LowRank(2), False)),
        ({"compressor": "onebit", "ef": "vanilla"}, Compress(Onebit(), True, two_way=True)),
        (
            {"compressor": "topk", "k": 0.01, "ef": "vanilla"},
            Compress("topk:ratio=0.01", True, two_way=True),
        ),
        ({"compressor": "topk", "k": 1024}, Compress("topk:ratio=0.001", False)),
        ({"compressor": "randomk", "k": 0.5, "seed": 7}, Compress("randomk:ratio=0.5,scale=1,seed=7", False)),
        (
            {"compressor": "dithering", "k": 3, "partition": "natural", "normalize": "l2"},
            Compress("dithering:levels=3,partition=natural,norm=l2", False),
        ),
        (bps.Compression.topk(0.5), Compress("topk:ratio=0.5")),
        (bps.Compression.int8(feedback=False), Compress("int8", False)),
        (
            {"compressor": "onebit", "scaling": "true", "momentum": "nesterov", "momentum_mu": 0.9},
            Compress(Onebit(), False, 0.9),
        ),
    ],
)
def test_forms(given, wanted):
    assert way_of(given) == wanted


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (7, "Compression.fp16"),
        ("twobit", "onebit"),
        ("onebit:size=3", "block"),
        ("powersgd:rank=0", "rank"),
        ("powersgd:width=3", "width"),
        ({"compressor": "twobit"}, "onebit"),
        ({"compressor": "topk"}, "'k'"),
        ({"compressor": "onebit", "kk": 3}, "kk"),
        ({"compressor": "onebit", "ef": "fancy"}, "vanilla"),
        ({"compressor": "onebit", "momentum": "nesterov"}, "momentum_mu"),
        ({"compressor": "onebit", "scaling": False}, "sign"),
        ("a -> onebit; b", "pattern"),
    ],
)
def test_what_is_refused_says_what_there_is(given, words):
    with pytest.raises(bps.InvalidArgumentError, match=words):
        rules_of(given)


@pytest.mark.parametrize(
    "wrong",
    [
        {"codec": "fp16", "feedback": True},
        {"codec": "onebit", "momentum": 1.0},
        {"codec": "onebit", "clip": -1.0},
        {"codec": "onebit", "warmup": ((0, None),)},
        {"codec": LowRank(2), "two_way": True},
    ],
)
def test_wrappers_that_cannot_be(wrong):
    with pytest.raises(bps.InvalidArgumentError):
        Compress(**wrong)


def test_norms_biases_and_small_ones_stay_raw_unless_named():
    rules = rules_of("onebit")
    assert [rules.of("x", item) is RAW for item in (BIG, SMALL, BIAS)] == [False, True, True]
    rules = rules_of({"head.*": "onebit", "*.bias": None, "*": "bf16"})
    assert [rules.of(name, SMALL).name for name in ("head.w", "head.bias", "w")] == ["onebit", "onebit", ""]
    assert rules.of("w", SMALL).cast is BF16Compressor and rules.of("w.bias", BIAS) == RAW
    assert rules_of("onebit", min_bytes=0).of("x", SMALL).name == "onebit"


def test_rules_as_a_text():
    rules = rules_of("head.* -> onebit:block=64; *.bias -> none; * -> bf16")
    assert rules.of("head.w", SMALL).codec == Onebit(64)
    assert rules.of("a.bias", BIAS) == RAW
    assert rules.of("a", BIG).cast is BF16Compressor


def test_integers_complex_and_empty_ones_travel_as_they_are():
    rules = rules_of({"x": "onebit"})
    for item in (torch.zeros(3, 3, dtype=torch.complex64), torch.zeros(0, 3), torch.zeros(9, 9, dtype=torch.int64)):
        assert rules.of("x", item) == RAW


def test_powersgd_takes_what_it_halves():
    rules = rules_of(bps.Compression.powersgd(4))
    assert rules.of("x", torch.empty(256, 256)).low_rank == LowRank(4)
    assert rules.of("x", torch.empty(64, 32, 3, 3)).low_rank and rules.of("x", torch.empty(1 << 20)) == RAW
    assert not LowRank(4).fits(torch.Size([16, 15])) and LowRank(4).fits(torch.Size([16, 16]))


def test_feedback_is_decided_by_the_optimizer():
    assert rules_of("onebit", plain=True).of("x", BIG).feedback
    assert not rules_of("onebit", plain=False).of("x", BIG).feedback
    assert rules_of(Compress("onebit", True), plain=False).of("x", BIG).feedback
    assert rules_of(bps.Compression.powersgd(), plain=False).of("x", BIG).feedback


def test_attributes_that_byteps_sets():
    parameter = torch.nn.Parameter(torch.empty(3, 4))
    assert from_attributes(parameter) is None
    parameter.byteps_compressor_type, parameter.byteps_ef_type = "onebit", "vanilla"
    parameter.byteps_compressor_onebit_scaling = "True"
    assert from_attributes(parameter) == Compress(Onebit(), True, two_way=True)
    other = torch.nn.Parameter(torch.empty(3, 4))
    other.byteps_compression_params = {"compressor": "onebit"}
    assert rules_of(None).of("x", other).codec == Onebit()


def test_patterns_that_match_nothing_are_warned_of():
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with runtime.bound(LocalWorker()), pytest.warns(UserWarning, match="wieght.*named_parameters"):
        bps.DistributedOptimizer(optimizer, model.named_parameters(), compression={"wieght": "onebit"}).close()


def test_the_setting_is_for_who_says_nothing():
    config = Config.from_env({"BYTEPS_LIKE_COMPRESSION": "onebit", "BYTEPS_MIN_COMPRESS_BYTES": "16"})
    assert (config.compression, config.min_compress_bytes) == ("onebit", 16)
    model = torch.nn.Linear(9, 9)
    with runtime.bound(LocalWorker()) as bound:
        configure(bound, compression=config.compression, min_compress_bytes=config.min_compress_bytes)
        for given, wanted in (({}, True), ({"compression": "none"}, False), ({"shard": "optimizer"}, True)):
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **given)
            assert bool(optimizer._distribution.reducer.codecs.buckets) is wanted
            optimizer.close()


def test_a_warm_up_has_codecs_in_order():
    way = Compress("onebit:block=128", warmup=((2, None), (3, Onebit(32))))
    assert [way.text(rounds) for rounds in (0, 1, 2, 4, 5, 99)] == [
        "",
        "",
        *["onebit:block=32"] * 2,
        *["onebit:block=128"] * 2,
    ]
    assert Compress("onebit", two_way=True).text(0) == "twoway " + ONEBIT.spec()
