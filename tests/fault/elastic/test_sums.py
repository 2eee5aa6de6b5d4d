"""Ranks of elastic jobs that die in the middle of a step: the others finish it, with the same bytes, and go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.fault.elastic import elastic_bodies as bodies
from tests.multiprocess.real_world import Pool, job

RANKS = 4
SERVERS = [0, 2]
"""Without any the others finish sums among themselves."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


def _survivors(answers: list[tuple[bool, Any]], victims: list[int]) -> list[Any]:
    assert [rank for rank, answer in enumerate(answers) if answer == (False, "the process died")] == victims
    alive = [answer for rank, answer in enumerate(answers) if rank not in victims]
    assert all(ok for ok, _ in alive), "\n".join(str(text) for _, text in alive)
    return [result for _, result in alive]


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
@pytest.mark.parametrize("victims", [[1], [0, 3], [1, 2, 3]])
def test_every_sum_is_that_of_the_living_or_of_all_and_equal_everywhere(
    pool: Pool, transport: str, victims: list[int], servers: int
) -> None:
    with job(RANKS, servers, transport=transport, elastic=True) as cluster:
        found = _survivors(pool.answers(cluster, bodies.sum_on, victims), victims)
    living = [rank for rank in range(RANKS) if rank not in victims]
    for one in found:
        assert one["right"], "averages that are those of no set of contributors"
        assert all(set(living) <= set(ranks) for ranks in one["sets"]), "a rank that lived is missing in a sum"
        assert tuple(range(RANKS)) in one["sets"], "the victims were to have contributed before"
        assert all(last == [tuple(living)] for last in one["last"])
    assert len({one["digest"] for one in found}) == 1


@pytest.mark.parametrize(
    ("compression", "transport", "servers"),
    [
        (None, "shm", 0),
        (None, "shm", 2),
        (None, "tcp", 2),
        ("fp16", "tcp", 0),
        ("fp16", "tcp", 2),
        ("onebit", "shm", 2),
        ("topk", "tcp", 2),
    ],
)
def test_training_goes_on_with_the_same_weights(
    pool: Pool, compression: str | None, transport: str, servers: int
) -> None:
    with job(RANKS, servers, transport=transport, elastic=True) as cluster:
        found = _survivors(pool.answers(cluster, bodies.train, compression, 240), [1])
    assert len({one["weights"] for one in found}) == 1
    assert all(one["accuracy"] > 0.9 for one in found), found


@pytest.mark.parametrize(
    ("options", "servers"),
    [
        ({}, 0),
        ({}, 2),
        ({"gradient_predivide_factor": 2.0}, 0),
        ({"gradient_predivide_factor": 2.0}, 2),
        ({"compression": "fixed:bits=32,block=256"}, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_averages_are_over_those_who_are_in_them(
    pool: Pool, options: dict[str, Any], transport: str, servers: int
) -> None:
    with job(RANKS, servers, transport=transport, elastic=True) as cluster:
        found = _survivors(pool.answers(cluster, bodies.step_by_constants, options), [1])
    assert found == [pytest.approx([-120.0, -120.0], rel=1e-5)] * (RANKS - 1)


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_averages_of_whole_numbers_are_over_those_who_are_in_them(pool: Pool, transport: str, servers: int) -> None:
    with job(RANKS, servers, transport=transport, elastic=True) as cluster:
        found = _survivors(pool.answers(cluster, bodies.average_whole_numbers, 12), [1])
    assert found == [[-3, 2]] * (RANKS - 1)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_averages_of_sparse_rows_are_over_those_who_are_in_them(pool: Pool, transport: str) -> None:
    with job(RANKS, 2, transport=transport, elastic=True) as cluster:
        found = _survivors(pool.answers(cluster, bodies.average_sparse, 12), [1])
    for rounds in found:
        assert all(
            (count, [pytest.approx(value) for value in values]) == (10_000, [12.0]) for count, values in rounds
        ), rounds


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_reports_say_who_is_in_which_bytes_and_agree(pool: Pool, transport: str, servers: int) -> None:
    with job(RANKS, servers, transport=transport, elastic=True, partition_bytes=1 << 17) as cluster:
        found = _survivors(pool.answers(cluster, bodies.report_steps), [1])
    assert [one["rank"] for one in found] == [0, 2, 3]
    assert all(one["right"] for one in found), found
    assert all(one["steps"] == found[0]["steps"] for one in found)
    for number, size, contributors, lacks in found[0]["steps"]:
        assert size == RANKS
        whole = number < 4 or (number == 4 and not lacks)
        assert contributors == ((0, 1, 2, 3) if whole else (0, 2, 3)), lacks
        assert number < 5 or lacks[0].startswith("rank 1 is in 0 of "), lacks
    assert "rank 1 is in 0 of" in found[0]["text"]


@pytest.mark.parametrize("servers", SERVERS)
@pytest.mark.parametrize("how", ["broadcast", "allgather", "barrier"])
def test_what_needs_the_dead_rank_names_it(pool: Pool, how: str, servers: int) -> None:
    with job(RANKS, servers, elastic=True) as cluster:
        found = _survivors(pool.answers(cluster, bodies.then_call, how), [1])
    for seen in found:
        for name, text, seconds in seen:
            assert name == "PeerLostError" and ("rank 1" in text or "worker 1 (" in text), text
            assert seconds < 5


@pytest.mark.parametrize("servers", SERVERS)
def test_with_fewer_than_the_least_number_the_job_ends_for_all(pool: Pool, servers: int) -> None:
    with job(RANKS, servers, elastic=True, min_workers=3) as cluster:
        found = _survivors(pool.answers(cluster, bodies.until_too_few), [1, 2])
    for name, text, seconds in found:
        assert name == "PeerLostError" and "worker 2 (" in text, text
        assert seconds < 10
