"""Ranks whose models differ, that wait in a circle, or never come: named on every rank within seconds, and the job can
be joined again. Of single tensors a mismatch costs one call: test_one_call.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fault import bodies
from tests.multiprocess.real_world import Pool, job


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    processes = Pool(3)
    yield processes
    processes.close()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (bodies.other_gradients, ["gradients", "'weight' [1, 256]", "rank 1 ", "'weight' [1, 512]"]),
        (bodies.more_gradients, ["gradients", "nothing more", "rank 1 ", "'1.weight' [1, 4]"]),
        (bodies.other_order, ["first", "second"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
@pytest.mark.parametrize("servers", [2, 0])
def test_disagreement_is_named_on_every_rank(
    pool: Pool, body: Callable[..., Any], words: list[str], servers: int
) -> None:
    with job(3, servers) as cluster:
        for name, text, seconds in pool.run(cluster, body):
            assert name == "MismatchError", text
            assert all(word in text for word in words), text
            assert seconds < 5


def test_a_rank_that_never_comes(pool: Pool) -> None:
    with job(3, 1, stall_warning=0.5, stall_timeout=2.0) as cluster:
        for name, text, seconds in pool.run(cluster, bodies.never_comes):
            assert name == "StalledError", text
            assert "waiting for rank 1; have ranks 0, 2" in text and "layer.weight" in text
            assert seconds < 5


def test_a_rank_that_has_left(pool: Pool) -> None:
    with job(3, 1) as cluster:
        seen = pool.run(cluster, bodies.leaves_early)
        assert seen[1][0] == ""
        for name, text, seconds in (seen[0], seen[2]):
            assert name in ("PeerLostError", "StalledError"), text
            assert "worker 1" in text or "rank 1" in text
            assert seconds < 5


def test_after_an_error_the_same_processes_join_again(pool: Pool) -> None:
    with job(3, 2) as cluster:
        assert {name for name, _, _ in pool.run(cluster, bodies.other_order)} == {"MismatchError"}
        assert pool.run(cluster, bodies.sums) == [60.0] * 3
