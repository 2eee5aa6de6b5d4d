"""The n-th socket, epoll entry, eventfd, mapping or thread can't be had: the right sum or a typed error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TYPED = ("CapacityError", "PeerLostError", "DeadlineError", "InvalidArgumentError")
CHECKED = shutil.which("cc") is None or "asan" in os.environ.get("LD_PRELOAD", "")


@pytest.mark.skipif(CHECKED, reason="needs a C compiler, and a preload list of its own")
def test_a_call_of_the_kernel_that_fails_is_the_right_sum_or_a_typed_error(tmp_path: Path) -> None:
    library = tmp_path / "failing_calls.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "failing_calls.c"), "-ldl"],
        check=True, timeout=60,
    )  # fmt: skip
    run = subprocess.run(
        [sys.executable, str(HERE / "failing_calls.py"), str(library)],
        env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, f"{run.stdout[-2000:]}\n{run.stderr[-2000:]}"
    cases = [line.split(": ", 1) for line in run.stdout.splitlines()]
    assert len(cases) > 60, run.stdout
    for name, ends in cases:
        for end in ends.split(" | "):
            assert end == "sum" or end.startswith(TYPED), f"{name}: {ends}"
    by_kind = {name.split()[1] for name, ends in cases if "CapacityError" in ends}
    assert by_kind >= {"socket", "epoll_create", "epoll_ctl", "eventfd", "memfd", "mmap", "populate", "thread"}, by_kind
