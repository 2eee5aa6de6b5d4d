"""PortableWorker through real doors to stores written in Python: sums, broadcast, order, errors, broken connections."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
from fake_keeper import KeepingStore
from fake_store import FIRST, INCARNATION, SECRET, SERVER, FakeStore, door_to

from byteps_like.control.calls.door_keys import door_keys
from byteps_like.control.types import EventKind, WatchEvent
from byteps_like.dtypes import DType, Op
from byteps_like.errors import (
    BytePSLikeError,
    DeadlineError,
    InvalidArgumentError,
    MismatchError,
    PeerLostError,
    RefusedError,
    ShutdownError,
    StalledError,
)
from byteps_like.portable.worker import PortableOptions, PortableWorker
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.api import Declared, Partition, TensorSpec, Worker
from byteps_like.worker.keeping import Keeps, KeepSpec, KeptTensor
from byteps_like.worker.standing import Standing

DEADLINE = 20.0


class FakeControl:
    """Declares by cutting every tensor into pieces of `piece` bytes over `slots` (server, shard)."""

    def __init__(self, slots: Sequence[tuple[int, int]] = ((0, 0),), piece: int = 1 << 20) -> None:
        self.slots, self.piece = slots, piece
        self.names: dict[str, int] = {}
        self.reported: list[BytePSLikeError] = []
        self.callbacks: list = []
        self.explains = True
        self.heard = threading.Semaphore(0)
        self.waited: list = []
        self.left = 0

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        return [self._one(spec) for spec in specs]  # each rank by itself: a real scheduler would compare them

    def _one(self, spec: TensorSpec) -> Declared:
        number = self.names.setdefault(spec.name, len(self.names))
        parts = []
        for index, offset in enumerate(range(0, spec.nbytes, self.piece)):
            server, shard = self.slots[index % len(self.slots)]
            parts.append(Partition(number << 16 | index, offset, min(self.piece, spec.nbytes - offset), server, shard))
        return Declared(spec, number, tuple(parts))

    def barrier(self, name: str, timeout: float) -> None:
        raise NotImplementedError

    def waiting(self, what) -> None:
        self.waited.append(what)

    def on_event(self, callback) -> None:
        self.callbacks.append(callback)

    def tell(self, event: WatchEvent) -> None:
        for callback in self.callbacks:
            callback(event)

    def report(self, error: BytePSLikeError, epoch: int) -> None:
        """A real scheduler then tells all why the job failed, once."""
        self.reported.append(error)
        if len(self.reported) == 1 and self.explains:
            self.tell(WatchEvent(EventKind.FAILED, "", error))
        self.heard.release()

    def leave(self) -> None:
        self.left += 1


def options(urls: Sequence[str], rank: int = 0, size: int = 1, **others) -> PortableOptions:
    doors = tuple((f"server {index}", url, SERVER) for index, url in enumerate(urls))
    standing = Standing(rank, tuple(range(FIRST, FIRST + size)), rank, size)
    others = {"patience": 3.0, "stall_timeout": DEADLINE} | others
    return PortableOptions("job", door_keys(SECRET, INCARNATION), INCARNATION, 1, standing, doors, **others)


@contextmanager
def workers(
    urls: Sequence[str], count: int, control: FakeControl, world: int = 0, **others
) -> Iterator[list[PortableWorker]]:
    with ExitStack() as stack:
        made = []
        for rank in range(count):
            made.append(PortableWorker(options(urls, rank, world or count, **others), control))
            stack.callback(made[-1].close)
        yield made


def start(worker: PortableWorker, array: np.ndarray, op: Op = Op.SUM, name: str = "x", **others):
    spec = TensorSpec(name, DType[array.dtype.name.upper()], array.shape)
    return worker.push_pull(worker.declare([spec])[0], array.ctypes.data, op, **others)


def test_is_a_worker():
    with door_to(FakeStore(1)) as door, workers([door.url], 1, FakeControl()) as (one,):
        assert isinstance(one, Worker)


@pytest.mark.parametrize("count", [1, 1000, 300_000])
def test_sums_over_servers_and_shards(count):
    control = FakeControl([(0, 0), (1, 1), (0, 1), (1, 0)], piece=100_000)
    with ExitStack() as stack:
        urls = [stack.enter_context(door_to(FakeStore(2), FakeStore(2))).url for _ in range(2)]
        with workers(urls, 2, control) as pair:
            arrays = [np.random.default_rng(rank).integers(-1000, 1000, count) for rank in range(2)]
            for _ in range(3):
                expected = arrays[0] + arrays[1]
                handles = [start(worker, array) for worker, array in zip(pair, arrays, strict=True)]
                for handle, array in zip(handles, arrays, strict=True):
                    handle.wait(DEADLINE)
                    assert (array == expected).all()
            stats = pair[0].stats()
    assert stats["payload_sent"] == stats["payload_received"] == 3 * 8 * count


def test_broadcast_gives_everybody_the_roots_bytes():
    with door_to(FakeStore(3)) as door, workers([door.url], 3, FakeControl(piece=10_000)) as three:
        arrays = [np.full(5000, rank, np.float64) for rank in range(3)]
        handles = [start(w, a, Op.BROADCAST, root=1) for w, a in zip(three, arrays, strict=True)]
        for handle, array in zip(handles, arrays, strict=True):
            handle.wait(DEADLINE)
            assert (array == 1).all()
        assert [worker.stats()["payload_sent"] for worker in three] == [0, 40_000, 0]


def test_average_and_chosen_parts():
    with door_to(FakeStore(2)) as door, workers([door.url], 2, FakeControl(piece=800)) as pair:
        arrays = [np.full(300, value, np.int64) for value in (5, -8)]
        handles = [start(w, a, Op.AVERAGE, parts=range(1, 2)) for w, a in zip(pair, arrays, strict=True)]
        for handle, array, own in zip(handles, arrays, (5, -8), strict=True):
            handle.wait(DEADLINE)
            assert array.tolist() == [own] * 100 + [-2] * 100 + [own] * 100


def test_a_name_in_flight_twice_keeps_its_rounds_apart():
    with door_to(FakeStore(2)) as door, workers([door.url], 2, FakeControl()) as pair:
        first, second = ([np.full(10, 10 * turn + rank) for rank in range(2)] for turn in (1, 2))
        handles = [start(pair[0], first[0]), start(pair[0], second[0])]
        handles += [start(pair[1], first[1]), start(pair[1], second[1])]
        for handle in handles:
            handle.wait(DEADLINE)
        assert [array[0] for array in (*first, *second)] == [21, 21, 41, 41]


def test_higher_priority_overtakes_what_waits():
    store = FakeStore(1)
    with door_to(store) as door, workers([door.url], 1, FakeControl(), credit=1 << 20) as (one,):
        arrays = [np.zeros(200_000) for _ in range(6)]
        handles = [start(one, array, name=f"x{n}", priority=n) for n, array in enumerate(arrays)]
        for handle in handles:
            handle.wait(DEADLINE)
    order = [header.key >> 16 for header in store.frames if header.type == 1 and header.offset == 0]
    assert order[-1] != 5, order
    assert order[-2:] == sorted(order[-2:], reverse=True), order


def test_empty_tensors_are_done_at_once():
    with door_to(FakeStore(2)) as door, workers([door.url], 1, FakeControl(), world=2) as (one,):
        handle = start(one, np.zeros(0))
        assert handle.done()
        handle.wait()


def test_broken_connections_cost_nothing():
    """The store drops every link again and again, at frames that fall anywhere."""
    store = FakeStore(2, drop_after=7, drops=25)
    with door_to(store) as door, workers([door.url], 2, FakeControl(piece=300_000), segment=20_000) as pair:
        for turn in range(4):
            arrays = [np.random.default_rng(turn + rank).integers(0, 1000, 100_000) for rank in range(2)]
            expected = arrays[0] + arrays[1]
            handles = [start(worker, array) for worker, array in zip(pair, arrays, strict=True)]
            for handle, array in zip(handles, arrays, strict=True):
                handle.wait(DEADLINE)
                assert (array == expected).all()
    assert store.drops == 0


def test_a_restarted_door_is_found_again():
    store = FakeStore(1)
    with ExitStack() as stack:
        door = stack.enter_context(door_to(store))
        (one,) = stack.enter_context(workers([door.url], 1, FakeControl()))
        url = door.url
        door.stop()
        array = np.arange(1000)
        handle = start(one, array)
        assert not handle.done()
        stack.enter_context(door_to(store, url=url))
        handle.wait(DEADLINE)


def test_a_door_that_stays_away_is_a_lost_peer():
    control = FakeControl()
    with door_to(FakeStore(2)) as door, workers([door.url], 1, control, world=2, patience=0.5) as (one,):
        handle = start(one, np.zeros(10))
        door.stop()
        began = time.monotonic()
        with pytest.raises(PeerLostError, match=r"server 0 .* can't be reached"):
            handle.wait(DEADLINE)
        assert time.monotonic() - began < 5
        with pytest.raises(PeerLostError):
            start(one, np.zeros(10))
    assert [type(error) for error in control.reported] == [PeerLostError]


def test_a_mismatch_reaches_everybody_by_name():
    with door_to(FakeStore(2)) as door, workers([door.url], 2, FakeControl()) as pair:
        handles = [start(pair[0], np.zeros(10)), start(pair[1], np.zeros(20))]
        for handle in handles:
            with pytest.raises(MismatchError, match="disagree on 'x' \\(partition 0\\)"):
                handle.wait(DEADLINE)


def test_an_error_from_outside_fails_what_is_under_way_and_all_that_follows():
    control = FakeControl()
    with door_to(FakeStore(2)) as door, workers([door.url], 1, control, world=2) as (one,):
        handle = start(one, np.zeros(10))
        control.tell(WatchEvent(EventKind.FAILED, "", PeerLostError("worker 1 died")))
        for call in (lambda: handle.wait(DEADLINE), lambda: start(one, np.zeros(10)), one.barrier):
            with pytest.raises(PeerLostError, match="worker 1 died"):
                call()


def test_an_error_has_names_also_for_a_rank_that_declares_too_late():
    """The servers' error comes to a rank that doesn't know the key by name yet; the scheduler tells the name."""
    control = FakeControl()
    control.explains = False
    with door_to(FakeStore(3)) as door, workers([door.url], 3, control) as (first, second, late):
        start(first, np.zeros(10))
        start(second, np.zeros(11))
        for _ in range(3):
            assert control.heard.acquire(timeout=DEADLINE)
        named = MismatchError("the ranks disagree on 'x' (partition 0)")
        threading.Timer(0.1, control.tell, [WatchEvent(EventKind.FAILED, "", named)]).start()
        with pytest.raises(MismatchError, match="'x'"):
            start(late, np.zeros(10))


def test_deadlines():
    with door_to(FakeStore(2)) as door, workers([door.url], 1, FakeControl(), world=2, stall_timeout=0.3) as (one,):
        handle = start(one, np.zeros(10))
        with pytest.raises(DeadlineError):
            handle.wait(0.05)
        with pytest.raises(StalledError, match="'x' made no progress"):
            handle.wait()


def test_a_long_wait_is_told_to_the_scheduler(monkeypatch):
    monkeypatch.setattr("byteps_like.portable.handle._REPORT_AFTER", 0.05)
    control = FakeControl()
    with door_to(FakeStore(2)) as door, workers([door.url], 1, control, world=2) as (one,):
        handle = start(one, np.zeros(10), name="w")
        with pytest.raises(DeadlineError):
            handle.wait(0.2)
    told, ended = control.waited
    assert (told["name"], told["round"], told["started"], ended) == ("w", 0, {"w": 0}, None)
    assert told["since"] >= 0.05


def test_close_ends_what_is_outstanding_and_leaves():
    store, control = FakeStore(2), FakeControl()
    with door_to(store) as door:
        worker = PortableWorker(options([door.url], size=2), control)
        handle = start(worker, np.zeros(10))
        worker.close()
        worker.close()
        with pytest.raises(ShutdownError):
            handle.wait(DEADLINE)
        with pytest.raises(ShutdownError):
            start(worker, np.zeros(10))
    assert control.left == 1


def test_wrong_arguments():
    with door_to(FakeStore(1)) as door, workers([door.url], 1, FakeControl()) as (one,):
        with pytest.raises(InvalidArgumentError):
            start(one, np.zeros(10), Op.BROADCAST, root=1)
        with pytest.raises(InvalidArgumentError):
            start(one, np.zeros(10), parts=range(5))


def test_a_wrong_secret_is_refused_by_name():
    other = b"another secret of the same job.."
    with door_to(FakeStore(1), secret=other) as door, pytest.raises(RefusedError, match="another secret"):
        PortableWorker(options([door.url]), FakeControl())


def test_a_wrong_epoch_is_refused_by_name():
    with door_to(FakeStore(1), epoch=2) as door, pytest.raises(RefusedError, match="epoch 1 is not this server's 2"):
        PortableWorker(options([door.url]), FakeControl())


def test_nobody_at_the_door():
    with pytest.raises(PeerLostError, match=r"server 0 \(portable door tcp://127.0.0.1:1\)"):
        PortableWorker(options(["tcp://127.0.0.1:1"], patience=0.3), FakeControl())


def test_idle_threads_sleep():
    with door_to(FakeStore(1)) as door, workers([door.url], 1, FakeControl()) as (one,):
        start(one, np.zeros(10)).wait(DEADLINE)
        before = time.process_time()
        threading.Event().wait(0.5)
        assert time.process_time() - before < 0.1, "a thread that spins would take half a second"


SUM = KeepSpec("asp", "sum:age=none,damp=none", "add", root=1)


def keep_on_all(pair: Sequence[PortableWorker], first: np.ndarray, spec: KeepSpec = SUM) -> list[KeptTensor]:
    """On two ranks at once: the first value is rank 1's."""
    given = TensorSpec("kept", DType[first.dtype.name.upper()], first.shape)

    def keep(worker: PortableWorker) -> KeptTensor:
        assert isinstance(worker, Keeps)
        return worker.keep(worker.declare([given])[0], spec, first.ctypes.data if worker.rank == spec.root else 0)

    with ThreadPoolExecutor(len(pair)) as pool:
        return list(pool.map(keep, pair))


