"""Tables below another: two sites and an upper group, against a simulation in NumPy; bytes; what is restored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")
pytest.importorskip("torch")

from byteps_like.errors import InvalidArgumentError
from byteps_like.portable.join import join
from byteps_like.store.kv import KV
from byteps_like.store.updates.registry import update_of
from byteps_like.store.upper.upper import Upper
from byteps_like.wire.note import NOTE_BYTES
from byteps_like.worker.local import LocalWorker
from tests.contract.low_comm.two_sites import EVERY, PHASES, RANKS, SITES, check_values, over_exchanges, wait_for, world
from tests.contract.mixed_job import DEADLINE

COUNT, WIDTH = 200, 3
KEYS = KV.spread(np.arange(COUNT), COUNT)
Steps = dict[tuple[int, int, int], tuple[np.ndarray, np.ndarray]]


def drawn(*seed: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Which of all keys, and their rows."""
    random = np.random.default_rng(seed)
    places = np.flatnonzero(random.random(COUNT) < 0.1)
    rows = random.standard_normal((len(places), WIDTH))
    return places, (rows * 100 if dtype == "int64" else rows).astype(dtype)


class Simulated:
    """The rows of all sites and of the upper group."""

    def __init__(self, merge: float, update: str, dtype: str) -> None:
        self.merge, self.update, self.dtype = merge, update_of(update), dtype
        self.adds = update == "add"
        self.above = np.zeros((COUNT, WIDTH))
        self.states = [self.update.fresh_state(self.above[:1]) for _ in range(COUNT)]
        self.updates, self.changed = np.zeros(COUNT, int), np.zeros(COUNT, int)
        self.rows, self.lasts = np.zeros((2, SITES, COUNT, WIDTH))
        self.versions, self.read = 0, [0] * SITES
        self.sent = [0] * SITES
        """Rows, by site."""

    def push(self, site: int, *seed: int) -> None:
        places, rows = drawn(site, *seed, dtype=self.dtype)
        self.rows[site, places] += rows

    def exchange(self, site: int, *, contributes: bool) -> None:
        rows, last = self.rows[site], self.lasts[site]
        moved = np.flatnonzero((rows != last).any(axis=1)) if contributes else []
        self.versions += contributes
        for place in moved:
            self.updates[place] += 1
            self.changed[place] = self.versions
            change = (rows - last)[place : place + 1] * (1 if self.adds else -1)
            value, self.states[place] = self.update.apply(
                self.above[place : place + 1], self.states[place], change, step=int(self.updates[place])
            )
            self.above[place] = value[0]
            last[place] = rows[place]
        self.sent[site] += len(moved)
        newer = self.changed > self.read[site]
        apart = (self.above - rows) * newer[:, None] * self.merge
        self.rows[site] += apart
        self.lasts[site] += apart
        self.read[site] = self.versions

    def run(self) -> Simulated:
        for phase in range(PHASES + 1):
            for site in range(SITES):
                for step in range(phase * EVERY, (phase + 1) * EVERY) if phase < PHASES else ():
                    for rank in range(RANKS):
                        self.push(site, rank, step)
                self.exchange(site, contributes=phase < PHASES)
        return self


@over_exchanges((0.5, "adam:lr=0.3", "float64", join))
def test_rows_of_sites_meet(merge, update, dtype, kind):
    wanted = Simulated(merge, update, dtype).run()

    def body(site: int, worker: Any) -> Any:
        upper = here.exchanging(site, merge, update, dtype)
        kv = KV("t", WIDTH, dtype, consistency="bsp", upper=upper, worker=worker)
        sent = upper.stats()["payload_sent"] if worker.rank == 0 else 0
        here.turn.wait()
        for phase in range(PHASES):
            with here.turn_of(site):
                for step in range(phase * EVERY, (phase + 1) * EVERY):
                    places, rows = drawn(site, worker.rank, step, dtype=dtype)
                    kv.push(KEYS[places], rows).wait(DEADLINE)
                if worker.rank == 0:
                    wait_for(lambda wanted=phase + 1: kv.upper.exchanges == wanted)
        if worker.rank == 0:
            shards = len(kv.upper.store._table.shards.firsts)
            each = PHASES * shards * (NOTE_BYTES + (16 if merge else 0))
            row = 8 + WIDTH * np.dtype(dtype).itemsize
            assert upper.stats()["payload_sent"] - sent == wanted.sent[site] * row + each
        with here.turn_of(site):
            kv.exchange_above()
            values = kv.pull(KEYS).value
        above = kv.upper.store.pull(KEYS).value if worker.rank == 0 else None
        kv.finish()
        return values, above, kv.upper.error

    with world(kind) as here:
        found = here.everybody(body)
    check_values(found, wanted.rows, wanted.above, dtype)


def test_rows_that_are_restored_are_no_change_for_the_upper_group(tmp_path):
    ones = np.ones((COUNT, WIDTH), np.float32)

    def body(site: int, worker: Any) -> None:
        kv = KV("t", WIDTH, consistency="bsp", upper=here.upper(site, merge=0.0), worker=worker)

        def push(count: int, keys: np.ndarray) -> None:
            for _ in range(count):
                kv.push(keys, ones[: len(keys)]).wait(DEADLINE)

        push(1, KEYS[:100])
        kv.checkpoint(tmp_path / str(site))
        push(1, KEYS[50:150])
        kv.exchange_above()
        here.turn.wait()
        kv.restore(tmp_path / str(site))
        push(2, KEYS[90:110])
        kv.exchange_above()
        wanted = np.zeros(COUNT)
        wanted[:100] += RANKS
        wanted[90:110] += 2 * RANKS
        np.testing.assert_array_equal(kv.pull(KEYS).value, np.outer(wanted, np.ones(WIDTH)))
        here.turn.wait()
        if worker.rank == 0:
            wanted[50:150] += RANKS
            np.testing.assert_array_equal(kv.upper.store.pull(KEYS).value, np.outer(SITES * wanted, np.ones(WIDTH)))
        here.turn.wait()
        kv.finish()

    with world() as here:
        here.everybody(body)


def test_pieces_of_a_table_are_exchanged_one_after_the_other(monkeypatch):
    monkeypatch.setattr("byteps_like.store.kv._PIECE", 400)

    def body(site: int, worker: Any) -> Any:
        kv = KV("t", WIDTH, np.int64, upper=here.upper(site, merge=1.0, combine="sum"), worker=worker)
        kv.push(KEYS, np.full((COUNT, WIDTH), 10**site)).wait(DEADLINE)
        kv.exchange_above()
        here.turn.wait()
        kv.exchange_above()
        here.turn.wait()
        pieces = list(kv.pull_all())
        assert len(pieces) > 3
        assert np.concatenate([one.keys for one in pieces]).tolist() == KEYS.tolist()
        later = list(kv.pull_all(since=pieces[0]))
        assert sum(len(one.keys) for one in later) == 0
        here.turn.wait()
        kv.finish()
        return np.concatenate([one.value for one in pieces])

    with world() as here:
        for ranks in here.everybody(body):
            assert all((value == RANKS * 11).all() for value in ranks)


def test_tables_that_can_not_be_below():
    upper = Upper("localhost:1", sites=2, every=1, merge=0.5, secret="s")
    with pytest.raises(InvalidArgumentError, match="needs servers"):
        KV("t", upper=upper, worker=LocalWorker())
    with pytest.raises(InvalidArgumentError, match="integers"):
        KV("t", 1, np.int64, upper=upper, worker=LocalWorker())
