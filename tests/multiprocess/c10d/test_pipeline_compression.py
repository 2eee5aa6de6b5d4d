"""Pipelines of torch with encoded sends, in processes on hosts of their own, against the same ones without."""

from __future__ import annotations

import pytest

from byteps_like.compression.registry import codec_of
from tests.multiprocess.c10d.pipeline_bodies import CHUNKS, ROWS, WIDTH
from tests.multiprocess.c10d.pool import C10dPool

RAW = 4 * ROWS * WIDTH


def slot(codec: str | None) -> int:
    return RAW if codec is None else 8 + -(-codec_of(codec).plan(ROWS * WIDTH, 1).payload // 8) * 8


CASES = [
    ("ScheduleGPipe", 3, "int8", None, True),
    ("Schedule1F1B", 3, "int8", None, True),
    ("Schedule1F1B", 3, "int8", "int4", False),
    ("ScheduleInterleaved1F1B", 2, "int8", "fp16", False),
]
"""Schedule, ranks, codecs of gradients and activations, the former in the epilogue alone."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_gradients_are_close_and_bytes_are_the_codecs(
    c10d_pool: C10dPool, case: tuple[str, int, str, str, bool]
) -> None:
    schedule, ranks, gradients, activations, late = case
    options = {"gradients": gradients, "activations": activations, "epilogue_only": late}
    answers = c10d_pool.run(ranks, "pipeline_bodies", "compared", schedule, "float32", options)
    stages = 2 * ranks if schedule == "ScheduleInterleaved1F1B" else ranks
    expected = [0] * ranks
    for stage in range(stages):
        if stage < stages - 1:
            expected[stage % ranks] += CHUNKS * slot(activations)
        if stage > 0:
            raw = CHUNKS - (stages - stage) if late and schedule == "Schedule1F1B" else 0
            expected[stage % ranks] += raw * RAW + (CHUNKS - raw) * slot(gradients)
    assert [answer["sent"] for answer in answers] == expected
    assert 1e-4 < max(answer["error"] for answer in answers) < (0.01 if activations is None else 0.15)


def test_without_loss_all_is_equal_to_the_bit(c10d_pool: C10dPool) -> None:
    """A codec that keeps every bfloat16, both ways."""
    options = {"gradients": "bf16", "activations": "bf16", "epilogue_only": False}
    answers = c10d_pool.run(3, "pipeline_bodies", "compared", "Schedule1F1B", "bfloat16", options)
    assert [answer["error"] for answer in answers] == [0.0] * 3
    assert answers[1]["sent"] == 2 * CHUNKS * slot("bf16")


def test_ranks_with_different_codecs_are_told(c10d_pool: C10dPool) -> None:
    for text in c10d_pool.run(3, "pipeline_bodies", "different"):
        assert "between stages 0 and 1 rank 0" in text and "int:bits=4" in text and "int:bits=8" in text


def test_the_example_learns_as_one_process_does(c10d_pool: C10dPool) -> None:
    for answer in c10d_pool.run(2, "pipeline_bodies", "example"):
        assert 1e-4 < answer["difference"] <= answer["allowed"], "something was encoded"
        assert answer["losses"] == pytest.approx(answer["alone"], rel=0.001)
        assert answer["losses"][-1] < answer["losses"][0]
