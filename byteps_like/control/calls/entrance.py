"""The port before those who answer on Unix sockets of this process: calls, metrics, the portable door.

The native core listens, looks at the first bytes of each connection, passes it on, and limits those that have proven
nothing. A call that proves the secret lifts its connection out of them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from byteps_like.config import split_address
from byteps_like.errors import SystemCallError

UNPROVEN = 96
"""Connections that an entrance passes on and nobody has proven yet: 74 at a time, and some that end just now."""

_PREFIX = "byteps_like-port-"
_LONGEST = 60
"""Of the folder's parent: the path of a socket has 107 characters at most."""
_UNLOCKED_SECONDS = 60.0
_PEER = "unix-abstract:"


class Entrance(Protocol):
    """Of the native core: a port of its own, or a server's, where links come in, too. Thread-safe."""

    def pass_on(self, kind: str, path: str) -> None:
        """Connections of a kind ("calls", "metrics", "door") go to the socket at `path` from now on."""

    def prove(self, name: str) -> None:
        """Who comes by a socket of this name has proven the secret."""

    def visitor_of(self, name: str) -> str:
        """The peer who comes by a socket of this name: "tcp 10.0.0.1:4711"; "" if it has gone."""

    def entrance(self) -> Mapping[str, int]:
        """How many connections there were, and what became of them."""


def open_entrance(address: str, job: str, secret: bytes, calls: str) -> Any:
    """A port for calls at `address`, which go to the socket at `calls`, with its `port`; None without the native core.

    Raises SystemCallError if the address is taken.
    """
    try:
        import byteps_like._core as core
    except ImportError:
        return None
    return core.Entrance(f"tcp://{address}", job, secret, {"calls": calls})


def port_of(url: str) -> int:
    """The number in "tcp://10.0.0.1:4711"."""
    return split_address("address", url.partition("://")[2])[1]


def peer_name(peer: str) -> str:
    """The name of a connection's socket in what gRPC calls its peer; "" if it did not come by an entrance."""
    return peer.removeprefix(_PEER) if peer.startswith(_PEER) else ""


def strangers(figures: Mapping[str, int], calls_refused: int = 0) -> dict[str, int]:
    """What an entrance has kept out, as counters of a member: connections that said something wrong, that said nothing
    in time, and that had to go for later ones; with calls without proof."""
    counts = {name: figures.get(name, 0) for name in ("refused", "late", "crowded_out")}
    counts["refused"] += calls_refused
    return {f"strangers_{name}": count for name, count in counts.items()}


def kept_out(counters: Mapping[str, float]) -> int:
    """All of them together, among a member's counters."""
    return int(sum(count for name, count in counters.items() if name.startswith("strangers_")))


class SocketFolder:
    """A folder that no other user may enter. `close` removes it; that of a killed process, whoever makes the next."""

    def __init__(self) -> None:
        """Raises SystemCallError if there can be none."""
        parent = Path(tempfile.gettempdir())
        parent = parent if len(str(parent)) <= _LONGEST else Path("/tmp")
        try:
            _sweep(parent)
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
            self._lock = os.open(self._folder / "unlocked", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            (self._folder / "unlocked").rename(self._folder / "lock")  # nobody sees a lock that isn't held yet
        except OSError as error:
            raise SystemCallError(f"no folder for sockets in {parent}: {error.strerror}") from error

    def path(self, name: str) -> str:
        """Of a socket in it."""
        return str(self._folder / name)

    def close(self) -> None:
        """Idempotent."""
        if self._lock >= 0:
            shutil.rmtree(self._folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep(parent: Path) -> None:
    """Removes this user's folders whose process is gone, and has left no lock on them."""
    for folder in parent.glob(_PREFIX + "*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.getuid() and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_left(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return time.time() - folder.stat().st_mtime > _UNLOCKED_SECONDS
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(lock)
    return True
