"""A job's private directory: its secret and nothing else that outlives the job, guarded by a watchdog process."""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path

from byteps_like.launch import sweep

_WATCHDOG_EXIT_SECONDS = 10.0


class JobDirectory:
    """A directory (mode 0700) with the job's secret (mode 0600); `close` ends what is left of the job and removes it.

    The watchdog is started before the directory exists: a launcher killed at any moment leaves neither files nor
    processes behind. Use as a context manager, from the main thread.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.gettempdir()) / f"byteps-like-{os.getuid()}-{secrets.token_hex(6)}"
        self.secret_file = self.path / sweep.SECRET_NAME
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(sweep.__file__)), str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        self.path.mkdir(mode=0o700)
        _write_private(self.secret_file, secrets.token_hex(32).encode())

    def members(self) -> list[int]:
        """Process ids of the job that are alive, grandchildren included."""
        return sweep.members(self.path)

    def close(self) -> None:
        """Kills what is left of the job and removes the directory; blocks until both are done. Idempotent."""
        if self._watchdog.stdin is not None:
            with contextlib.suppress(OSError):
                self._watchdog.stdin.close()
        try:
            clean = self._watchdog.wait(_WATCHDOG_EXIT_SECONDS) == 0
        except subprocess.TimeoutExpired:
            clean = False
        if not clean or self.path.exists():
            sweep.sweep(self.path)

    def __enter__(self) -> JobDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_private(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
