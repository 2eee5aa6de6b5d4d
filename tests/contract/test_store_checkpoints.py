"""Checkpoints of stores over portable and native workers, and native servers: what goes on after one is, to the last
bit, what would have gone on; on other numbers of ranks, servers and partitions; what is damaged changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from cutting_proxy import CuttingProxy
from mixed_job import DEADLINE, WORLDS, MixedJob, portable_through

from byteps_like.errors import (
    BytePSLikeError,
    CorruptError,
    InvalidArgumentError,
    MismatchError,
    StalledError,
    SystemCallError,
)
from byteps_like.store.kv import KV
from byteps_like.store.store import Store

SHAPE = (120, 1001)


@contextmanager
def job(kind: str = "native", ranks: int = 3, **settings: Any) -> Iterator[MixedJob]:
    made = MixedJob(makers=WORLDS[kind][:ranks], **settings)
    try:
        yield made
    finally:
        made.close()


def drawn(seed: int, shape: Any = SHAPE, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def pulled(store: Store, name: str, like: np.ndarray) -> np.ndarray:
    out = np.empty_like(like)
    store.pull(name, out).wait(DEADLINE)
    return out


def step(store: Store, number: int, rank: int) -> Any:
    """Rank 0 brings all: a sum doesn't tell how many there are."""
    future = store.push("w", drawn(100 + number) if rank == 0 else np.zeros(SHAPE, np.float32))
    future.wait(DEADLINE)
    return future


def raised(call: Any) -> BytePSLikeError:
    with pytest.raises(BytePSLikeError) as found:
        call()
    return found.value


@pytest.mark.parametrize("kind", list(WORLDS))
@pytest.mark.parametrize("update", ["momentum:lr=0.1", "adam:lr=0.01", "row_adagrad:lr=0.5"])
def test_another_job_goes_on_to_the_last_bit(kind, update, tmp_path):
    """Two ranks of any kind restore, on one server and in larger partitions, what three have saved."""

    def train(worker: Any) -> tuple[int, np.ndarray]:
        store = Store("s", {"w": drawn(0), "n": drawn(1, (5,))}, update=update, combine="sum", worker=worker)
        for number in range(3):
            step(store, number, worker.rank)
        version = store.checkpoint(tmp_path)
        for number in range(3, 6):
            step(store, number, worker.rank)
        return version, pulled(store, "w", drawn(0))

    def go_on(worker: Any) -> tuple[np.ndarray, np.ndarray, int]:
        store = Store("s", {"w": np.zeros(SHAPE, np.float32), "n": np.zeros(5, np.float32)}, update=update,
                      combine="sum", worker=worker)  # fmt: skip
        store.restore(tmp_path)
        assert set(store.versions("w")) == {3} and set(store.versions("n")) == {0}
        for number in range(3, 6):
            future = step(store, number, worker.rank)
        return pulled(store, "w", drawn(0)), pulled(store, "n", drawn(1, (5,))), future.version

    with job(kind, partition_bytes=40_000) as first:
        found = first.everybody(train)
    assert {version for version, _ in found} == {0}  # of "n"
    with job(kind, 2, hosts=("",), partition_bytes=100_003) as second:
        for value, other, version in second.everybody(go_on):
            assert np.array_equal(value, found[0][1])
            assert np.array_equal(other, drawn(1, (5,)))
            assert version == 6


