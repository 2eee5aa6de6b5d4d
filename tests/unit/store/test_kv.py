"""KV over shards in NumPy: keys to their shards and back, futures, what begins after what, and what is refused."""

from __future__ import annotations

import math
import threading
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from fake_table_worker import FakeHandle, FakeTable, FakeTableWorker
from hypothesis import given, settings
from hypothesis import strategies as st

from byteps_like.errors import DeadlineError, InvalidArgumentError, ShutdownError
from byteps_like.store.future import Future, PartsFlight
from byteps_like.store.kv import KV
from byteps_like.store.memory.holding import held
from byteps_like.worker.local import LocalWorker

DEADLINE = 20.0


def made(width: int = 1, dtype: Any = np.int64, shards: int = 3, **given: Any) -> tuple[KV, FakeTable]:
    worker = FakeTableWorker(shards)
    kv = KV("t", width, dtype, worker=worker, **given)
    assert worker.table is not None
    return kv, worker.table


KEYS = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 40).map(lambda n: n << 52), unique=True, max_size=30)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=6), st.integers(1, 3), st.integers(1, 5))
def test_rows_are_those_of_a_dict(steps, width, shards):
    kv, _ = made(width, shards=shards)
    rows: dict[int, np.ndarray] = {}
    for number, (keys, flat) in enumerate(steps):
        keys.sort()
        values = np.arange(len(keys) * width).reshape(-1, width) + 100 * number
        future = kv.push(np.array(keys, np.uint64), values.ravel() if flat and width == 1 else values)
        future.wait()
        for key, row in zip(keys, values, strict=True):
            rows[key] = rows.get(key, 0) + row
        asked = sorted({*keys, *list(rows)[:3], 7})
        found = kv.pull(asked).value
        assert found.shape == (len(asked), width)
        assert all((row == rows.get(key, 0)).all() for key, row in zip(asked, found, strict=True))
    low, high = sorted([*rows, 0, 2**64 - 1])[:2]
    every = kv.pull_range(low, high)
    assert every.keys.tolist() == sorted(key for key in rows if low <= key < high)
    assert all((row == rows[int(key)]).all() for key, row in zip(every.keys, every.value, strict=True))


@settings(max_examples=100, deadline=None)
@given(KEYS, KEYS, st.integers(1, 5), st.integers(1, 60))
def test_a_walk_brings_what_has_changed_since_another(first, second, shards, piece):
    kv, _ = made(shards=shards)
    first, second = (sorted(keys[:-1]) for keys in ([*first, 0], [*second, 0]))
    end = (1 << 64) - 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("byteps_like.store.kv._PIECE", piece)
        kv.push(np.array(first, np.uint64), np.ones((len(first), 1), np.int64)).wait()
        whole = list(kv.pull_all())
        kv.push(np.array(second, np.uint64), np.ones((len(second), 1), np.int64)).wait()
        later = list(kv.pull_all(since=whole[0]))
    for pieces, keys in ((whole, first), (later, second)):
        assert [int(key) for one in pieces for key in one.keys] == [key for key in keys if key != end]
        assert pieces[-1].end == end and all(one.end > before.end for before, one in pairwise(pieces))
    assert [one.value.tolist() for one in later] == [kv.pull(one.keys).value.tolist() for one in later]
    assert kv.pull_range(0, end, since=whole[0]).keys.tolist() == [key for key in second if key != end]


def test_every_push_is_one_at_every_shard_and_a_pull_asks_those_that_have_rows():
    kv, table = made()
    kv.push([1], [[1]])
    kv.push([], np.zeros((0, 1), np.int64)).wait()
    assert table.versions == [2, 2, 2] and [shards for shards, _ in table.notes] == [[0], [1, 2], [0, 1, 2]]
    kv.pull([1, 5 << 52]).wait()
    assert table.reads == [[0, 2]]
    assert kv.pull([]).value.shape == (0, 1) and kv.pull([]).done()


