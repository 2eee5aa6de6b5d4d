"""The n-th socket, epoll entry, eventfd, mapping or thread can't be had: the right sum or a typed error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TYPED = ("CapacityError", "PeerLostError", "DeadlineError", "StalledError", "InvalidArgumentError")
ENDED_BY = {
    "collectives": {"socket", "epoll_create", "epoll_ctl", "eventfd", "memfd", "mmap", "populate", "thread"},
    "push_pull": {"socket", "epoll_create", "epoll_ctl", "eventfd", "thread"},
}
"""Kinds of calls whose failure is told as what it is, at least once."""
MADE = {
    "collectives": {*ENDED_BY["collectives"], "socketpair", "accept"},
    "push_pull": {*ENDED_BY["push_pull"], "socketpair", "accept", "memfd", "mmap"},
}
"""Kinds that are made at all; what fails and is not told was tried again, or done without."""
CHECKED = shutil.which("cc") is None or "asan" in os.environ.get("LD_PRELOAD", "")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What makes calls fail, to be preloaded."""
    made = tmp_path_factory.mktemp("failing") / "failing_calls.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(HERE / "failing_calls.c"), "-ldl"],
        check=True, timeout=60,
    )  # fmt: skip
    return made


@pytest.mark.skipif(CHECKED, reason="needs a C compiler, and a preload list of its own")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("work", ["collectives", "push_pull"])
def test_a_call_of_the_kernel_that_fails_is_the_right_sum_or_a_typed_error(library: Path, work: str) -> None:
    run = subprocess.run(
        [sys.executable, str(HERE / "failing_calls.py"), str(library), work],
        env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, f"{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
    cases = [line.split(": ", 1) for line in run.stdout.splitlines()]
    assert len(cases) > 60, run.stdout
    for name, ends in cases:
        for end in ends.split(" | "):
            assert end == "sum" or end.startswith(TYPED), f"{name}: {ends}"
    assert {name.split()[1] for name, _ in cases} >= MADE[work], run.stdout
    by_kind = {name.split()[1] for name, ends in cases if "CapacityError" in ends}
    assert by_kind >= ENDED_BY[work], by_kind