@pytest.mark.parametrize("kind", list(WORLDS))
def test_pushes_that_race_the_cut_are_in_it_once_or_not(kind, tmp_path):
    """By the clocks in the manifest: each partition's sum is that of so many contributions of each rank."""
    like = np.zeros(3000, np.int64)

    def race(worker: Any) -> None:
        store = Store("sums", {"w": like}, update="add", combine="sum", consistency="asp", worker=worker)
        ends = threading.Event()
        ones = np.full_like(like, 1000**worker.rank)

        def push() -> None:
            while not ends.is_set():
                store.push("w", ones).wait(DEADLINE)

        pushing = threading.Thread(target=push)
        pushing.start()
        for _ in range(5):
            store.checkpoint(tmp_path)
        ends.set()
        pushing.join()

    with job(kind, partition_bytes=4096) as made:
        made.everybody(race)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    pieces = manifest["tensors"]["w"]["pieces"]
    assert len(pieces) > 4 and len({piece["file"] for piece in pieces}) == 3
    assert {tuple(piece["clocks"]) for piece in pieces} == {tuple(pieces[0]["clocks"])}, "not one cut"
    assert sum(pieces[0]["clocks"]) > 0
    for piece in pieces:
        data = (tmp_path / piece["file"]).read_bytes()[piece["at"] :][: piece["nbytes"]]
        wanted = sum(count * 1000**rank for rank, count in enumerate(piece["clocks"]))
        assert set(np.frombuffer(data, np.int64)) == {wanted}
    with job(kind, 2, hosts=("",)) as made:

        def read(worker: Any) -> np.ndarray:
            store = Store("sums", {"w": like}, update="add", combine="sum", consistency="asp", worker=worker)
            store.restore(tmp_path)
            return pulled(store, "w", like)

        for value in made.everybody(read):
            assert set(value) == {wanted}


def test_those_who_are_ahead_of_the_bound_are_not_kept_waiting(tmp_path):
    """Rank 0 has come to the cut; nobody waits for it any more."""

    def train(worker: Any) -> None:
        store = Store("s", {"w": np.zeros(10, np.float32)}, consistency="ssp:s=1", worker=worker)
        for _ in range(6 * worker.rank):
            store.push("w", np.ones(10, np.float32)).wait(DEADLINE)
            pulled(store, "w", np.zeros(10, np.float32))
        store.checkpoint(tmp_path)

    with job() as made:
        made.everybody(train)


def test_what_is_damaged_or_of_another_store_changes_nothing(tmp_path):
    good, bad = tmp_path / "good", tmp_path / "bad"

    def train(worker: Any) -> None:
        values = {"w": drawn(0)}
        store = Store("s", values, update="momentum:lr=0.1", worker=worker)
        step(store, 0, worker.rank)
        store.checkpoint(good)
        store.checkpoint(bad)
        step(store, 1, worker.rank)
        before = pulled(store, "w", values["w"])
        worker.barrier()
        if worker.rank == 0:
            part = next(bad.glob("part-*1.bin"))
            whole = part.read_bytes()
            part.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
        worker.barrier()
        error = raised(lambda: store.restore(bad))
        assert isinstance(error, CorruptError) and "part-" in str(error) and "checksum" in str(error)
        worker.barrier()
        if worker.rank == 0:
            part.write_bytes(whole[:-5])
        worker.barrier()
        assert "was cut" in str(raised(lambda: store.restore(bad)))
        worker.barrier()
        if worker.rank == 0:
            part.unlink()
        worker.barrier()
        assert "missing" in str(raised(lambda: store.restore(bad)))
        assert "there is no checkpoint" in str(raised(lambda: store.restore(tmp_path / "none")))
        other = Store("t", {"w": drawn(0), "v": drawn(1)}, update="momentum:lr=0.1", worker=worker)
        error = raised(lambda: other.restore(good))
        assert isinstance(error, MismatchError) and "'v'" in str(error) and "nothing" in str(error)
        third = Store("u", values, update="adam", worker=worker)
        error = raised(lambda: third.restore(good))
        assert isinstance(error, MismatchError) and "momentum" in str(error) and "adam" in str(error)
        assert isinstance(raised(lambda: third.checkpoint(good)), InvalidArgumentError)
        error = raised(lambda: store.checkpoint(tmp_path / str(worker.rank)))
        assert isinstance(error, MismatchError) and str(tmp_path / "1") in str(error) + str(tmp_path / "1")
        assert np.array_equal(pulled(store, "w", values["w"]), before)
        store.restore(good)
        step(store, 1, worker.rank)
        assert np.array_equal(pulled(store, "w", values["w"]), before)

    with job(partition_bytes=40_000) as made:
        made.everybody(train)


