"""Processes of a benchmark, each with a session of its own."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence

from byteps_like.errors import DeadlineError, SystemCallError


def wait_all(processes: Sequence[subprocess.Popen[bytes]], timeout: float) -> None:
    """Raises SystemCallError if one ends badly, DeadlineError after `timeout` seconds; all have ended afterwards."""
    try:
        for process in processes:
            process.wait(timeout)
            if process.returncode != 0:
                codes = [each.poll() for each in processes]
                raise SystemCallError(
                    f"a rank of the benchmark, or mpirun, ended with {process.returncode}; all: {codes}"
                )
    except subprocess.TimeoutExpired:
        raise DeadlineError(f"the benchmark took more than {timeout:.0f} s") from None
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
