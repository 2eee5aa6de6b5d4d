"""How the ranks of a c10d world find each other: through the Store that init_process_group was given.

Each rank makes seven calls of the store (rank 0 six), whatever the size of the world: it takes a ticket, publishes or
awaits and reads what the world's secret is made of, publishes its addresses, awaits and reads everybody's, and says
that it has read them; the last one deletes the keys (see worker.meeting).
Sub-groups cause none. A store that serves several worlds one after the other (torchrun's, when a process calls
init_process_group again) has the worlds apart by their tickets.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Protocol

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from typing_extensions import override

from byteps_like.collectives.api import Group
from byteps_like.config import Config
from byteps_like.control.calls.secret import derive, has_secret, load, require_secret
from byteps_like.control.hosts.address import join_address
from byteps_like.errors import BytePSLikeError, ConfigError, CorruptError, DeadlineError
from byteps_like.timeline.orders import parse_steps
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.job.tracing import follow_recorder
from byteps_like.worker.meeting import MeetingSeat, Notes

_SECRET_BYTES = 32
_SECRET, _NONCE = "secret", "nonce"
"""What rank 0 may have put into the store, as the first word of it."""
_TICKETS = "byteps_like/tickets"
_COMMON = "byteps_like/reconfigure"
"""Where processes that meet again and again have their secret."""


class C10dWorld(Protocol):
    """What a c10d world stands on: collectives.communicator.Communicator."""

    @property
    def rank(self) -> int:
        """This process's."""

    @property
    def size(self) -> int:
        """Number of ranks."""

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """The group of this name."""

    def release(self, name: str) -> None:
        """Gives back what the group of this name holds; it can still be used."""

    def cancel(self, name: str, error: BytePSLikeError) -> None:
        """What is in flight of the group of this name raises `error`."""

    def fail(self, error: BytePSLikeError) -> None:
        """Everything in flight and to come raises `error`."""

    def empty_shared(self, nbytes: int) -> Any:
        """Memory that collectives use in place."""

    def close(self) -> None:
        """Leaves the world."""


def meet(seat: MeetingSeat, config: Config | None = None) -> C10dWorld:
    """The world of all ranks at `seat.store`. Blocks until all have come.

    Raises DeadlineError that names the ranks which have not, RefusedError that names one which can't start,
    ConfigError, CorruptError for a store that holds what no rank wrote.
    """
    # Not at the top: torch's other users need no native core.
    from byteps_like.collectives.communicator import Communicator

    notes = _Notes(seat)
    with notes.telling(*(["secret"] if seat.rank == 0 else [])):
        config = config or config_at(seat)
        secret = notes.secret(config)
        communicator = Communicator(config, f"c10d-{derive(secret, 'c10d name')[:4].hex()}", secret)
    try:
        records = notes.exchange(asdict(communicator.own))
        communicator.join(1, seat.rank, [peer_from(record, rank) for rank, record in enumerate(records)])
    except BaseException:
        communicator.close()
        raise
    if config.trace:
        recorder.take(parse_steps(config.trace, config.trace_steps))
        recorder.add_member(seat.rank, lambda: {"groups": communicator.lanes()})
        follow_recorder()
    return communicator


def config_at(seat: MeetingSeat) -> Config:
    """This process's settings; where they name no host, peers reach it by the address that reaches the store."""
    return reaching(Config.from_env(role="worker", rank=seat.rank, world_size=seat.size), seat.store)


def reaching(config: Config, store: Any) -> Config:
    """`config`, whose own address is that of the route to `store` unless it names one."""
    address = store_address(store)
    if config.host or config.interface or address is None:
        return config
    return replace(config, scheduler=join_address(*address))


def store_address(store: Any) -> tuple[str, int] | None:
    """Host and port of a TCPStore, also behind prefixes; None for stores of other kinds."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return None
    return store.host, store.port


def peer_from(record: dict[str, Any], rank: int) -> Any:
    """A rank as it has published itself. Raises CorruptError for what makes no sense."""
    from byteps_like.collectives.communicator import Peer

    try:
        urls = tuple(str(url) for url in record["urls"])
        return Peer(urls, str(record["host_id"]), str(record["host"]), int(record["pid"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(f"what rank {rank} has published is not an address: {error!r}") from None


Meetable = Callable[[], Any]
"""Makes a Communicator that listens, and has joined no world yet."""


def meetable(seat: MeetingSeat, config: Config | None = None) -> Meetable:
    """Of processes that meet without a store later. They have the job's secret in common, or, where they were given
    none, one that the first of them puts into the store. Raises ConfigError."""
    from byteps_like.collectives.communicator import Communicator

    config = config or config_at(seat)
    secret = derive(load(config), "c10d reconfigure") if has_secret(config) else _common_secret(seat.store, config)
    return lambda: Communicator(config, f"c10d-{derive(secret, 'c10d name')[:4].hex()}", secret)


def _common_secret(store: Any, config: Config) -> bytes:
    require_secret(config)
    made = f"{_SECRET} {secrets.token_hex(_SECRET_BYTES)}"
    found: bytes = store.compare_set(_COMMON, "", made)
    kind, _, text = found.decode("ascii", "replace").partition(" ")
    try:
        common = bytes.fromhex(text)
    except ValueError:
        common = b""
    if kind != _SECRET or len(common) != _SECRET_BYTES:
        raise CorruptError(f"the store has no secret under {_COMMON!r}")
    return common


class _Notes(Notes):
    """Of one world: worlds that meet at one store, one after the other, are told apart by tickets."""

    def __init__(self, seat: MeetingSeat) -> None:
        ticket = int(seat.store.add(_TICKETS, 1))
        super().__init__(seat, f"byteps_like/{(ticket - 1) // seat.size}", "init_process_group")

    @override
    def wait(self, names: Sequence[object]) -> None:
        try:
            super().wait(names)
        except DeadlineError:  # the next attempt is to be the same world's
            with suppress(RuntimeError):
                self._store.add(_TICKETS, -1)
            raise

    def secret(self, config: Config) -> bytes:
        """Of this world, by what rank 0 puts into the store: a nonce for ranks that were given the job's secret, which
        then stays out of the store, else the secret itself. Raises ConfigError where some were given it and others
        not."""
        given = load(config) if has_secret(config) else None
        if given is None:
            require_secret(config)
        if self._seat.rank == 0:
            made = secrets.token_bytes(_SECRET_BYTES)
            self._store.set(self.key("secret"), f"{_SECRET if given is None else _NONCE} {made.hex()}")
        else:
            made = self._made(given is not None)
        return made if given is None else derive(given, f"c10d world {made.hex()}")

    def _made(self, given: bool) -> bytes:
        try:
            kind, _, text = self.get("secret", "rank 0").partition(" ")
            made = bytes.fromhex(text)
        except ValueError:
            kind, made = "", b""
        if kind not in (_SECRET, _NONCE) or len(made) != _SECRET_BYTES:
            raise CorruptError("rank 0 has put no secret in the store")
        if given != (kind == _NONCE):
            has, lacks = ("rank 0", f"rank {self._seat.rank}")[:: -1 if given else 1]
            text = f"{has} was given the job's secret, {lacks} was not"
            raise ConfigError(f"{text}: set BYTEPS_LIKE_SECRET_FILE on all ranks or on none")
        return made
