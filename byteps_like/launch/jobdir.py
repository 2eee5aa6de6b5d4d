"""A job's private directory: its secret and nothing else that outlives the job, guarded by a watchdog process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from byteps_like.control.calls import secret
from byteps_like.launch.ending import sweep

_WATCHDOG_EXIT_SECONDS = 10.0
_STALE_SECONDS = 60.0


class JobDirectory:
    """A directory (mode 0700) with the job's secret (mode 0600); `close` ends what is left of the job and removes it.

    The watchdog is started before the directory exists: a launcher killed at any moment leaves neither files nor
    processes behind. The launcher holds a lock on the secret; a directory without one, left when launcher and
    watchdog were killed together, is removed by the next launcher. Use as a context manager, from the main thread.
    """

    def __init__(self) -> None:
        parent, prefix = Path(tempfile.gettempdir()), f"byteps-like-{os.getuid()}-"
        _remove_stale(parent, prefix)
        self.path = parent / f"{prefix}{secrets.token_hex(6)}"
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
        secret.create(self.secret_file)
        self._lock = self.secret_file.open("rb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

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
        self._lock.close()

    def __enter__(self) -> JobDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _remove_stale(parent: Path, prefix: str) -> None:
    """Removes this user's job directories that nobody holds; young ones may be about to be locked."""
    for path in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            found = path.lstat()
            if found.st_uid != os.getuid() or time.time() - found.st_mtime < _STALE_SECONDS:
                continue
            if _is_free(path / sweep.SECRET_NAME):
                shutil.rmtree(path, ignore_errors=True)


def _is_free(secret_file: Path) -> bool:
    try:
        with secret_file.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return False
    return True
