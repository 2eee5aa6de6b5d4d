"""Records in a folder of this host, by SQLite."""

from __future__ import annotations

import fcntl
import sqlite3
from collections.abc import Callable
from pathlib import Path

import psutil

from byteps_like.control.records.records import Changes
from byteps_like.errors import BytePSLikeError, ConfigError, RefusedError, SystemCallError

_FILE, _LOCK = "scheduler.sqlite", "scheduler.lock"
_LAYOUT = 1
_NETWORK = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "ceph",
    "gluster",
    "lustre",
    "gpfs",
    "beegfs",
    "9p",
    "fuse.sshfs",
    "fuse.gluster",
)
"""Beginnings of the names of file systems on which locks, or what was written, may be lost."""


class SqliteRecords:
    """`folder` is made where it isn't there. The lock is held until `close`, or the end of the process."""

    def __init__(self, folder: Path, *, wait: bool = False) -> None:
        """`wait`: blocks until whoever rules ends. Raises RefusedError if somebody does, SystemCallError for a folder
        that can't be used, ConfigError for one on a network file system."""
        self._path = folder / _FILE
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _check_local(folder)
            self._lock = (folder / _LOCK).open("a+b")
            (folder / _LOCK).chmod(0o600)
        except OSError as error:
            raise SystemCallError(f"can't keep the scheduler's state in {folder}: {error.strerror}") from error
        self._take_lock(folder, wait)
        self._database = self._connect()
        self.term = self._begin_term()

    def load(self) -> dict[str, bytes]:
        """All records."""
        try:
            return dict(self._database.execute("SELECT name, content FROM records").fetchall())
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def commit(self, changes: Changes) -> None:
        """See Records."""
        gone = [(name,) for name, content in changes.items() if content is None]
        new = [(name, content) for name, content in changes.items() if content is not None]
        try:
            with self._database:
                ruled = self._database.execute("SELECT term FROM rule").fetchone()[0]
                if ruled != self.term:
                    raise RefusedError(f"another scheduler rules by now: term {ruled}, this one's was {self.term}")
                self._database.executemany("DELETE FROM records WHERE name = ?", gone)
                self._database.executemany("INSERT OR REPLACE INTO records VALUES (?, ?)", new)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def check(self) -> None:
        """The lock is held for life: nobody else rules."""

    def on_loss(self, tell: Callable[[BytePSLikeError], None]) -> None:
        """See `check`."""

    def close(self) -> None:
        """Lets another one rule. Idempotent."""
        self._database.close()
        self._lock.close()

    def _take_lock(self, folder: Path, wait: bool) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise RefusedError(
                f"another scheduler keeps its state in {folder} and is running; end it first, give this one a folder of"
                " its own, or let it wait with --standby"
            ) from None

    def _connect(self) -> sqlite3.Connection:
        try:
            database = sqlite3.connect(self._path, check_same_thread=False)
            self._path.chmod(0o600)
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=FULL")
            layout = database.execute("PRAGMA user_version").fetchone()[0]
            if layout not in (0, _LAYOUT):
                raise RefusedError(f"{self._path} was written by another release: its layout is {layout}")
            with database:
                database.execute("CREATE TABLE IF NOT EXISTS records (name TEXT PRIMARY KEY, content BLOB NOT NULL)")
                database.execute("CREATE TABLE IF NOT EXISTS rule (term INTEGER NOT NULL)")
                database.execute(f"PRAGMA user_version={_LAYOUT}")
            return database
        except (sqlite3.Error, OSError) as error:
            raise self._failed(error) from error

    def _begin_term(self) -> int:
        try:
            with self._database:
                found = self._database.execute("SELECT term FROM rule").fetchone()
                term = 1 if found is None else int(found[0]) + 1
                self._database.execute("DELETE FROM rule")
                self._database.execute("INSERT INTO rule VALUES (?)", (term,))
            return term
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> SystemCallError:
        return SystemCallError(f"can't keep the scheduler's state in {self._path}: {error}")


def network_of(folder: Path) -> str:
    """The type of the network file system that `folder` is on; "" if it is on none."""
    resolved = folder.resolve()
    mounts = [one for one in psutil.disk_partitions(all=True) if resolved.is_relative_to(one.mountpoint)]
    mounts.sort(key=lambda one: len(one.mountpoint))  # of several at one place the last is seen
    kind = mounts[-1].fstype if mounts else ""
    return kind if kind.startswith(_NETWORK) else ""


def _check_local(folder: Path) -> None:
    """Raises ConfigError for a folder on a network file system."""
    if kind := network_of(folder):
        raise ConfigError(
            f"can't keep the scheduler's state in {folder}: it is on a network file system ({kind}), where locks and"
            " what was written last may be lost; take a local disk"
        )
