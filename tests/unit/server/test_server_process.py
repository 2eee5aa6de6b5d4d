"""The server process around a stand-in for the native store: worlds, failures, counters, draining, the end."""

import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, order_drain
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.control.members.drains import DrainOrder, DrainState
from byteps_like.control.types import Member, MemberRole, View, WatchEvent
from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, ConfigError, MismatchError, StalledError
from byteps_like.server.admin import drain_server, server_kept, server_stats
from byteps_like.server.figures import KeptFigures, RankFigures
from byteps_like.server.imports import import_modules
from byteps_like.server.process import EmbeddedServer, Notify, ServerProcess
from byteps_like.worker.api import TensorSpec

CONFIG = Config(
    job="serve", secret="a secret that only the tests know", num_servers=1, shards=2, heartbeat_interval=0.1
)

KEPT = KeptFigures(3, (RankFigures(), RankFigures(1, 2, 3, 4, 5, 6, 7, (0.5, 1.5, 2.5, 3.5), (4.5, 5.5, 6.5, 7.5))))


@dataclass
class FakeStore:
    """Remembers what it was told."""

    urls: tuple[str, ...]
    notify: Notify
    worlds: list[tuple[int, int, float, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    failed: threading.Event = field(default_factory=threading.Event)
    open_rounds: int = 3
    handed_over: list[bool] = field(default_factory=list)
    to_hand_over: int | None = 2
    stopped: bool = False

    def set_view(self, world: View, rank: int, stall_warning: float, stall_timeout: float) -> None:
        assert world.servers[rank].number > 0
        self.worlds.append((world.number, len(world.workers), stall_warning, stall_timeout))

    def fail(self, error: BytePSLikeError) -> None:
        self.failures.append(str(error))
        self.failed.set()

    def hand_over(self, *, sealed: bool) -> None:
        self.handed_over.append(sealed)

    def stats(self) -> dict[str, int]:
        return {"open_rounds": self.open_rounds, "payload_sent": 17}

    def kept(self) -> dict[int, KeptFigures]:
        return {7: KEPT}

    def stop(self) -> None:
        self.stopped = True


@dataclass
class FakeDoor:
    url: str = "tcp://127.0.0.1:1"
    epochs: list[int] = field(default_factory=list)

    def set_view(self, world: View, rank: int) -> None:
        self.epochs.append(world.number)

    def stop(self) -> None:
        self.epochs.append(-1)


class Rig:
    """A scheduler, one server on a thread, and workers on demand."""

    def __init__(self, **changes: Any) -> None:
        config = replace(CONFIG, scheduler="127.0.0.1:0", **changes)
        self.scheduler = SchedulerServer(config)
        self.config = replace(config, scheduler=self.scheduler.start())
        self.stores: list[FakeStore] = []
        self.door = FakeDoor()

    def make_store(self, config: Config, secret: bytes, urls: list[str], shards: int, notify: Notify) -> FakeStore:
        self.stores.append(FakeStore(tuple(urls), notify))
        return self.stores[-1]

    def make_door(self, host: str, job: str, secret: bytes, shards: int, inproc_url: str) -> FakeDoor:
        assert (shards, inproc_url.split("://")[0]) == (2, "inproc")
        return self.door

    def server(self, **changes: Any) -> ServerProcess:
        return ServerProcess(replace(self.config, role="server", **changes), self.make_store, self.make_door)  # type: ignore[arg-type]

    def worker(self, **changes: object) -> tuple[ControlClient, View]:
        client = ControlClient(replace(self.config, **changes))  # type: ignore[arg-type]
        return client, client.join(Member(MemberRole.WORKER, 0, "boot", "here", 1), timeout=20)


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.scheduler.stop()


@pytest.fixture
def elastic_rig() -> Iterator[Rig]:
    made = Rig(elastic=True, num_servers=2)
    yield made
    made.scheduler.stop()


def run(server: ServerProcess) -> tuple[threading.Thread, list[BytePSLikeError | None]]:
    outcome: list[BytePSLikeError | None] = []
    server.start()
    thread = threading.Thread(target=lambda: outcome.append(server.serve()), daemon=True)
    thread.start()
    return thread, outcome


def until(true: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_epoch_after_epoch_until_the_job_ends(rig: Rig) -> None:
    thread, outcome = run(rig.server())
    client, world = rig.worker(stall_warning=1.5)
    (server,) = world.servers
    store = rig.stores[0]
    assert [url.split("://")[0] for url in server.urls] == ["shm", "tcp"]
    assert (server.rank, server.shards, server.door) == (0, 2, rig.door.url)
    assert store.worlds == [(1, 1, 1.5, 120.0)]

    store.notify(1, StalledError("round 1 waits for rank 0"), True)
    assert store.failed.wait(10)
    assert store.failures == ["round 1 waits for rank 0"]
    until(lambda: isinstance(client.error, StalledError))
    client.leave()

    client, world = rig.worker()
    assert [entry[0] for entry in store.worlds] == rig.door.epochs == [1, world.number] == [1, 2]
    client.leave()
    thread.join(20)
    assert outcome == [None]
    assert store.stopped
    assert rig.door.epochs[-1] == -1


def test_what_one_epoch_has_failed_with_does_not_fail_the_next(rig: Rig) -> None:
    """The store says late what it has failed with."""
    run(rig.server())
    client, _ = rig.worker()
    store = rig.stores[0]
    client.report(StalledError("rank 0 waits for ever"), 1)
    assert store.failed.wait(10)
    client.leave()
    client, world = rig.worker()
    assert world.number == 2
    store.failed.clear()
    store.notify(1, StalledError("too late"), True)
    store.notify(2, MismatchError("something else"), True)
    assert store.failed.wait(10)
    assert "something else" in store.failures[1]
    until(lambda: isinstance(client.error, MismatchError))
    client.leave()


def test_a_server_that_is_to_leave_does_so_once_others_have_what_it_keeps(elastic_rig: Rig) -> None:
    rig = elastic_rig
    servers = [run(rig.server()), run(rig.server())]
    client, _ = rig.worker()
    heard: list[WatchEvent] = []
    client.on_event(heard.append)
    client.declare([TensorSpec("kept", DType.FLOAT32, (64,), on_loss="raise")])
    asked = order_drain(rig.config, DrainOrder(MemberRole.SERVER, 1))
    until(lambda: any(store.handed_over for store in rig.stores))
    (leaving,) = (store for store in rig.stores if store.handed_over)
    until(lambda: len(leaving.handed_over) > 2)
    assert not leaving.stopped and True not in leaving.handed_over
    assert order_drain(rig.config, DrainOrder(MemberRole.SERVER, 1, asked.number)).state is DrainState.ASKED
    leaving.to_hand_over = 0
    until(lambda: leaving.stopped)
    assert leaving.handed_over[-1] and leaving.handed_over.count(True) == 1
    assert order_drain(rig.config, DrainOrder(MemberRole.SERVER, 1, asked.number)).state is DrainState.LEFT
    until(lambda: [event.servers for event in heard] == [(1,)])
    assert client.error is None
    client.leave()
    for thread, outcome in servers:
        thread.join(20)
        assert outcome == [None]


def test_stats_and_draining(rig: Rig) -> None:
    thread, _ = run(rig.server())
    client, world = rig.worker()
    admin = world.servers[0].admin
    stats = server_stats(rig.config, admin)
    nobody = {"strangers_refused": 0.0, "strangers_late": 0.0, "strangers_crowded_out": 0.0}
    assert (stats.rank, stats.epoch) == (0, 1)
    assert dict(stats.counters) == {"open_rounds": 3.0, "payload_sent": 17.0} | nobody
    assert server_kept(rig.config, admin) == {7: KEPT}
    assert not drain_server(rig.config, admin, timeout=0.1)
    rig.stores[0].open_rounds = 0
    assert drain_server(rig.config, admin, timeout=10)
    client.leave()
    thread.join(20)


def test_stop_ends_a_server_that_waits_or_has_not_joined(rig: Rig) -> None:
    server = rig.server()
    thread, outcome = run(server)
    server.stop()
    thread.join(20)
    assert outcome == [None]
    early = rig.server()
    early.start()
    early.stop()
    assert early.serve() is None
    assert all(store.stopped for store in rig.stores)


def test_an_embedded_server_and_its_metrics(rig: Rig) -> None:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = EmbeddedServer(replace(rig.config, role="server", metrics_port=port), rig.make_store, rig.make_door)
    server.start()
    client, _ = rig.worker()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
        text = page.read().decode()
    assert 'byteps_like_payload_sent_total{job="serve",rank="0"} 17.0' in text
    client.report(MismatchError("no"), 1)
    client.leave()
    server.stop()
    assert rig.stores[0].stopped


def test_modules_that_a_server_imports(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "functions_of_mine.py").write_text("here = 1\n")
    (tmp_path / "broken_functions.py").write_text("raise ValueError('not today')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    import_modules(" functions_of_mine, ")
    assert sys.modules.pop("functions_of_mine").here == 1
    for name, words in (("broken_functions", "ValueError: not today"), ("nowhere_at_all", "No module named")):
        with pytest.raises(ConfigError, match=f"can't import '{name}'.*{words}.*--import"):
            rig.server(server_imports=f"functions_of_mine,{name}").start()
    assert not rig.stores