def test_values_are_kept_over_servers_and_links_that_break():
    """The stores drop every link again and again, at frames that fall anywhere; rounds are under way meanwhile."""
    control = FakeControl([(0, 0), (1, 1), (0, 1), (1, 0)], piece=24_000)
    first = np.arange(20_000)
    stores = [[KeepingStore(2, drop_after=9, drops=6) for _ in range(2)] for _ in range(2)]
    with ExitStack() as stack:
        urls = [stack.enter_context(door_to(*shards)).url for shards in stores]
        with workers(urls, 2, control, segment=9000) as pair:
            kept = keep_on_all(pair, first)
            arrays, handles = [np.full_like(first, 10**turn) for turn in range(6)], []
            for array in arrays:
                rounds = [np.full(5000, rank) for rank in range(2)]
                begun = [start(worker, own) for worker, own in zip(pair, rounds, strict=True)]
                handles += [one.push(array.ctypes.data, Note()) for one in kept]
                for handle, own in zip(begun, rounds, strict=True):
                    handle.wait(DEADLINE)
                    assert (own == 1).all()
            for handle in handles:
                handle.wait(DEADLINE)
                assert {outcome.applied for outcome in handle.outcomes()} == {Applied.COUNTED}
            for one in kept:
                value = np.zeros_like(first)
                handle = one.pull(value.ctypes.data)
                handle.wait(DEADLINE)
                assert {outcome.version for outcome in handle.outcomes()} == {12}
                assert (value == first + 2 * 111_111).all()
    assert sum(store.drops for shards in stores for store in shards) == 0