def test_a_rank_that_can_not_write_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    """Its disk is full: all ranks hear of it, and what was there stays."""
    from byteps_like.store.saving import files, manifest

    write = manifest.SavedPartWriter.write

    def full(self: Any, chunks: Any) -> Any:
        if self.file.endswith("00001.bin") and broken.is_set():
            with files.told(Path(self.file)):
                raise OSError(28, "No space left on device", self.file)
        return write(self, chunks)

    broken = threading.Event()
    monkeypatch.setattr(manifest.SavedPartWriter, "write", full)

    def train(worker: Any) -> None:
        store = Store("s", {"w": drawn(0)}, worker=worker)
        store.checkpoint(tmp_path)
        worker.barrier()
        kept = {path.name for path in tmp_path.iterdir() if path.suffix != ".json" or path.name == "manifest.json"}
        broken.set()
        worker.barrier()
        error = raised(lambda: store.checkpoint(tmp_path))
        assert isinstance(error, SystemCallError) and "No space left" in str(error) and "part-" in str(error)
        worker.barrier()
        assert {path.name for path in tmp_path.glob("*.bin")} == {name for name in kept if name.endswith(".bin")}
        broken.clear()
        worker.barrier()
        store.restore(tmp_path)
        assert np.array_equal(pulled(store, "w", drawn(0)), drawn(0))

    with job() as made:
        made.everybody(train)


@pytest.mark.parametrize("kind", list(WORLDS))
@pytest.mark.parametrize("update", ["add", "adam:lr=0.01", "row_adagrad:lr=0.5"])
def test_tables_go_on_to_the_last_bit(kind, update, tmp_path):
    """Rows are where they belong on other servers, with state, versions and counts of updates."""
    keys = np.unique(np.random.default_rng(7).integers(0, 1 << 63, 3000, np.uint64) * np.uint64(2))
    made_of = {"update": update, "combine": "sum", "consistency": "bsp"}

    def turn(table: KV, number: int, rank: int) -> None:
        chosen = keys[number % 3 :: 3] if number < 4 else keys[::2]
        rows = drawn(number, (len(chosen), 5))
        table.push(chosen, rows if rank == 0 else np.zeros_like(rows)).wait(DEADLINE)

    def train(worker: Any) -> tuple[int, np.ndarray]:
        table = KV("t", 5, worker=worker, **made_of)
        for number in range(5):
            turn(table, number, worker.rank)
        version = table.checkpoint(tmp_path)
        for number in range(5, 8):
            turn(table, number, worker.rank)
        return version, table.pull(keys).value

    def go_on(worker: Any) -> np.ndarray:
        table = KV("t", 5, worker=worker, **made_of)
        table.push(keys + np.uint64(1), np.ones((len(keys), 5), np.float32)).wait(DEADLINE)
        table.restore(tmp_path)
        assert len(table.pull_range(0, (1 << 64) - 1).keys) == len(keys)
        for number in range(5, 8):
            turn(table, number, worker.rank)
        return table.pull(keys).value

    with job(kind) as first:
        found = first.everybody(train)
    assert {version for version, _ in found} == {5}
    with job(kind, 2, hosts=("",)) as second:
        for value in second.everybody(go_on):
            assert np.array_equal(value, found[0][1])
    with job(kind, hosts=("", "", "")) as third:
        for value in third.everybody(go_on):
            assert np.array_equal(value, found[0][1])


