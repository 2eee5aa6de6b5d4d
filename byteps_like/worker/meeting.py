"""How ranks meet at a store of torch's: each leaves a record there, awaits everybody's and reads them.

A rank that can't start leaves the reason in its record's place: the others, who wait for that record, raise at once and
name it. So nothing has to be polled, and a meeting that succeeds costs no message more. The last to read deletes all.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from byteps_like.config import Config
from byteps_like.errors import ConfigError, CorruptError, DeadlineError, RefusedError

logger = logging.getLogger(__name__)

MENTION_AFTER = 5.0
"""Seconds after which it is said who or what is waited for."""
_LONGEST_RECORD = 16 << 10
_FAREWELL = 5.0
"""Seconds for which rank 0, in whose process the store may live, lets the others read why a meeting failed."""
_FAILED = "can't start"
_stores: dict[tuple[str, int], Any] = {}
"""Those that this process has opened: rank 0's must live as long as others may come to it."""


@dataclass(frozen=True)
class MeetingSeat:
    """This process's place among `size` ranks that meet at `store`; `timeout` seconds for all of them to come."""

    store: Any
    rank: int
    size: int
    timeout: float
    host: str = ""
    """An address of rank 0's host, if the place of meeting has told it."""


class Notes:
    """The keys of one meeting in its store: each begins with `prefix`, in which no other meeting has any."""

    def __init__(self, seat: MeetingSeat, prefix: str, operation: str) -> None:
        self._seat, self._store = seat, seat.store
        self._prefix, self._operation = prefix, operation
        self._keys = list(range(seat.size))

    def key(self, name: object) -> str:
        """That of `name`, or of a rank's record."""
        return f"{self._prefix}/{name}"

    @contextmanager
    def telling(self, *names: str) -> Iterator[None]:
        """A block whose failure the others hear of, also those that wait for one of `names`, keys of this rank's."""
        try:
            yield
        except (DeadlineError, RefusedError):  # the others see for themselves who is missing, or why
            raise
        except Exception as error:
            self.fail(error, *names)
            raise

    def fail(self, error: Exception, *names: str) -> None:
        """Lets the others know that this rank won't come."""
        why = f"rank {self._seat.rank} (host {socket.gethostname()}, pid {os.getpid()}) {_FAILED}: {error}"
        record = json.dumps({_FAILED: why[: _LONGEST_RECORD // 2]})
        with suppress(RuntimeError):  # the store is gone, and with it whoever kept it
            for name in (*names, self._seat.rank):
                self._store.set(self.key(name), record)
            self._part()

    def exchange(self, own: dict[str, Any]) -> list[dict[str, Any]]:
        """Everybody's records, by rank; blocks until all are there.

        Raises DeadlineError that names the ranks which have not come, RefusedError that names one which can't start,
        CorruptError for a store that holds what no rank wrote.
        """
        self._store.set(self.key(self._seat.rank), json.dumps(own))
        self.wait(self._keys)
        texts = self._read([self.key(name) for name in self._keys])
        records = [_record(text, f"rank {rank}") for rank, text in enumerate(texts)]
        if any(_FAILED in record for record in records):
            raise self._refused([str(record[_FAILED]) for record in records if _FAILED in record])
        if int(self._store.add(self.key("read"), 1)) == self._seat.size:
            self._sweep()
        return records

    def get(self, name: str, owner: str) -> str:
        """What `owner` has put under `name`; blocks until it is there. Raises as `exchange`."""
        self.wait([name])
        text: bytes = self._store.get(self.key(name))
        if text.startswith(b"{"):
            raise self._refused([str(_record(text, owner).get(_FAILED))])
        return text.decode("ascii", "replace")

    def wait(self, names: Sequence[object]) -> None:
        """Blocks until all of `names` have been set. Says after a while who is missing, and raises it at the end."""
        keys = [self.key(name) for name in names]
        begun = time.monotonic()
        for until in (min(MENTION_AFTER, self._seat.timeout), self._seat.timeout):
            try:
                self._store.wait(keys, timedelta(seconds=max(until - (time.monotonic() - begun), 0.001)))
                return
            except RuntimeError as error:  # torch's DistStoreError and DistNetworkError
                why = str(error)
            if until < self._seat.timeout:
                logger.warning("%s; waiting for %.0f s more", self._so_far(names, until), self._seat.timeout - until)
        raise DeadlineError(
            f"{self._so_far(names, self._seat.timeout)}: {why}. Has every rank been started, with this store and world"
            " size?",
            rank=self._seat.rank,
            operation=self._operation,
            elapsed=self._seat.timeout,
        )

    def _so_far(self, names: Sequence[object], seconds: float) -> str:
        return (
            f"rank {self._seat.rank} of {self._seat.size} has waited {seconds:.0f} s for {self._missing(names)} at the"
            " store"
        )

    def _missing(self, names: Sequence[object]) -> str:
        absent = [0]
        if names == self._keys:
            with suppress(RuntimeError):
                absent = [name for name in self._keys if not self._store.check([self.key(name)])]
        return f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))}"

    def _read(self, keys: list[str]) -> list[bytes]:
        try:
            return list(self._store.multi_get(keys))
        except (AttributeError, RuntimeError, NotImplementedError):  # a FileStore, and those that Python makes
            return [self._store.get(key) for key in keys]

    def _refused(self, reasons: Sequence[str]) -> RefusedError:
        with suppress(RuntimeError):
            self._part()
        return RefusedError("; ".join(reasons), operation=self._operation)

    def _part(self) -> None:
        """After a failure: rank 0 goes last."""
        if int(self._store.add(self.key("read"), 1)) == self._seat.size:
            self._store.set(self.key("over"), "")
        if self._seat.rank == 0:
            self._store.wait([self.key("over")], timedelta(seconds=_FAREWELL))

    def _sweep(self) -> None:
        """What is secret in it is in nobody's way, but it need not stay where others can read it."""
        for name in [*self._keys, "secret", "read"]:
            with suppress(RuntimeError, NotImplementedError):  # not every store can delete
                self._store.delete_key(self.key(name))