def test_keys_that_come_again_are_not_split_again():
    kv, table = made()
    keys = np.array([3, 1 << 52, 1 << 63], np.uint64)
    for step in range(3):
        kv.push(keys, np.full((3, 1), step))
        assert (kv.pull(keys.astype(np.int64)[:2]).value == [[step * (step + 1) // 2]] * 2).all()
    assert len(table.lists) == 2 * len(table.versions)
    keys[0] = 4  # the caller's own
    kv.push(keys, np.ones((3, 1), np.int64))
    assert table.rows[4] == 1 and table.rows[3] == 3


def test_values_land_where_they_are_wanted():
    kv, _ = made(2, np.float32)
    keys = np.array([1, 2, 1 << 52], np.uint64)
    kv.push(keys, np.arange(6, dtype=np.float32).reshape(3, 2))
    out, wide, turned = np.empty((3, 2), np.float32), np.empty((3, 2), np.float64), np.empty((2, 3), np.float32).T
    for where in (out, wide, turned):
        future = kv.pull(keys, where)
        future.wait()
        assert future.value is where and (where == np.arange(6).reshape(3, 2)).all()
    flat, narrow = made(1, np.float32)[0], np.full(3, 9, np.float32)
    flat.pull(keys, narrow).wait()
    assert (narrow == 0).all()


def test_tensors_come_and_go():
    torch = pytest.importorskip("torch")
    kv, _ = made(2, torch.float64)
    keys = torch.tensor([1, 9, 2**53])
    kv.push(keys, torch.ones(3, 2, dtype=torch.float64)).wait()
    value = kv.pull(keys).value
    assert isinstance(value, torch.Tensor) and value.dtype is torch.float64 and (value == 1).all()
    out = torch.zeros(3, 2, dtype=torch.float32)
    kv.pull(keys, out).wait()
    assert (out == 1).all()


def test_contributions_are_computed_on_what_was_pulled_of_each_shard():
    kv, table = made()
    for _ in range(2):
        kv.push([1], [[1]]).wait()
    kv.pull([1]).wait()
    future = kv.push([1], [[1]], lr=0.5, weight=2.0)
    assert [(shards, note.base) for shards, note in table.notes[4:]] == [([0], 2), ([1, 2], 2)]
    assert {(note.lr, note.weight) for _, note in table.notes[4:]} == {(0.5, 2.0)}
    assert (future.age, future.version, future.weight, future.value, future.keys) == (0, 3, 2.0, None, None)
    assert kv.push([1 << 52], [[1]]).age == 3, "what has not been pulled yet is version 0"
    kv.pull([1]).wait()
    assert kv.push([1], [[1]], base=3).age == 1
    with pytest.raises(InvalidArgumentError, match="base=9 of 'kv/t': this rank knows of versions 0 to 5"):
        kv.push([1], [[1]], base=9)


class Waiting(Future):
    """Done when it is let."""

    def __init__(self, fails: bool = False) -> None:
        self.event, self.fails = threading.Event(), fails
        super().__init__([PartsFlight(FakeHandle([]), range(0))], lambda _: None)

    def done(self) -> bool:
        return self.event.is_set()

    def wait(self, timeout: float | None = None) -> None:
        assert self.event.wait(DEADLINE)
        if self.fails:
            raise ShutdownError("gone")


def test_what_is_after_others_begins_when_they_are_done_and_what_is_called_later_later():
    kv, table = made()
    first, second = Waiting(), Waiting()
    values = np.ones((1, 1), np.int64)
    future = kv.push([1], values, after=[first, second])
    pulled = kv.pull([1])
    ranged = kv.pull_range(0, 9)
    assert not future.done() and not pulled.done() and not table.notes and not table.reads
    with pytest.raises(DeadlineError, match=r"not begun after 0\.01 s"):
        future.wait(0.01)
    first.event.set()
    assert not future.done()
    second.event.set()
    assert future.version == 1 and future.counted and future.age == 0 and future.time >= 0
    assert (pulled.value == 1).all() and pulled.version == 1
    assert ranged.keys.tolist() == [1] and (ranged.value == 1).all()
    assert kv.pull([1], after=[pulled]).version == 1
    assert kv._calls._waiting.maxlen is None


def test_what_is_after_one_that_fails_fails_alone():
    kv, table = made()
    gone = Waiting(fails=True)
    gone.event.set()
    failed, later = kv.push([1], [[1]], after=[gone]), kv.push([1], [[1]])
    later.wait(DEADLINE)
    assert failed.done()
    for _ in range(2):
        with pytest.raises(ShutdownError, match="gone"):
            failed.wait()
    assert table.rows[1] == 1


def test_memory_is_held_as_long_as_it_is_used():
    kv, table = made()
    table.lets = False
    before = len(held)
    futures = [kv.push([1, 1 << 52], np.ones((2, 1), np.int64)), kv.pull([1, 1 << 52])]
    assert len(held) > before
    for handle in table.handles:
        handle.let = True
    for future in futures:
        future.wait()
    assert len(held) <= before


def test_numbers_are_spread_over_all_keys():
    keys = KV.spread(np.arange(8192), 8192)
    assert keys.dtype == np.uint64 and (keys >> np.uint64(52) == np.repeat(np.arange(4096), 2)).all()
    assert KV.spread([0, 2], 3).tolist() == [0, 2 * (2**64 // 3)]
    with pytest.raises(InvalidArgumentError, match="count=0"):
        KV.spread([], 0)


@pytest.mark.parametrize(
    ("keys", "match"),
    [
        (np.array([1, 9, 5, 3], np.uint64), r"keys\[2\]=5 after keys\[1\]=9: keys must ascend"),
        ([4, 4], r"keys\[1\]=4 after keys\[0\]=4"),
        (np.array([-3, 1]), r"keys\[0\]=-3"),
        ([-3, 1], "from 0 to 2"),
        ([2**64], "from 0 to 2"),
        ([0.5], "integers"),
        (np.array([0.5]), "of uint64 or int64, not float64"),
        (np.zeros((1, 1), np.int64), "of shape"),
        ("abc", "integers"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys, match):
    kv, table = made()
    for _ in range(2):
        with pytest.raises(InvalidArgumentError, match=match):
            kv.push(keys, np.zeros((len(keys), 1), np.int64))
        with pytest.raises(InvalidArgumentError, match=match):
            kv.pull(keys)
    assert not table.notes and not table.reads


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"width": 0}, "width=0"),
        ({"width": 1 << 30}, "width="),
        ({"dtype": np.int32}, "no values of int32"),
        ({"dtype": "float16"}, "no values of float16"),
        ({"dtype": object}, "no values of object"),
        ({"delay": 1, "consistency": "asp"}, "delay=1 means a consistency"),
        ({"delay": 0.5}, "delay=0.5"),
        ({"delay": -1}, "s=-1"),
        ({"update": "none", "consistency": "bsp"}, "update none"),
        ({"update": "adam", "dtype": np.int64}, "takes no values of int64"),
        ({"combine": "mean", "dtype": np.int64}, "integers can only be summed"),
        ({"combine": "max"}, "max"),
    ],
)
def test_terms_that_cannot_be_are_refused(arguments, match):
    with pytest.raises(InvalidArgumentError, match=match):
        made(**arguments)


def test_calls_that_cannot_be_are_refused():
    kv, _ = made(2)
    for call, match in (
        (lambda: kv.push([1], (1, 2)), "shape"),
        (lambda: kv.push([1], None), "shape"),
        (lambda: kv.push([1], np.zeros(2, np.int64)), r"\[2\] is not the shape of rows for 1 keys, which is \[1, 2\]"),
        (lambda: kv.push([1], np.zeros((1, 2), np.int64), weight=0.5), "whole numbers"),
        (lambda: kv.push([1], np.zeros((1, 2), np.int64), lr=-1.0), "lr"),
        (lambda: kv.pull([1], np.zeros((2, 2))), "shape"),
        (lambda: kv.pull_range(5, 4), "low=5, high=4"),
        (lambda: kv.pull_range(0, 1 << 64), "ends by"),
    ):
        with pytest.raises(InvalidArgumentError, match=match):
            call()


def test_a_delay_is_a_bound_of_ssp():
    assert [made(delay=one)[0].consistency for one in (0, 8, math.inf, None)] == ["ssp:s=0", "ssp:s=8", "asp", "asp"]
    kv, table = made(consistency="bsp")
    kv.change("ssp:s=2")
    assert kv.consistency == "ssp:s=2" and table.spec.text.splitlines()[0] == "policy ssp:s=2"
    assert table.spec.text.splitlines()[3] == "rows zeros"


def test_a_job_without_servers_has_no_tables():
    with pytest.raises(InvalidArgumentError, match="KV 'alone' needs servers"):
        KV("alone", worker=LocalWorker())