def test_a_state_dict_has_all_and_gives_it_back(tmp_path):
    keys = np.arange(50, dtype=np.uint64) * np.uint64(1 << 58)

    def train(worker: Any) -> tuple[dict[str, Any], dict[str, Any], np.ndarray, np.ndarray]:
        store = Store("s", {"w": drawn(0)}, update="adam:lr=0.01", combine="sum", worker=worker)
        table = KV("t", 3, update="adam:lr=0.01", consistency="bsp", worker=worker)
        for number in range(2):
            step(store, number, worker.rank)
            table.push(keys, drawn(number, (50, 3)) * np.float32(worker.rank == 0)).wait(DEADLINE)
        found, rows = store.state_dict(), table.state_dict()
        assert np.array_equal(found["tensors"]["w"]["value"], pulled(store, "w", drawn(0)))
        assert found["version"] == rows["version"] == 2
        for number in range(2, 4):
            step(store, number, worker.rank)
            table.push(keys, drawn(number, (50, 3)) * np.float32(worker.rank == 0)).wait(DEADLINE)
        return found, rows, pulled(store, "w", drawn(0)), table.pull(keys).value

    with job(partition_bytes=40_000) as first:
        found, rows, value, pulled_rows = first.everybody(train)[0]

    def go_on(worker: Any) -> None:
        store = Store("s", {"w": drawn(5)}, update="adam:lr=0.01", combine="sum", worker=worker)
        table = KV("t", 3, update="adam:lr=0.01", consistency="bsp", worker=worker)
        assert "state_dict" in str(raised(lambda: store.load_state_dict({"tensors": {"w": {}}})))
        store.load_state_dict(found)
        table.load_state_dict(rows)
        for number in range(2, 4):
            step(store, number, worker.rank)
            table.push(keys, drawn(number, (50, 3)) * np.float32(worker.rank == 0)).wait(DEADLINE)
        assert np.array_equal(pulled(store, "w", drawn(0)), value)
        assert np.array_equal(table.pull(keys).value, pulled_rows)

    with job("mixed", 2, hosts=("",)) as second:
        second.everybody(go_on)


def test_links_that_break_tear_no_checkpoint(tmp_path):
    """Requests are asked again and answered once: sums are exact, and the last checkpoint is what servers have."""
    like = np.zeros(60_000, np.int64)
    proxies: list[CuttingProxy] = []

    def through(url: str) -> str:
        proxies.append(CuttingProxy(url, len(proxies), cuts=6, most_bytes=1_500_000))
        return proxies[-1].url

    def train(worker: Any) -> None:
        store = Store("s", {"w": like}, combine="sum", consistency="asp", worker=worker)
        for number in range(4):
            store.push("w", np.full_like(like, 1 + worker.rank))
            assert store.checkpoint(tmp_path) == 2 * (number + 1)
            assert set(pulled(store, "w", like)) == {3 * (number + 1)}
            worker.barrier()
        store.push("w", like + 1).wait(DEADLINE)
        store.restore(tmp_path)
        assert set(pulled(store, "w", like)) == {12} and set(store.versions("w")) == {8}

    made = MixedJob(makers=[lambda config: portable_through(config, through)] * 2, partition_bytes=65_536)
    try:
        made.everybody(train)
    finally:
        made.close()
        for proxy in proxies:
            proxy.close()
    assert sum(proxy.cuts_left for proxy in proxies) < 6 * len(proxies)


@pytest.mark.parametrize("kind", ["native", "portable"])
def test_a_rank_that_does_not_save_is_named(kind, tmp_path):
    told = threading.Barrier(3)

    def train(worker: Any) -> BytePSLikeError | None:
        store = Store("s", {"w": np.zeros(9)}, worker=worker)
        found = None if worker.rank == 1 else raised(lambda: store.checkpoint(tmp_path))
        told.wait(DEADLINE)
        return found

    with job(kind, stall_warning=0.3, stall_timeout=1.0) as ran:
        first, _, last = ran.everybody(train)
    for found in (first, last):
        assert isinstance(found, StalledError) and "ranks that do not: 1" in str(found), found
    assert not list(tmp_path.rglob("manifest.json"))
