"""ZeRO++ over FSDP2 in processes on two hosts, as far as our groups can tell."""

from __future__ import annotations

import pytest

from byteps_like.collectives.planning.shape import CallShape
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.compression.registry import codec_of
from byteps_like.dtypes import DType
from tests.multiprocess.c10d.pool import C10dPool

RANKS = 4


def test_the_example_learns_as_one_process_does(c10d_pool: C10dPool) -> None:
    answers = c10d_pool.run(RANKS, "fsdp_bodies", "example")
    for answer in answers:
        assert 1e-3 < answer["difference"] <= answer["allowed"], "something was encoded"
        assert answer["losses"] == pytest.approx(answer["alone"], rel=0.01)
        assert answer["losses"][-1] < answer["losses"][0]
        assert answer["fingerprint"] == answers[0]["fingerprint"], "the same weights, to the bit, on all ranks"


def slot(codec: str, numel: int) -> int:
    return 8 + -(-codec_of(codec).plan(numel, 1).payload // 8) * 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_step_sends_each_shard_once_and_each_host_s_sum_once(c10d_pool: C10dPool, dtype: str) -> None:
    """Of two hosts: a message per rank and FSDP module each way, whatever the sizes; backward gathers within hosts."""
    for answer in c10d_pool.run(RANKS, "fsdp_bodies", "counted", dtype):
        assert len(answer["shards"]) == 3
        expected = 0
        for numel in answer["shards"]:
            gathered = slot("int8", numel)
            described = len(CallShape(Kind.ALL_GATHER, RANKS, (gathered,) * RANKS, DType.UINT8).describe("two_level"))
            expected += RANKS * (gathered + described)
            expected += RANKS * (slot("int4", numel) + len("all_to_all uint8[uneven], pairwise"))
        assert answer["sent"] == expected
        assert 0.01 < answer["error"] < 0.2


def test_mistakes_are_named(c10d_pool: C10dPool) -> None:
    for texts in c10d_pool.run(RANKS, "fsdp_bodies", "refused"):
        unsharded, summed, across = texts
        assert "call fully_shard(module) before" in unsharded
        assert "made to be summed" in summed
        assert "blocks.1" in across and "reshard_after_forward=2" in across
