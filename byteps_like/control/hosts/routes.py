"""Which transport to which peer: the first of a table that both ends can use, or what the setting `transport` says."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from byteps_like.errors import ConfigError


@dataclass(frozen=True)
class Whereabouts:
    """What the addresses of a process that listens are made of."""

    host: str
    port: int
    unique: str
    """A name that no other process on the host has."""
    rdma: str
    """The address of `rdma_listen_url`; "": none."""


@dataclass(frozen=True)
class Transport:
    """A row of the table of transports. The native core has a table of the same schemes."""

    scheme: str
    address: Callable[[Whereabouts], str]
    """Where a process listens; "": it doesn't."""
    within_host: bool = False
    """Whether both ends must be on one host."""
    by_choice: bool = True
    """Whether members may be told to use it by the setting, and may be told not to."""
    encrypted: str = ""
    """The scheme of the same with encryption."""


TRANSPORTS = (
    Transport("shm", lambda at: f"shm://{at.unique}", within_host=True),
    Transport("rdma", lambda at: at.rdma),
    Transport(
        "tcp",
        lambda at: f"tcp://[{at.host}]:{at.port}" if ":" in at.host else f"tcp://{at.host}:{at.port}",
        encrypted="tls+tcp",
    ),
    Transport("inproc", lambda at: f"inproc://{at.unique}", within_host=True, by_choice=False),
)
"""The best one first. By inproc, a server's portable door reaches the server that it belongs to."""

_CHOICES = ("auto", *(transport.scheme for transport in TRANSPORTS if transport.by_choice))


def host_id() -> str:
    """Equal for processes that can reach each other's shared memory: same boot, same network namespace, same host."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    namespace = Path("/proc/self/ns/net").stat().st_ino
    return f"{boot}/{namespace}/{socket.gethostname()}"


def listen_urls(
    transport: str, host: str, port: int, unique: str, rdma: str = "", *, encrypts: bool = False
) -> list[str]:
    """Where a process listens, best first: by all transports, or by TCP alone if `transport` says so, and for itself.

    `rdma`: the address of `rdma_listen_url`; "": none. `encrypts`: where a transport can be encrypted, it is.
    """
    at = Whereabouts(host, port, unique, rdma)
    only_tcp = scheme_of(transport) == "tcp"
    rows = [row for row in TRANSPORTS if not (only_tcp and row.by_choice and row.scheme != "tcp")]
    return [_encrypted(row, url) if encrypts else url for row in rows if (url := row.address(at))]


def _encrypted(row: Transport, url: str) -> str:
    return row.encrypted + url.removeprefix(row.scheme) if row.encrypted else url


def usable_urls(transport: str, offered: Sequence[str], near: bool, whom: str, *, encrypts: bool = False) -> list[str]:
    """Which of a peer's addresses this process may use, best first; `near`: on the same host. `encrypts`: as above.

    Raises ConfigError, calling the peer `whom`, when the setting `transport` leaves none.
    """
    wanted = scheme_of(transport)
    usable = {
        (row.encrypted if encrypts else "") or row.scheme
        for row in TRANSPORTS
        if row.by_choice and wanted in ("auto", row.scheme) and (near or not row.within_host)
    }
    urls = [url for url in offered if urlsplit(url).scheme in usable]
    if not urls:
        raise ConfigError(
            f"transport={transport!r} with tls={'on' if encrypts else 'off'} leaves no way to {whom}, which offers"
            f" {', '.join(offered) or 'nothing'}"
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
    if scheme not in _CHOICES:
        raise ConfigError(f"transport={transport!r} is none of {', '.join(_CHOICES)}, chaos://<one of them>?seed=…")
    return scheme


def _wrap(transport: str, url: str) -> str:
    if not transport.startswith("chaos"):
        return url
    return f"chaos+{url}{'&' if '?' in url else '?'}{urlsplit(transport).query}"


def default_shards() -> int:
    """Threads of a server: half of the cores it may use, the other half belongs to the workers or the kernel."""
    return max(1, min(8, len(os.sched_getaffinity(0)) // 2))
