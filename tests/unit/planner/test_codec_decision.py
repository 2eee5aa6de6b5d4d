"""Whether encoding pays: the model is what it says, and turns where arithmetic says it must."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from byteps_like.cli.main import app
from byteps_like.compression.curves import CodecCosts, Curve, measure
from byteps_like.compression.decision import RAW, Path, SendingCost, break_even, decide
from byteps_like.compression.registry import codec_of

FREE = SendingCost(4, 4, False, CodecCosts())


def coded(nanoseconds: float, nbytes: float = 1.0) -> SendingCost:
    """`nbytes` per element each way, so many ns per element to encode and to decode."""
    line = Curve(slope=nanoseconds * 1e-9)
    return SendingCost(nbytes, nbytes, False, CodecCosts(encode=line, decode=line))


def test_a_curve_goes_through_what_was_measured() -> None:
    sizes = (1000, 10_000, 100_000)
    curve = Curve.through(sizes, [1e-6 + 2e-9 * size for size in sizes])
    assert curve(50_000) == pytest.approx(1e-6 + 2e-9 * 50_000)
    assert curve(1) == curve.floor == pytest.approx(3e-6)


def test_one_piece_takes_the_sum_of_its_stages_and_many_what_the_slowest_takes() -> None:
    way, path = coded(1.0), Path(4, 4, 1e9, latency=0.0)
    assert way.seconds(10**6, 1, path) == pytest.approx(2e-3 + 2 * 1e-3)
    assert way.seconds(10**6, 10, path) == pytest.approx((2e-3 + 2 * 1e-3) / 10 + 9 * 2e-3 / 10)


@given(rate=st.floats(1e6, 1e11), other=st.floats(1e6, 1e11), numel=st.integers(1, 1 << 26))
def test_a_faster_line_never_takes_longer(rate: float, other: float, numel: int) -> None:
    slow, fast = sorted((rate, other))
    ways = {RAW: FREE, "coded": coded(1.0)}
    assert min(decide(numel, ways, Path(4, 4, fast)).seconds.values()) <= min(
        decide(numel, ways, Path(4, 4, slow)).seconds.values()
    ) * (1 + 1e-9)


def test_raw_is_chosen_where_encoding_takes_longer_than_the_bytes_it_saves() -> None:
    ways = {RAW: FREE, "coded": coded(1.0)}
    assert decide(1 << 24, ways, Path(4, 4, 50e9 / 8)).name == RAW
    assert decide(1 << 24, ways, Path(4, 4, 1e9 / 8)).name == "coded"
    # In many pieces the slowest stage decides: 2 ns of encoding and decoding against 4 bytes on the line.
    limit = break_even(
        coded(1.0), FREE, 1 << 26, Path(4, 4, 1.0, latency=0.0), [1e9 * rate for rate in (1, 1.9, 2.2, 4)]
    )
    assert limit == 1.9e9


def test_what_ranks_agree_on_first_costs_a_round_trip() -> None:
    with_prelude, path = SendingCost(1, 1, True, CodecCosts()), Path(4, 4, 1e9, latency=1e-3)
    assert with_prelude.seconds(1000, 1, path) - coded(0.0).seconds(1000, 1, path) == pytest.approx(2e-3)


def test_a_codec_is_measured() -> None:
    costs = measure(codec_of("onebit"), 4, sizes=(1 << 12, 1 << 16))
    assert all(curve(1 << 16) > 0 for curve in (costs.encode, costs.decode, costs.add, costs.emit))


def test_the_command_says_what_to_take_and_up_to_where() -> None:
    found = CliRunner().invoke(app, ["plan", "codecs", "--gbps", "0.4", "--codecs", "onebit", "--json"])
    assert found.exit_code == 0, found.output
    said = json.loads(found.output)
    assert [row["best"] for row in said["rows"]][-1] == "onebit"
    assert said["pays_below_gbps"]["onebit"] > 0.4


def test_the_command_names_a_codec_that_there_is_not() -> None:
    found = CliRunner().invoke(app, ["plan", "codecs", "--codecs", "thunder"])
    assert found.exit_code != 0
