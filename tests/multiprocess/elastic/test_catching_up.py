"""Others join a training that goes on: who has caught up with it before has the weights and moments of all, bit by bit,
and nobody waits for them to be sent."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from byteps_like.control.calls.client import query_status
from tests.multiprocess.elastic.elastic_job import ROOT, ElasticJob, ElasticWorker
from tests.multiprocess.real_world import Cluster

SCRIPT = ROOT / "tests" / "scenarios" / "elastic" / "caught_up_training.py"
WEIGHTS = 4 * (16 * 2000 + 2000 * 16)
"""Bytes, and some more."""
SMALL = 64_000
"""Bytes that all take when a world begins, beside weights that differ: buffers, plain values, digests, and some of it
again where two ranks have dialled each other. One matrix of weights alone has twice as many."""


def told(*workers: ElasticWorker, kind: str) -> list[dict[str, Any]]:
    """The newest event of each."""
    return [worker.events(kind)[-1] for worker in workers]


def beginnings(*workers: ElasticWorker) -> list[list[dict[str, Any]]]:
    """Those of worlds, of each."""
    return [worker.events("began") for worker in workers]


def steps_of(worker: ElasticWorker) -> list[int]:
    return [event["step"] for event in worker.events("step")]


def check_ends(*workers: ElasticWorker) -> None:
    ends = told(*workers, kind="end")
    assert len({end["weights"] for end in ends}) == 1
    assert len({end["step"] for end in ends}) == 1


@contextmanager
def training(
    tmp_path: Path, warm_python: list[str], goal: dict[str, str], servers: int, most: int = 3
) -> Iterator[tuple[ElasticJob, list[ElasticWorker]]]:
    """A job of two workers, which have made some steps."""
    with (
        closing(Cluster(2, servers, elastic=True, max_workers=most, transport="tcp")) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        old = [job.start(**goal), job.start(**goal)]
        job.wait(lambda: len(old[0].events("step")) > 5, "some steps")
        yield job, old


@pytest.mark.parametrize("kind", ["adam", "ddp"])
@pytest.mark.parametrize("servers", [0, 1])
def test_who_has_caught_up_takes_nothing_when_it_joins(
    tmp_path: Path, kind: str, servers: int, warm_python: list[str]
) -> None:
    goal = {"KIND": kind, "GOAL": "20", "SIZE": "4"}
    with training(tmp_path, warm_python, goal, servers=servers, most=4) as (job, old):
        third = job.start(**goal)
        job.wait(lambda: bool(third.events("step")), "a third one")
        fourth = job.start(**goal)
        for worker in (*old, third, fourth):
            job.ended(worker)
        check_ends(*old, third, fourth)
        for worker in old:
            steps = steps_of(worker)
            assert steps == list(range(1, len(steps) + 1)), "a step was lost, or made twice"
            assert [event["size"] for event in worker.events("began")] == [2, 3, 4]
        came, began = told(third, kind="came")[0], third.events("began")[0]
        assert (came["rank"], came["size"]) == (began["rank"], began["size"]) == (2, 3)
        assert began["step"] > 5
        for worker in (third, fourth):
            assert worker.events("began")[0]["moved"] < SMALL < WEIGHTS
        assert len({one["weights"] for one in told(*old, third, fourth, kind="began")}) == 1


def test_who_has_made_other_steps_takes_what_the_others_have(tmp_path: Path, warm_python: list[str]) -> None:
    goal = {"KIND": "adam", "GOAL": "100000", "SIZE": "3"}
    with training(tmp_path, warm_python, goal, servers=1) as (job, old):
        third = job.start(**goal, SPOIL="1")
        job.wait(lambda: all(began[-1:] and began[-1]["size"] == 3 for began in beginnings(*old, third)), "a third one")
        assert third.events("began")[0]["moved"] > WEIGHTS / 2
        assert len({one["weights"] for one in told(*old, third, kind="began")}) == 1


def test_steps_that_cannot_be_followed(tmp_path: Path, warm_python: list[str]) -> None:
    goal = {"KIND": "crossing", "GOAL": "10", "SIZE": "3"}
    with training(tmp_path, warm_python, goal, servers=1) as (job, old):
        third = job.start(**goal)
        for worker in (*old, third):
            job.ended(worker)
        assert third.events("began")[0]["moved"] > 2 * WEIGHTS
        check_ends(*old, third)


def test_where_nothing_is_committed_a_newcomer_joins_at_once(tmp_path: Path, warm_python: list[str]) -> None:
    goal = {"KIND": "adam", "GOAL": "10", "SIZE": "3", "UNCOMMITTED": "1", "BYTEPS_LIKE_FAILURE_TIMEOUT": "2"}
    with training(tmp_path, warm_python, goal, servers=1) as (job, old):
        third = job.start(**goal)
        for worker in (*old, third):
            job.ended(worker)
        assert third.events("began")[0]["moved"] > 2 * WEIGHTS
        check_ends(*old, third)


def test_workers_may_pause_for_longer_than_a_round_may_wait(tmp_path: Path, warm_python: list[str]) -> None:
    pause, go = tmp_path / "pause", tmp_path / "go"
    clock = {"BYTEPS_LIKE_FAILURE_TIMEOUT": "2", "BYTEPS_LIKE_STALL_TIMEOUT": "4"}
    goal = {"KIND": "adam", "GOAL": "10", "SIZE": "3", "PAUSE": str(pause), **clock}
    with training(tmp_path, warm_python, goal, servers=1) as (job, old):
        third = job.start(**goal, SLOW=str(go))
        job.wait(lambda: bool(third.events("held")), "a newcomer that has the state")
        pause.touch()
        job.wait(lambda: all(worker.events("paused") for worker in old), "a pause")
        go.touch()
        time.sleep(6)
        pause.unlink()
        for worker in (*old, third):
            job.ended(worker)
        assert third.events("began")[0]["moved"] < SMALL
        check_ends(*old, third)


def test_a_newcomer_that_dies_costs_nobody_anything(tmp_path: Path, warm_python: list[str]) -> None:
    goal = {"KIND": "adam", "GOAL": "50", "SIZE": "2", "FROM": str(tmp_path / "killed")}
    with training(tmp_path, warm_python, goal, servers=1) as (job, old):
        third = job.start(**goal, SLOW=str(tmp_path / "never"))
        job.wait(lambda: bool(third.events("held")), "a newcomer that has the state")
        assert query_status(job.cluster.config(role="worker")).text == "1 newcomer catches up before joining"
        third.process.kill()
        (tmp_path / "killed").touch()
        for worker in old:
            job.ended(worker)
            steps = steps_of(worker)
            assert steps == list(range(1, len(steps) + 1)) and len(steps) >= 50
            assert len(worker.events("began")) == 1, "nobody has joined"
        check_ends(*old)


@pytest.mark.parametrize("servers", [0, 1])
def test_a_worker_that_dies_while_it_sends(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    """The other one sends the newcomer its part, too, or all anew."""
    goal = {"KIND": "adam", "GOAL": "100000", "SIZE": "3"}
    with training(tmp_path, warm_python, goal, servers=servers) as (job, (survivor, victim)):
        newcomer = job.start(**goal, SLOW=str(tmp_path / "go"))
        job.wait(lambda: bool(newcomer.events("held")), "a newcomer that has the state")
        victim.process.kill()
        job.wait(lambda: len(survivor.events("began")) > 1, "a world of the other one")
        (tmp_path / "go").touch()
        job.wait(lambda: bool(newcomer.events("began")), "the newcomer")
        job.wait(lambda: told(survivor, kind="began")[0]["size"] == 2, "both")
        ours, its = told(survivor, newcomer, kind="began")
        assert (ours["weights"], ours["step"]) == (its["weights"], its["step"])
        assert (its["rank"], its["size"]) == (1, 2)
        assert its["moved"] < SMALL < WEIGHTS


def start_spare(job: ElasticJob, goal: dict[str, str]) -> ElasticWorker:
    """One for which there is no room, once it follows the others."""
    spare = job.start(**goal, TOLD="1", SLOW=__file__)
    wait_until_it_follows(job, spare)
    return spare


def wait_until_it_follows(job: ElasticJob, spare: ElasticWorker, states: int = 1) -> None:
    """From the so manieth state that it has been sent."""
    job.wait(lambda: len(spare.events("held")) >= states, "the state")
    before = len(spare.events("made"))
    job.wait(lambda: len(spare.events("made")) > before + 3, "a spare that makes steps again")


@pytest.mark.parametrize("servers", [0, 1])
def test_a_spare_takes_the_place_of_one_that_dies(tmp_path: Path, servers: int, warm_python: list[str]) -> None:
    """It has all that the others have: nobody sends or waits for it. Not so where the one that dies broadcasts buffers,
    as in DistributedDataParallel: then all go back to a commit."""
    goal = {"KIND": "adam", "GOAL": "100000", "SIZE": "3"}
    with training(tmp_path, warm_python, goal, servers, most=2) as (job, (survivor, victim)):
        spare = start_spare(job, goal)
        assert len(survivor.events("began")) == 1 and not spare.events("began")
        victim.process.kill()
        job.wait(lambda: bool(spare.events("began")), "the spare")
        job.wait(lambda: len(survivor.events("began")) > 1, "the other one")
        ours, its = told(survivor, spare, kind="began")
        assert (ours["size"], its["rank"], its["size"]) == (2, 1, 2), "the world has as many as before"
        assert (ours["weights"], ours["step"]) == (its["weights"], its["step"])
        assert its["moved"] < SMALL < WEIGHTS
        job.wait(lambda: len(spare.events("step")) > 3, "steps with it")
        steps = steps_of(survivor)
        assert steps == list(range(1, len(steps) + 1)), "a step was lost, or made twice"


def test_a_spare_follows_from_the_beginning(tmp_path: Path, warm_python: list[str]) -> None:
    """All come at the same time, and nobody knows yet for whom there is room."""
    goal = {"KIND": "adam", "GOAL": "100000", "SIZE": "3", "TOLD": "1", "SLOW": __file__}
    with (
        closing(Cluster(2, 1, elastic=True, max_workers=2, transport="tcp")) as cluster,
        ElasticJob(cluster, tmp_path, [*warm_python, str(SCRIPT)]) as job,
    ):
        workers = [job.start(**goal) for _ in range(3)]
        job.wait(lambda: sum(len(worker.events("step")) > 5 for worker in workers) == 2, "some steps")
        survivor, victim, spare = sorted(workers, key=lambda worker: not worker.events("step"))
        wait_until_it_follows(job, spare)
        victim.process.kill()
        job.wait(lambda: bool(spare.events("began")), "the spare")
        assert spare.events("began")[0]["moved"] < SMALL < WEIGHTS
        job.wait(lambda: len(spare.events("step")) > 3, "steps with it")
        steps = steps_of(survivor)
        assert steps == list(range(1, len(steps) + 1)), "a step was lost, or made twice"


def test_one_spare_after_the_other(tmp_path: Path, warm_python: list[str]) -> None:
    """The second one goes on following through the world that the first one comes into, whose workers send it their
    state: of those that did so before only one is left."""
    goal = {"KIND": "adam", "GOAL": "100000", "SIZE": "3"}
    with training(tmp_path, warm_python, goal, servers=1, most=2) as (job, (first, second)):
        spares = [start_spare(job, goal), start_spare(job, goal)]
        first.process.send_signal(signal.SIGTERM)  # it leaves in order
        job.wait(lambda: any(spare.events("began") for spare in spares), "a spare")
        spares.sort(key=lambda spare: not spare.events("began"))
        job.wait(lambda: len(spares[0].events("step")) > 3, "steps with it")
        wait_until_it_follows(job, spares[1], states=2)
        assert not spares[1].events("began")
        second.process.kill()
        job.wait(lambda: bool(spares[1].events("began")), "the other spare")
        for spare in spares:
            assert spare.events("began")[0]["moved"] < SMALL < WEIGHTS
        job.wait(lambda: len(spares[1].events("step")) > 3, "steps with it")
        ours, its = told(*spares, kind="began")
        assert (ours["weights"], ours["step"]) == (its["weights"], its["step"])


def test_another_one_joins_meanwhile(tmp_path: Path, warm_python: list[str]) -> None:
    """The newcomer goes on with what it has."""
    goal = {"KIND": "adam", "GOAL": "10", "SIZE": "4"}
    with training(tmp_path, warm_python, goal, servers=1, most=4) as (job, old):
        third = job.start(**goal, SLOW=str(tmp_path / "go"))
        job.wait(lambda: bool(third.events("held")), "a newcomer that has the state")
        fourth = job.start(**goal)
        job.wait(lambda: bool(fourth.events("step")), "a fourth one, before the third")
        (tmp_path / "go").touch()
        for worker in (*old, third, fourth):
            job.ended(worker)
        check_ends(*old, third, fourth)
        assert [event["size"] for event in old[0].events("began")] == [2, 3, 4]
        for worker in (third, fourth):
            assert worker.events("began")[0]["moved"] < SMALL < WEIGHTS
        assert len(third.events("held")) == 1


def test_the_job_ends_while_a_newcomer_catches_up(tmp_path: Path, warm_python: list[str]) -> None:
    goal = {"KIND": "adam", "GOAL": "5", "SIZE": "2", "FROM": str(tmp_path / "held")}
    with training(tmp_path, warm_python, goal, servers=0) as (job, old):
        third = job.start(**goal, SLOW=str(tmp_path / "go"))
        job.wait(lambda: bool(third.events("held")), "a newcomer that has the state")
        (tmp_path / "held").touch()
        for worker in old:
            job.ended(worker)
        (tmp_path / "go").touch()
        job.wait(lambda: third.process.poll() is not None, "the end of the newcomer")
        assert third.process.returncode == 1
        assert "job" in third.output() and "has ended" in third.output()