def seat_of(config: Config) -> MeetingSeat:
    """This process's place at MASTER_ADDR and MASTER_PORT, as torch's `env://` has it: where torchrun's agent does not
    keep a store there rank 0 does, beside torch's own if that is in this process.

    Blocks until the store answers, up to `join_timeout`. Raises ConfigError for what isn't known, DeadlineError.
    """
    if config.rank < 0 or not config.rendezvous_port:
        lacks = "MASTER_PORT" if not config.rendezvous_port else "its rank (RANK, or what the launcher calls it)"
        raise ConfigError(
            f"this process is one of {config.world_size} workers that meet at MASTER_ADDR={config.rendezvous_host}, but"
            f" does not know {lacks}"
        )
    place = (config.rendezvous_host, config.rendezvous_port)
    if place not in _stores:
        _stores[place] = _open(config)
    return MeetingSeat(_stores[place], config.rank, config.world_size, config.join_timeout, config.rendezvous_host)


def _open(config: Config) -> Any:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not list it in __all__

    where = f"{config.rendezvous_host}:{config.rendezvous_port}"
    keeps = config.rank == 0 and not config.rendezvous_store

    def open_within(seconds: float) -> Any:
        return TCPStore(
            config.rendezvous_host,
            config.rendezvous_port,
            is_master=keeps,
            timeout=timedelta(seconds=seconds),
            wait_for_workers=False,
            multi_tenant=not config.rendezvous_store,
        )

    if keeps:
        try:
            return open_within(config.join_timeout)
        except RuntimeError as error:
            raise ConfigError(
                f"rank 0 can't run a store at {where} (MASTER_ADDR, MASTER_PORT) for the ranks to meet at: {error}"
            ) from None
    who = "torchrun's agent" if config.rendezvous_store else "rank 0"
    return _patiently(open_within, config.join_timeout, f"the store of {who} at {where} (MASTER_ADDR, MASTER_PORT)")


def _patiently(attempt: Callable[[float], Any], timeout: float, what: str) -> Any:
    """What `attempt` gives within `timeout` seconds; after the first of them it is said what does not answer."""
    begun = time.monotonic()
    for until in (min(MENTION_AFTER, timeout), timeout):
        try:
            return attempt(max(until - (time.monotonic() - begun), 0.001))
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
        if until < timeout:
            logger.warning("%s has not answered for %.0f s; trying for %.0f s more", what, until, timeout - until)
    raise DeadlineError(
        f"{what} did not answer within {timeout:.0f} s: {why}", operation="init", elapsed=time.monotonic() - begun
    )


def _record(text: bytes, owner: str) -> dict[str, Any]:
    if len(text) > _LONGEST_RECORD:
        raise CorruptError(f"{owner} published {len(text)} bytes in the store, more than any address needs")
    try:
        record = json.loads(text)
    except ValueError:
        raise CorruptError(f"what {owner} published in the store is not JSON") from None
    if not isinstance(record, dict):
        raise CorruptError(f"what {owner} published in the store is not a valid record")
    return record
