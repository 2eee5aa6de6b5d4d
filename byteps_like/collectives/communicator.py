"""This process among the other workers of its world: it listens, learns of its peers, and makes groups."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import byteps_like._core as _core
from byteps_like.collectives.group import NativeGroup
from byteps_like.collectives.operation import Notifier
from byteps_like.collectives.schedules.schedule import Layout
from byteps_like.collectives.selection.selector import Selector
from byteps_like.config import Config
from byteps_like.control.hosts.address import join_address, listen_address, own_host
from byteps_like.control.hosts.rdma import peer_urls, rdma_listen_url
from byteps_like.control.hosts.routes import host_id, listen_urls
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, NotInitializedError
from byteps_like.limits import raise_open_files
from byteps_like.worker.api import SharedMemory


@dataclass(frozen=True)
class Peer:
    """One worker of the world as the others see it. `urls` in order of preference for a peer on the same host."""

    urls: tuple[str, ...]
    host_id: str
    host: str
    pid: int
    number: int = 0
    """Its member number; 0: its rank + 1, in a world without a scheduler."""


class Communicator:
    """Links, shared memory and groups of one process in one world. Thread-safe.

    Make it, publish `own`, collect everybody's, `join`; then `group` as often as you like, without a message.
    """

    def __init__(self, config: Config, job: str, secret: bytes) -> None:
        """Listens. `secret` (32 bytes or more) is the same for all. Raises SystemCallError, ConfigError."""
        raise_open_files()
        self._config = config
        host = own_host(config)
        unique = f"{job}-{os.getpid()}-{secrets.token_hex(4)}"
        urls = listen_urls(
            config.transport, host, 0, unique, rdma_listen_url(config, host), encrypts=config.tls == "on"
        )
        bindable = [_bindable(url, host) for url in urls if not url.startswith("inproc://")]
        self._core = _core.Communicator(
            job, secret, bindable, _CONNECT_SECONDS, config.kernel_queue_bytes, config.stall_warning,
            config.stall_timeout,
        )  # fmt: skip
        published = tuple(_published(url, host) for url in self._core.urls)
        self.own = Peer(published, host_id(), config.host or socket.gethostname(), os.getpid())
        self._notifier = Notifier(self._core)
        self._selector = Selector.from_settings(config.collective_algorithm, config.collective_table)
        self._lock = threading.Lock()
        self._groups: dict[str, NativeGroup] = {}
        self._ended: deque[tuple[int, str]] = deque(maxlen=1024)  # a timeline may still show them
        self._peers: tuple[Peer, ...] = ()
        self._rank = -1

    def join(self, epoch: int, rank: int, peers: Sequence[Peer], incarnation: bytes = bytes(16)) -> None:
        """The world has formed: `peers` by rank, this process included. Sends nothing; links are made when needed.

        The default `incarnation` is for worlds with a secret of their own, which no other start of the job has.
        A peer without addresses (a portable worker) takes no part in groups.
        """
        own = self.own.host_id
        addresses = [
            (
                self._usable(number, peer) if number != rank and peer.urls else [],
                peer.host_id,
                f"rank {number} ({peer.host}, pid {peer.pid})",
                peer.number or number + 1,
            )
            for number, peer in enumerate(peers)
        ]
        self._peers, self._rank = tuple(peers), rank
        self._core.set_world(incarnation, epoch, rank, addresses)
        self.local = tuple(number for number, peer in enumerate(peers) if peer.host_id == own)

    def _usable(self, number: int, peer: Peer) -> list[str]:
        near = peer.host_id == self.own.host_id
        return peer_urls(self._config, peer.urls, near, f"rank {number} on {peer.host}")

    @property
    def rank(self) -> int:
        """This process's rank in the world; -1 before `join`."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of ranks in the world."""
        return len(self._peers)

    def group(self, name: str, ranks: Sequence[int] | None = None) -> NativeGroup:
        """The group `name` of world ranks `ranks` (default: all), in that order; this rank must be one of them.

        Sends no message: ranks that use the same name mean the same group, and must give the same ranks. The same
        object for the same name. Raises InvalidArgumentError.
        """
        if self._rank < 0:
            raise NotInitializedError("call join() first")
        chosen = tuple(range(self.size) if ranks is None else ranks)
        with self._lock:
            known = self._groups.get(name)
            if known is None:
                known = self._groups[name] = self._make(name, chosen)
        if known.ranks != chosen:
            raise InvalidArgumentError(f"group {name!r} has the ranks {list(known.ranks)}, not {list(chosen)}")
        return known

    def _make(self, name: str, ranks: tuple[int, ...]) -> NativeGroup:
        if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(self.size)):
            raise InvalidArgumentError(
                f"group {name!r}: {list(ranks)} are not distinct ranks of a world of {self.size}"
            )
        deaf = [rank for rank in ranks if rank != self._rank and not self._peers[rank].urls]
        if deaf:
            raise InvalidArgumentError(
                f"group {name!r}: ranks {deaf} are portable workers, which do not support collectives"
            )
        if self._rank not in ranks:
            raise InvalidArgumentError(f"group {name!r} has the ranks {list(ranks)}; this is rank {self._rank}")
        hosts = {host: number for number, host in enumerate(dict.fromkeys(self._peers[rank].host_id for rank in ranks))}
        layout = Layout(tuple(hosts[self._peers[rank].host_id] for rank in ranks))
        return NativeGroup(
            self._core, self._notifier, self._selector, name, lane_id(name), ranks, self._rank, layout,
            self._apart(), self._config.stall_timeout, self._forget,
        )  # fmt: skip

    def _apart(self) -> str:
        """Why groups of one host do not use its shared memory, but links; "" if they use it."""
        if self._config.transport not in ("auto", "shm"):
            return f"shared memory is not used with transport={self._config.transport}"
        if len(self.local) > _core.MOST_HOST_RANKS:
            return (
                f"{len(self.local)} ranks are on this host, and its shared memory has room for {_core.MOST_HOST_RANKS}"
            )
        return ""

    def lanes(self) -> dict[int, str]:
        """The name of each group by the number of its lane."""
        with self._lock:
            return {**dict(self._ended), **{group.lane: name for name, group in self._groups.items()}}

    def release(self, name: str) -> None:
        """Gives back what group `name` holds, which may be used no more. If it is, its calls are counted on."""
        with self._lock:
            known = self._groups.get(name)
        if known is not None:
            known.release()

    def cancel(self, name: str, error: BytePSLikeError) -> None:
        """What is in flight of group `name` raises `error` on all its ranks; calls to come go on."""
        self._core.cancel_lane(lane_id(name), int(error.code), str(error))

    def _forget(self, name: str) -> None:
        with self._lock:
            if self._groups.pop(name, None) is not None:
                self._ended.append((lane_id(name), name))

    def empty_shared(self, nbytes: int) -> SharedMemory:
        """Zero-filled memory that peers on this host map: collectives read and write it in place."""
        return self._core.allocate(max(nbytes, 1))  # type: ignore[no-any-return]

    def counters(self, peer: int | None = None) -> dict[str, int]:
        """Frames, bytes and payload each way over the links, of all peers or of one."""
        return dict(self._core.counters() if peer is None else self._core.counters_of(peer))

    def links(self) -> dict[str, int]:
        """How many links to other workers there are now, by transport."""
        return dict(self._core.links())

    def fail(self, error: BytePSLikeError) -> None:
        """Everything in flight and to come raises `error`."""
        self._core.fail(int(error.code), str(error))

    def lose(self, rank: int, error: BytePSLikeError) -> None:
        """What needs this rank raises `error`: it has died."""
        self._core.lose(rank, int(error.code), str(error))

    def close(self) -> None:
        """Says goodbye to the peers; operations in flight fail with ShutdownError. Idempotent."""
        self._core.close()
        self._notifier.close()
        for name in list(self._groups):  # they know it, and nobody but it knows them
            self._forget(name)


_CONNECT_SECONDS = 5.0


def lane_id(name: str) -> int:
    """The 64-bit number under which the calls of group `name` meet, equal on all ranks."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


_BY_PORT = ("tcp", "tls+tcp")


def _bindable(url: str, host: str) -> str:
    """Where to listen for what is published as `url`: elsewhere if `host` is not an address of this machine."""
    scheme, separator, _ = url.partition("://")
    return url if scheme not in _BY_PORT else f"{scheme}{separator}{listen_address(host, 0)}"


def _published(url: str, host: str) -> str:
    scheme, separator, _ = url.partition("://")
    if scheme not in _BY_PORT:
        return url
    return scheme + separator + join_address(host, int(url.rpartition(":")[2]))
