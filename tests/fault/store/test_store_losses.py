"""Ranks that die while servers keep values, and the others finish: every contribution counts once, nobody waits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fault.store import store_bodies as bodies
from tests.multiprocess.real_world import Pool, job

RANKS = 4
POLICIES = ["asp", "ssp:s=1", "dssp:lo=1,hi=4", "bsp", "k_of_n:k=2,late=next", "k_of_n:k=3,grace=0.05", "backup:b=1"]


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


def _survivors(answers: list[tuple[bool, Any]]) -> list[Any]:
    """What all ranks but the victim have returned."""
    assert answers[1] == (False, "the process died")
    alive = [answer for rank, answer in enumerate(answers) if rank != 1]
    assert all(ok for ok, _ in alive), "\n".join(str(text) for _, text in alive)
    return [result for _, result in alive]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_under_every_policy_the_others_finish_and_what_they_pushed_counts_once(
    tmp_path: Path, pool: Pool, transport: str
) -> None:
    with job(RANKS, 2, transport=transport) as cluster:
        found = _survivors(pool.answers(cluster, bodies.count_on, POLICIES, str(tmp_path)))
    for number, policy in enumerate(POLICIES):
        of_policy = [rank[number] for rank in found]
        values = of_policy[0]["values"]
        assert all(one["values"] == values for one in of_policy), policy
        assert [values[rank] for rank in (0, 2, 3)] == [one["counted"] for one in of_policy], policy
        assert values[1] > 0, f"{policy}: the victim was to have contributed before"
        if policy == "bsp":
            assert all(one["least"] == RANKS - 1 for one in of_policy), "rounds without the victim"
            assert values[0] == values[2] == values[3] > values[1]


def test_one_store_that_raises_ends_the_job_for_all(pool: Pool) -> None:
    pid = pool.processes[1].pid
    with job(RANKS, 2) as cluster:
        answers = pool.answers(cluster, bodies.raise_or_finish, ["finish", "raise"])
    for name, text, seconds in _survivors(answers):
        assert name == "PeerLostError" and "worker 1 (host " in text and f"pid {pid}" in text
        assert seconds < 3


def test_stores_that_finish_go_on(pool: Pool) -> None:
    with job(RANKS, 2) as cluster:
        answers = pool.answers(cluster, bodies.raise_or_finish, ["finish", "finish"])
    assert [name for name, _, _ in _survivors(answers)] == ["", "", ""]


@pytest.mark.parametrize("how", ["push_pull", "allgather", "barrier"])
def test_what_needs_the_dead_rank_names_it(pool: Pool, how: str) -> None:
    with job(RANKS, 2) as cluster:
        answers = pool.answers(cluster, bodies.then_sum, how)
    for name, text, seconds in itertools.chain(*_survivors(answers)):
        assert name == "PeerLostError" and ("rank 1" in text or "worker 1 (" in text), text
        assert seconds < 5


@pytest.mark.parametrize("consistency", ["asp", "backup:b=1", "ssp:s=2"])
def test_training_goes_on_to_the_end(pool: Pool, consistency: str) -> None:
    with job(RANKS, 2) as cluster:
        found = _survivors(pool.answers(cluster, bodies.train, consistency, 240))
    assert all(one["accuracy"] > 0.9 for one in found), found
    assert len({one["weights"] for one in found}) == 1, "all ranks end with the servers' weights"


@pytest.mark.parametrize("codec", ["", "sparseloco"])
def test_learners_go_on_without_one_that_has_died(pool: Pool, codec: str) -> None:
    with job(RANKS, 2) as cluster:
        found = _survivors(pool.answers(cluster, bodies.train_apart, codec, 300))
    print(found)
    assert all(one["accuracy"] > 0.9 for one in found), found
    assert len({one["weights"] for one in found}) == 1, "all ranks end with the servers' weights"
    assert all(one["version"] >= 300 // 10 - 1 for one in found), "at least one version for each contribution"
    assert all(1 not in one["contributors"] for one in found)
