"""Every example of examples/parallel over our backend, against the same training by one process."""

from __future__ import annotations

import importlib.util
import re

import pytest

from tests.multiprocess.c10d.pool import EXAMPLES, C10dPool

CASES = [
    (2, "ddp"),
    (4, "ddp"),
    (2, "fsdp2"),
    (4, "fsdp2"),
    (4, "fsdp2_compressed"),
    (4, "hsdp"),
    (2, "tensor_parallel"),
    (4, "tensor_parallel"),
    (4, "two_dimensions"),
    (4, "pipeline", "ScheduleGPipe"),
    (4, "pipeline", "Schedule1F1B"),
    (2, "pipeline", "ScheduleInterleaved1F1B"),
    (4, "pipeline", "ScheduleInterleavedZeroBubble"),
    (4, "ring_attention"),
    (4, "ulysses"),
    (4, "mixture_of_experts"),
    (4, "zero1"),
    (4, "post_local_sgd"),
    (2, "halo"),
    (4, "halo"),
]
"""Ranks, example, variant; float64 leaves nowhere for a wrong sum to hide."""

IN_FLOAT32 = [(2, "ddp"), (4, "two_dimensions"), (4, "ring_attention")]

FRAMEWORKS = {"with_accelerate": "accelerate", "with_lightning": "lightning"}
"""Example, the package it is about."""

ELSEWHERE = {"elastic_restart", "pipeline_compressed"}
"""What needs torchrun itself, test_elastic_restart.py, or is near one process, test_pipeline_compression.py."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_example_gives_what_one_process_gives(c10d_pool: C10dPool, case: tuple[int, str]) -> None:
    check(c10d_pool, case, "float64")


@pytest.mark.parametrize("case", IN_FLOAT32, ids=lambda case: "-".join(map(str, case)))
def test_example_in_float32(c10d_pool: C10dPool, case: tuple[int, str]) -> None:
    check(c10d_pool, case, "float32")


@pytest.mark.parametrize("example", FRAMEWORKS)
def test_example_with_a_framework(c10d_pool: C10dPool, example: str) -> None:
    package = FRAMEWORKS[example]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"needs `pip install {package}`")
    check(c10d_pool, (2, example), "float64")


def check(pool: C10dPool, case: tuple[int, str], dtype: str) -> None:
    """The loss of every step and every weight, on every rank."""
    ranks, example, *variant = case
    answers = pool.run(ranks, "parallel_bodies", "compared", example, dtype, *variant)
    for rank, answer in enumerate(answers):
        assert answer["difference"] <= answer["allowed"], f"rank {rank}"
        assert answer["losses"][-1] < answer["losses"][0], "it learns"
        assert answer["fingerprint"] == answers[0]["fingerprint"], "the same weights, to the bit, on all ranks"


def test_the_comparison_notices_a_missing_exchange(c10d_pool: C10dPool) -> None:
    for answer in c10d_pool.run(2, "parallel_bodies", "without_exchange"):
        assert answer["difference"] > 1000 * answer["allowed"]


def test_every_example_is_run_and_short() -> None:
    pages = {page.stem: page.read_text() for page in EXAMPLES.glob("*.py") if not page.stem.startswith("_")}
    assert pages.keys() == {case[1] for case in CASES} | FRAMEWORKS.keys() | ELSEWHERE
    for name, text in pages.items():
        assert len(text.splitlines()) <= 80, name
        assert re.search(rf"torchrun .*examples/parallel/{name}\.py", text), name


def test_the_docs_count_those_that_are_compared() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "reference" / "performance.md").read_text()
    counted = re.search(r"train to the weights of one process \| (\d+) examples", page)
    assert counted is not None and int(counted[1]) == len({case[1] for case in CASES} | FRAMEWORKS.keys())
