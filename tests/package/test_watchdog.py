"""Nothing that hangs holds up a run of the tests: it is ended, with its stacks, and the others are run."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

HANGS = """
import ctypes

def locked_for_ever():
    mutex, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)  # PyDLL keeps the interpreter's lock
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def test_one():
    locked_for_ever()

def test_two():
    pass
"""


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_test_that_keeps_the_interpreters_lock_is_ended(tmp_path, processes):
    path = tmp_path / "test_hangs.py"
    path.write_text(HANGS)
    command = [sys.executable, "-m", "pytest", "-p", "tests.watchdog", "-p", "no:cacheprovider", "-n", processes]
    options = ["-o", "timeout=1", "-o", "watchdog=1", f"--rootdir={tmp_path}", str(path)]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    said = run.stdout + run.stderr
    assert run.returncode != 0, said
    assert "watchdog: test_hangs.py::test_one does not end" in said
    assert "locked_for_ever" in said
    if processes != "0":
        assert "1 failed, 1 passed" in said  # another worker has run the rest


def test_a_program_that_does_not_end_is_ended():
    command = ["bash", str(ROOT / "scripts/with_deadline.sh"), "0.5", "sleep", "60"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 128 + signal.SIGABRT
    assert "not ended after 0.5 s: sleep 60" in run.stderr


def test_a_program_that_ends_keeps_its_status():
    command = ["bash", str(ROOT / "scripts/with_deadline.sh"), "50", "bash", "-c", "exit 3"]
    assert subprocess.run(command, timeout=60, check=False).returncode == 3
