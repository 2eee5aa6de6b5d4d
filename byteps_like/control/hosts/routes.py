"""Which way to which peer: shared memory on the same host, RDMA, else TCP, or what the setting `transport` says."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from byteps_like.errors import ConfigError

_TRANSPORTS = ("auto", "tcp", "shm", "rdma")


def host_id() -> str:
    """Equal for processes that can reach each other's shared memory: same boot, same network namespace, same host."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/net").stat().st_ino
    return f"{boot}/{namespace}/{socket.gethostname()}"


def listen_urls(transport: str, host: str, port: int, unique: str, rdma: str = "") -> list[str]:
    """Where a server listens: TCP for everybody, shared memory for its own host, inproc for its portable door.

    Between the first two comes `rdma`, the address of `rdma_listen_url`; "": none.
    """
    urls = [f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"]
    if rdma:
        urls.insert(0, rdma)
    if scheme_of(transport) != "tcp":
        urls.insert(0, f"shm://{unique}")
    return [*urls, f"inproc://{unique}"]


def usable_urls(transport: str, offered: Sequence[str], near: bool, whom: str) -> list[str]:
    """Which of a peer's addresses this process may use, best first; `near`: on the same host.

    Raises ConfigError, calling the peer `whom`, when the setting `transport` leaves none.
    """
    wanted = scheme_of(transport)
    urls = [
        url
        for url in offered
        if (url.startswith(("rdma://", "tcp://")) or (url.startswith("shm://") and near))
        and wanted in ("auto", urlsplit(url).scheme)
    ]
    if not urls:
        raise ConfigError(
            f"transport={transport!r} leaves no way to {whom}, which offers {', '.join(offered) or 'nothing'}"
        )
    return [_wrap(transport, url) for url in urls]


def scheme_of(transport: str) -> str:
    """The part of the setting that names a transport: "chaos://auto?seed=1" wraps whatever "auto" would take.

    Raises ConfigError for one that is unknown.
    """
    scheme = transport
    if transport.startswith("chaos"):
        parts = urlsplit(transport)
        scheme = parts.netloc or parts.scheme.partition("+")[2] or "auto"
    if scheme not in _TRANSPORTS:
        raise ConfigError(f"transport={transport!r} is none of {', '.join(_TRANSPORTS)}, chaos://<one of them>?seed=…")
    return scheme


def _wrap(transport: str, url: str) -> str:
    if not transport.startswith("chaos"):
        return url
    return f"chaos+{url}{'&' if '?' in url else '?'}{urlsplit(transport).query}"


def default_shards() -> int:
    """Threads of a server: half of the cores it may use, the other half belongs to the workers or the kernel."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))
