"""Who starts a process in a test of a unit without a word is told to mark it, so that `make test-fast` stays fast."""

from __future__ import annotations

import os
import subprocess

import pytest

STARTS = {"run": lambda: subprocess.run(["true"], check=True), "system": lambda: os.system("true")}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_process_is_refused_without_the_mark(start):
    with pytest.raises(RuntimeError, match=r"test_a_process_is_refused\S* starts a process: mark it"):
        start()


@pytest.mark.processes
def test_a_process_is_started_with_the_mark():
    subprocess.run(["true"], check=True)
