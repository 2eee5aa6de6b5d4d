"""Several processes on one GPU, as launchers start them: examples as on the CPU, and one that is killed.

GPU_TESTS_ON=cpu goes through these tests without a GPU.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from tests.gpu import bodies
from tests.multiprocess.real_world import Pool, job

ROOT = Path(__file__).resolve().parents[2]
DEVICE = os.environ.get("GPU_TESTS_ON", "cuda")
DEADLINE = 300.0
SLACK = 64 << 20
"""Bytes of a GPU that the driver may keep or give back at any time."""

EXAMPLES = {
    "digits.py": ["--epochs", "2"],
    "gpt.py": ["--steps", "12", "--batch", "4", "--width", "64", "--sample", "0"],
}


def losses(script: str, workers: int, device: str, folder: Path) -> list[float]:
    """By step, the mean over the ranks."""
    out = folder / f"{script}-{workers}-{device}.json"
    command = [f"examples/{script}", *EXAMPLES[script], "--device", device, "--json", str(out)]
    # Products in TF32 have 10 bits where the CPU has 23: without them what differs is the order of sums.
    run(workers, 1, *command, NVIDIA_TF32_OVERRIDE="0")
    found: list[float] = json.loads(out.read_text())["loss"]
    return found


@pytest.mark.timeout(DEADLINE)
@pytest.mark.parametrize("script", EXAMPLES)
def test_examples_train_as_on_the_cpu(tmp_path, script):
    """To 1e-3 of losses of 1 to 5: rounding of float32 in another order, which steps make greater."""
    expected = losses(script, 2, "cpu", tmp_path)
    found = losses(script, 2, DEVICE, tmp_path)
    assert len(found) == len(expected)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < 1e-3
    assert found[-1] < found[0]


@pytest.mark.timeout(DEADLINE)
def test_one_process_and_two_on_one_gpu_train_alike(tmp_path):
    one, two = (losses("digits.py", workers, DEVICE, tmp_path) for workers in (1, 2))
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-3


def run(workers: int, servers: int, *command: str, **environment: str) -> str:
    """What the workers of a job print; it ends well."""
    launcher = [sys.executable, "-m", "byteps_like", "run", "-q", "-n", str(workers), "-s", str(servers), "--"]
    done = subprocess.run(
        [*launcher, sys.executable, *command], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, timeout=DEADLINE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(DEADLINE)
def test_the_example_of_amp_has_the_same_gradients_on_all_ranks():
    out = run(2, 1, "examples/clipping_amp.py", "--steps", "20", "--device", DEVICE)
    assert out.count("same gradients on all 2 ranks") == 2


@pytest.mark.timeout(DEADLINE)
def test_ranks_that_share_a_device_sum_there(tmp_path):
    """Process groups by CUDA IPC, which maps each other's memory, and through this host's memory."""
    assert run(2, 0, "tests/gpu/sums_worker.py", DEVICE, str(tmp_path / "meet")).count("sums are right") == 2


def used() -> int:
    """Bytes of the device that anybody has."""
    if DEVICE == "cpu":
        return 0
    free, whole = torch.cuda.mem_get_info(0)
    return int(whole - free)


def killed(pool: Pool, flag: Path) -> None:
    """Rank 1, once the job is under way."""
    limit = time.monotonic() + DEADLINE
    while not flag.exists() and time.monotonic() < limit:
        time.sleep(0.01)
    os.kill(pool.processes[1].pid, signal.SIGKILL)


@pytest.mark.timeout(DEADLINE)
def test_who_is_killed_leaves_no_memory_in_others(tmp_path):
    """Two of three survive: what they hold of the device afterwards is what they held of it before, and no more."""
    before, flag = used(), tmp_path / "running"
    pool = Pool(3, multiprocessing.get_context("spawn"))  # not forked: CUDA doesn't survive that
    try:
        with job(3, 1) as cluster:
            assert pool.run(cluster, bodies.steady, DEVICE, together=True) == [("", 0)] * 3
        healthy = used() - before  # three contexts, and no tensors
        with job(3, 1) as cluster:
            killer = threading.Thread(target=killed, args=(pool, flag))
            killer.start()
            answers = pool.answers(cluster, bodies.until_error, DEVICE, str(flag))
            killer.join()
        assert answers[0] == answers[2] == (True, ("PeerLostError", 0)), answers
        limit = time.monotonic() + 10.0
        while used() - before > healthy * 2 / 3 + SLACK and time.monotonic() < limit:
            time.sleep(0.1)  # the driver takes back what the dead one had
        assert used() - before <= healthy * 2 / 3 + SLACK
    finally:
        pool.close()
