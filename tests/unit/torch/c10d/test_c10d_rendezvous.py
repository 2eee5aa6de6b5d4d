"""Meeting at a store: what is written there, how often it is asked, and who is named when a rank is missing."""

from __future__ import annotations

import sys
import threading
import types
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from byteps_like.config import Config
from byteps_like.control.calls.secret import create
from byteps_like.errors import ConfigError, CorruptError, DeadlineError, RefusedError
from byteps_like.torch.job import rendezvous
from byteps_like.torch.job.rendezvous import config_at, meet, store_address
from byteps_like.worker.meeting import MeetingSeat


@dataclass(frozen=True)
class FakePeer:
    urls: tuple[str, ...]
    host_id: str
    host: str
    pid: int


class FakeCommunicator:
    def __init__(self, config: Config, job: str, secret: bytes) -> None:
        self.job, self.secret = job, secret
        self.own = FakePeer(("tcp://127.0.0.1:1", "shm://x"), "host id", "host", threading.get_ident())
        self.closed = False

    def join(self, epoch: int, rank: int, peers: list[FakePeer]) -> None:
        self.rank, self.peers = rank, peers

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def _communicator(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = types.ModuleType("byteps_like.collectives.communicator")
    module.Communicator, module.Peer = FakeCommunicator, FakePeer
    monkeypatch.setitem(sys.modules, "byteps_like.collectives.communicator", module)


class CountingStore:
    """Counts what is sent to a store."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.calls[name] += 1
            return getattr(self._store, name)(*args)

        return call


def _meet_all(size: int, stores: list[Any], config: Config | None = None) -> list[Any]:
    worlds: list[Any] = [None] * size

    def main(rank: int) -> None:
        worlds[rank] = meet(MeetingSeat(stores[rank], rank, size, 10.0), config or Config())

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return worlds


@pytest.mark.parametrize("kind", ["hash", "file", "tcp"])
def test_all_meet_again_and_again_and_leave_nothing(kind: str, tmp_path: Path) -> None:
    size = 4
    base: Any = {
        "hash": lambda: dist.HashStore(),
        "file": lambda: dist.FileStore(str(tmp_path / "store"), size),
        "tcp": lambda: dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
    }[kind]()
    seen = set()
    for _ in range(3):
        worlds = _meet_all(size, [base.clone() if kind == "tcp" else base for _ in range(size)])
        assert [world.rank for world in worlds] == list(range(size))
        assert all(world.peers == [other.own for other in worlds] for world in worlds)
        (secret,) = {world.secret for world in worlds}
        assert len(secret) == 32
        seen.add(secret)
    assert len(seen) == 3
    assert not base.check(["byteps_like/0/secret"]) and not base.check(["byteps_like/2/3"])


class KeepingStore(CountingStore):
    """Remembers all that was ever put into a store."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.written: list[str] = []

    def set(self, key: str, value: str) -> None:
        self.written.append(value)
        self._store.set(key, value)


def test_a_secret_from_a_file_is_never_in_the_store(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    text = create(path)
    store = KeepingStore(dist.HashStore())
    made = []
    for _ in range(2):
        worlds = _meet_all(3, [store] * 3, Config(secret_file=str(path)))
        (secret,) = {world.secret for world in worlds}
        made.append(secret)
    assert len(set(made)) == 2  # what one world's links prove is no proof in the next
    for value in store.written:
        assert all(each not in value for each in (text, *(secret.hex() for secret in made)))
    assert [value.split()[0] for value in store.written if not value.startswith("{")] == ["nonce"] * 2


@pytest.mark.parametrize("holder", [0, 1])
def test_ranks_of_which_some_were_given_a_secret_are_told(holder: int) -> None:
    store = dist.HashStore()
    errors: dict[int, Exception] = {}

    def main(rank: int) -> None:
        config = Config(secret="a secret that only one of the ranks was given" if rank == holder else "")
        try:
            meet(MeetingSeat(store, rank, 2, 1.0), config)
        except (ConfigError, RefusedError) as error:
            errors[rank] = error

    threads = [threading.Thread(target=main, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert all(f"rank {holder} was given the job's secret, rank {1 - holder} was not" in str(errors[n]) for n in (0, 1))
    assert isinstance(errors[0], RefusedError) and isinstance(errors[1], ConfigError)


def test_encryption_asks_for_a_secret_that_does_not_pass_through_the_store() -> None:
    store = dist.HashStore()
    with pytest.raises(ConfigError, match="tls='on' needs the job's secret on every rank"):
        meet(MeetingSeat(store, 0, 2, 1.0), Config(tls="on"))


@pytest.mark.parametrize("size", [2, 16])
def test_messages_per_rank_do_not_grow_with_the_world(size: int) -> None:
    shared = dist.HashStore()
    stores = [CountingStore(shared) for _ in range(size)]
    _meet_all(size, stores)
    for rank, store in enumerate(stores):
        store.calls.pop("delete_key", None)  # by whoever was last
        wanted = {"add": 2, "multi_get": 1, "wait": 1, "set": 2} if rank == 0 else None
        assert store.calls == (wanted or {"add": 2, "multi_get": 1, "wait": 2, "set": 1, "get": 1})


def test_missing_ranks_are_named_and_a_second_attempt_succeeds() -> None:
    store = dist.HashStore()
    errors: list[Exception] = []

    def main(rank: int) -> None:
        try:
            meet(MeetingSeat(store, rank, 4, 0.3), Config())
        except DeadlineError as error:
            errors.append(error)

    threads = [threading.Thread(target=main, args=(rank,)) for rank in (0, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(errors) == 2 and all("for ranks 1, 3 at the store" in str(error) for error in errors)
    assert all(world is not None for world in _meet_all(4, [store] * 4))


def test_rank_0_is_named() -> None:
    with pytest.raises(DeadlineError, match=r"rank 1 of 2 has waited 0 s for rank 0"):
        meet(MeetingSeat(dist.HashStore(), 1, 2, 0.1), Config())


@pytest.mark.parametrize("record", ["no json", "[1]", '{"urls": 3}', "{}", "x" * 20000])
def test_what_no_rank_wrote_is_refused(record: str) -> None:
    store = dist.HashStore()
    store.set("byteps_like/0/1", record)
    with pytest.raises(CorruptError, match="rank 1"):
        meet(MeetingSeat(store, 0, 2, 5.0), Config())


def test_own_address_is_that_of_the_route_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    tcp = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", tcp))
    assert store_address(prefixed) == ("127.0.0.1", tcp.port)
    assert store_address(dist.HashStore()) is None
    assert config_at(MeetingSeat(prefixed, 0, 2, 1.0)).scheduler == f"127.0.0.1:{tcp.port}"
    monkeypatch.setenv("BYTEPS_LIKE_HOST", "10.1.2.3")
    monkeypatch.setenv("BYTEPS_LIKE_SCHEDULER", "")
    assert config_at(MeetingSeat(prefixed, 0, 2, 1.0)).host == "10.1.2.3"
    assert rendezvous.store_address(tcp) is not None