def test_close_ends_what_is_under_way_with_kept_values():
    with door_to(KeepingStore(2)) as door, workers([door.url], 2, FakeControl()) as pair:
        first = np.zeros(100)
        kept = keep_on_all(pair, first, replace(SUM, policy="bsp"))
        handles = [kept[0].push(first.ctypes.data, Note()), kept[0].pull(first.ctypes.data)]
        with pytest.raises(DeadlineError):
            handles[1].wait(0.05)
        pair[0].close()
        for call in (handles[0].wait, handles[1].wait, lambda: kept[0].pull(first.ctypes.data)):
            with pytest.raises(ShutdownError):
                call()


def test_a_long_wait_for_a_kept_value_says_nothing_of_rounds(monkeypatch):
    """Or the scheduler would take ranks that wait for two values for ranks that wait for each other."""
    monkeypatch.setattr("byteps_like.portable.handle._REPORT_AFTER", 0.05)
    control = FakeControl()
    with door_to(KeepingStore(2)) as door, workers([door.url], 2, control) as pair:
        first = np.zeros(100)
        kept = keep_on_all(pair, first, replace(SUM, policy="bsp"))
        control.waited.clear()
        kept[0].push(first.ctypes.data, Note())
        with pytest.raises(DeadlineError):
            kept[0].pull(first.ctypes.data).wait(0.2)
    told, ended = control.waited
    assert (told["name"], "started" in told, ended) == ("kept", False, None)


def test_who_waits_for_a_first_value_that_nobody_brings_is_told():
    with door_to(KeepingStore(2)) as door, workers([door.url], 1, FakeControl(), world=2, stall_timeout=0.2) as (one,):
        declared = one.declare([TensorSpec("kept", DType.INT64, (5,))])[0]
        with pytest.raises(StalledError, match="'kept' made no progress"):
            one.keep(declared, SUM)
