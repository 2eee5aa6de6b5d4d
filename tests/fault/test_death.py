"""Processes that are killed or stopped: who it was is known on every other rank in seconds."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fault import bodies
from tests.multiprocess.real_world import Pool, Processes, Ranks, job


def _run(
    pool: Pool, cluster: Ranks, flag: Path, harm: Callable[[], None], body: Callable[..., Any] = bodies.loop_until_error
) -> tuple[list[Any], float]:
    """Everybody loops; once they do, `harm` is done. What the ranks answered, and the time from the harm on."""
    harmed: list[float] = []

    def wait_and_harm() -> None:
        while not flag.exists():
            time.sleep(0.01)
        harmed.append(time.monotonic())
        harm()

    thread = threading.Thread(target=wait_and_harm)
    thread.start()
    answers = pool.answers(cluster, body, str(flag))
    thread.join()
    return answers, time.monotonic() - harmed[0]


def _kill(pid: int) -> Callable[[], None]:
    return lambda: os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_worker_is_killed(tmp_path: Path, transport: str) -> None:
    pool = Pool(3)
    try:
        with job(3, 2, transport=transport) as cluster:
            pid = pool.processes[1].pid
            assert pid is not None
            answers, seconds = _run(pool, cluster, tmp_path / "running", _kill(pid))
        for rank in (0, 2):
            ok, (name, text, _) = answers[rank]
            assert ok and name == "PeerLostError", text
            assert "worker 1" in text and str(pid) in text
        assert seconds < 2
    finally:
        pool.close()


def test_a_worker_is_stopped(tmp_path: Path) -> None:
    pool = Pool(3)
    try:
        with job(3, 1, stall_warning=1.0, stall_timeout=3.0) as cluster:
            pid = pool.processes[1].pid
            assert pid is not None
            resume = threading.Timer(6.0, os.kill, (pid, signal.SIGCONT))

            def stop() -> None:
                os.kill(pid, signal.SIGSTOP)
                resume.start()

            answers, _ = _run(pool, cluster, tmp_path / "running", stop)
        for rank in (0, 1, 2):
            ok, (name, text, seconds) = answers[rank]
            assert ok and name == "StalledError", text
            assert "waiting for rank 1; have ranks 0, 2" in text and "layer.weight" in text and "round" in text
            assert rank == 1 or (2.5 < seconds < 5)
            assert rank == 1 or "warned:" in text
    finally:
        pool.close()


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_a_server_or_the_scheduler_is_killed(tmp_path: Path, role: str) -> None:
    pool = Pool(2)
    try:
        with Processes(ranks=2) as cluster:
            answers, seconds = _run(pool, cluster, tmp_path / "running", _kill(cluster.processes[role].pid))
        for ok, seen in answers:
            assert ok, seen
            name, text, _ = seen
            assert name == "PeerLostError", text
            assert role in text
        assert seconds < 2
    finally:
        pool.close()


@pytest.mark.parametrize("body", [bodies.cross_until_error, bodies.cross_by_factors_until_error])
def test_a_worker_is_killed_while_updates_cross_the_barrier(tmp_path: Path, body: Callable[..., Any]) -> None:
    pool = Pool(2)
    try:
        with job(2, 1, partition_bytes=1024) as cluster:
            pid = pool.processes[1].pid
            assert pid is not None
            answers, seconds = _run(pool, cluster, tmp_path / "running", _kill(pid), body)
        ok, (name, text, _) = answers[0]
        assert ok and name == "PeerLostError", text
        assert "worker 1" in text and str(pid) in text
        assert seconds < 2
    finally:
        pool.close()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_worker_is_killed_where_there_are_no_servers(tmp_path: Path, transport: str) -> None:
    pool = Pool(3)
    try:
        with job(3, 0, transport=transport) as cluster:
            pid = pool.processes[1].pid
            assert pid is not None
            answers, seconds = _run(pool, cluster, tmp_path / "running", _kill(pid))
        for rank in (0, 2):
            ok, (name, text, _) = answers[rank]
            assert ok and name == "PeerLostError", text
            assert re.search(r"(worker|rank) 1\b", text) and str(pid) in text
        assert seconds < 2
    finally:
        pool.close()
