"""Starts `byteps-like run` for the tests of the launcher and looks at what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

DEADLINE = 20.0
ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Finished:
    """One run of the launcher that has ended."""

    code: int
    out: str
    err: str
    seconds: float


class Launcher:
    """`byteps-like run` with its files under `tmp`, so that what it leaves can be seen."""

    def __init__(self, tmp: Path) -> None:
        self.tmp = tmp
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, options: str, *command: str) -> subprocess.Popen[bytes]:
        """The launcher, running, with its output on pipes."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("BYTEPS_", "DMLC_", "OMP_"))}
        environment |= {"TMPDIR": str(self.tmp), "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [sys.executable, "-m", "byteps_like", "run", *options.split(), "--", *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[bytes], deadline: float = DEADLINE) -> Finished:
        """Waits for the end."""
        start = time.monotonic()
        out, err = process.communicate(timeout=deadline)
        return Finished(process.returncode, out.decode(errors="replace"), err.decode(), time.monotonic() - start)

    def run(self, options: str, *command: str) -> Finished:
        """Runs a job to its end."""
        return self.finish(self.start(options, *command))

    def python(self, options: str, script: str) -> Finished:
        """Runs a job whose workers are `python -c script`; RANK is their rank."""
        return self.run(options, *worker(script))

    def left(self) -> list[int]:
        """Processes that carry the mark of a job under `tmp` in their environment."""
        return [pid for pid, text in _environments() if f"_BYTEPS_LIKE_LAUNCH={self.tmp}/".encode() in text]

    def files(self) -> list[Path]:
        """What lies under `tmp`."""
        return sorted(self.tmp.iterdir())

    def close(self) -> None:
        """Ends what a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def worker(script: str) -> list[str]:
    """A command that runs `script` with RANK, without site packages: 10 ms instead of 50."""
    return [sys.executable, "-I", "-S", "-c", "import os\nRANK = int(os.environ['BYTEPS_LIKE_RANK'])\n" + script]


def wait_until(condition: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Returns as soon as `condition` holds; fails after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


def _environments() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                yield int(entry.name), (entry / "environ").read_bytes()
