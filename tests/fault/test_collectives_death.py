"""Ranks killed, stopped or of another opinion in the middle of collectives: named on every other rank in seconds."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from tests.fault import collective_bodies as bodies
from tests.fault.worlds import Forked

RANKS, VICTIM = 3, 1
KINDS = ["all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather", "all_to_all",
         "barrier", "send_receive"]  # fmt: skip


def _go(world: Forked, body: Any, *args: Any, calls: int = 4) -> tuple[int, float]:
    """Starts the body and returns the victim's pid, and the time, once `calls` calls went well everywhere."""
    progress = world.shared
    world.begin(body, *args)
    limit = time.monotonic() + 20
    while min(progress) < calls:
        assert time.monotonic() < limit, f"calls that went well, by rank: {list(progress)}"
        time.sleep(0.002)
    pid = world.processes[VICTIM].pid
    assert pid is not None
    return pid, time.monotonic()


@pytest.fixture(params=["shm", "tcp"])
def world(request: pytest.FixtureRequest) -> Iterator[Forked]:
    progress = multiprocessing.get_context("fork").Array("q", RANKS)
    with Forked(RANKS, request.param, shared=progress) as made:
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_a_rank_is_killed_in_the_middle(world: Forked, kind: str) -> None:
    pid, began = _go(world, bodies.until_lost, kind, "shared", 20.0)
    os.kill(pid, signal.SIGKILL)
    for rank in (0, 2):
        ok, answer = world.answer(rank)
        assert ok, answer
        name, text, failed, (next_name, next_text, seconds) = answer
        assert name == "PeerLostError", f"rank {rank}: {name} {text}"
        assert re.search(rf"rank {VICTIM}\b", text) and str(pid) in text
        assert failed - began < 2, f"rank {rank} needed {failed - began:.1f} s"
        assert (next_name, seconds < 2) == ("PeerLostError", True), f"rank {rank}: {next_name} {next_text} {seconds}"


def test_a_rank_is_stopped_for_longer_than_the_deadline(world: Forked) -> None:
    pid, began = _go(world, bodies.late, "shared", 1.0)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(pid, signal.SIGCONT)
    for rank in range(RANKS):
        ok, answer = world.answer(rank)
        assert ok, answer
        name, text, failed, works = answer
        assert name == "DeadlineError", f"rank {rank}: {name} {text}"
        assert re.search(rf"rank {VICTIM}\b.*(not|silent|late)", text), text
        assert rank == VICTIM or failed - began < 3.5, f"rank {rank} needed {failed - began:.1f} s"
        assert works


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_that_disagree_are_told_how_and_the_group_goes_on(transport: str) -> None:
    with Forked(RANKS, transport) as world:
        for what in ("op", "dtype", "count", "root", "counts", "order", "order", "op"):
            for rank, (found, total) in enumerate(world.run(bodies.disagree, what)):
                for name, text, seconds in found:
                    assert name == "MismatchError", f"{what}, rank {rank}: {name} {text}"
                    assert re.search(rf"rank {VICTIM}\b", text) and re.search(r"rank [02]\b", text), text
                    assert seconds < 2, f"{what}, rank {rank}: {seconds:.1f} s"
                assert total == 60
