"""The server's rows of tables give, event by event, the answers and the bits of their Python twin."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like import _core
from byteps_like.errors import CapacityError, InvalidArgumentError, MismatchError
from byteps_like.store.combining.decoded import Decoded
from byteps_like.store.combining.weighed import Weighed
from byteps_like.store.functions.registry import Pushed, function
from byteps_like.store.key import ContentKey, PushAnswer
from byteps_like.store.policies.policy import Contribution, Policy
from byteps_like.store.policies.registry import policy_of, text_of
from byteps_like.store.rows import Ids, RowGradients, TableRows
from byteps_like.store.tables.first_values import Normal, Uniform, Zeros
from byteps_like.store.updates.function import FunctionUpdate
from byteps_like.store.updates.registry import OURS, update_of
from byteps_like.store.updates.update import Values
from byteps_like.wire.frame import UNKNOWN
from tests.property.store.schedules import Schedule
from tests.property.store.test_native_key import CODES, WAYS, bits, drawn_values, listed, outcome
from tests.property.store.test_policies import BY_SERVERS, RANKS

SEEDS = 40
"""Schedules of each policy."""
WIDTHS = [1, 2, 5, 64]
UPDATES = [kind.name for kind in OURS if kind.name != "none"]
INTEGER_UPDATES = [kind.name for kind in OURS if kind.takes_integers and kind.name != "none"]
UNIVERSE = np.array([0, 1, 2, 3, 9, 64, 65, 1 << 20, (1 << 52) - 1, 1 << 52, 1 << 63, (1 << 64) - 1], np.uint64)
ZEROS = Zeros()
FIRST = [ZEROS, ZEROS, Uniform(0.5, seed=3), Normal(2.0)]
NOBODY = 77
"""An id that nobody pushes."""


def parts(answer: bytes, table: TableRows, ids: Ids) -> tuple[Any, Any, Values]:
    """What is in the answer to a read of known versions."""
    padded = (len(ids) + 63) // 64 * 8
    chosen = np.unpackbits(np.frombuffer(answer[:padded], np.uint8), bitorder="little")[: len(ids)].astype(bool)
    count = int(chosen.sum())
    versions = np.frombuffer(answer[padded : padded + 4 * count], np.uint32)
    rows = np.frombuffer(answer[padded + (4 * count + 7) // 8 * 8 :], table.dtype).reshape(count, table.width)
    return chosen, versions, rows


@function("test.native_rows.toward")
def toward(value: Values, state: Values, push: Pushed) -> None:
    assert state.size == 0
    with np.errstate(over="ignore", invalid="ignore"):
        value += (push.gradient - value) // 2 if value.dtype == np.int64 else (push.gradient - value) / 2


class Twins:
    """A key of rows and its native twin, as the ledger of a schedule: pushes get rows here, and all is compared."""

    def __init__(self, policy: Policy, sources: range, seed: int) -> None:
        self._random, self._draw = Random(seed), np.random.default_rng(seed)
        kind = self._random.choice([np.float32, np.float32, np.float64, np.int64])
        update = update_of(self._random.choice(INTEGER_UPDATES if kind is np.int64 else UPDATES))
        way = Weighed("sum") if kind is np.int64 else self._random.choice([*WAYS, *CODES])
        first = ZEROS if kind is np.int64 else self._random.choice(FIRST)
        self.table = TableRows(self._random.choice(WIDTHS), kind, update, first)
        functions = [FunctionUpdate("test.native_rows.toward")] * (seed % 2)
        self._functions = len(functions)
        self.key = ContentKey(self.table, policy, sources, update, way, functions)
        texts, names = (text_of(policy), way.text(), update.spec()), " ".join(one.of for one in functions)
        self._native = _core.TableKey(
            np.zeros(1, kind), self.table.width, *texts, len(sources), functions=names, first_values=first.text()
        )
        self._came: dict[Contribution, tuple[Contribution, RowGradients]] = {}
        self.told: list[PushAnswer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.key.ledger, name)

    def _ids(self) -> Ids:
        return UNIVERSE[self._draw.random(len(UNIVERSE)) < self._random.choice([0.0, 0.1, 0.5, 1.0])]

    def _drawn(self, push: Contribution) -> tuple[Contribution, RowGradients]:
        ids = self._ids()
        rows = drawn_values(self._random, self._draw, (len(ids), self.table.width), self.table.dtype.type)
        whole = isinstance(self.key.combining, Decoded)
        return replace(push, weight=1.0 if whole else push.weight, function=self._function(push)), RowGradients(
            ids, rows
        )

    def _function(self, push: Contribution) -> int:
        """Mostly the same of all that are computed on one version."""
        number = self._random.randrange(2) if self._random.random() < 0.02 else push.base % 3 // 2
        return number * self._functions

    def push(self, push: Contribution, now: float) -> list[Any]:
        if push not in self._came:
            self._came[push] = self._drawn(push)
        one, brought = self._came[push]
        as_tuple, lr = (
            (one.source, one.clock, one.base, one.weight),
            None if push.base % 4 == 3 else 0.5 / (1 + push.base),
        )
        found = outcome(lambda: self.key.push(one, brought, now, lr))
        self._same(
            found, outcome(lambda: self._native.push(as_tuple, brought.ids, brought.rows, now, lr, one.function))
        )
        return []

    def pass_time(self, now: float) -> list[Any]:
        self._same(self.key.pass_time(now), self._native.pass_time(now))
        return []

    def change(self, policy: Policy, now: float) -> list[Any]:
        self._same(self.key.change(policy, now), self._native.change(text_of(policy), now))
        return []

    def rest(self, source: int, now: float) -> list[Any]:
        self._same(self.key.rest(source, now), self._native.rest(source, now))
        return []

    def wake(self, source: int) -> None:
        self.key.wake(source)
        self._native.wake(source)

    def lose(self, source: int, now: float) -> list[Any]:
        self._same(self.key.lose(source, now), self._native.lose(source, now))
        return []

    def join(self, source: int) -> int:
        clock = self.key.join(source)
        assert clock == self._native.join(source)
        return clock

    def _same(self, found: Any, native: Any) -> None:
        if isinstance(found, list):
            self.told += found
            found = listed(found)
        assert found == native
        ledger = self.key.ledger
        assert ledger.policy.ready_at(ledger) == self._native.ready_at()
        assert self._native.version == ledger.version
        self._look()

    def _look(self) -> None:
        table, ids = self.table, np.append(UNIVERSE[:4], np.uint64(NOBODY))
        self._same_values(self._native.all(ids, 1 << 20), table.read(ids))
        known = self._draw.integers(0, self.key.ledger.version + 1, len(UNIVERSE)).astype(np.uint32)
        known[self._draw.random(len(known)) < 0.2] = UNKNOWN
        bound = self._random.randrange(4)
        stale = table.read_stale(UNIVERSE, known, bound)
        chosen, versions, rows = parts(self._native.stale(UNIVERSE, known, bound), table, UNIVERSE)
        assert (chosen == stale.chosen).all() and (versions == stale.versions).all()
        assert bits(rows) == bits(stale.rows)
        low, high = sorted(int(one) for one in self._draw.choice(UNIVERSE, 2))
        since, most = self._random.randrange(self.key.ledger.version + 2), self._random.randrange(4)
        found, values = table.read_range(low, high, since=since, most=most)
        answer = self._native.range(low, high, since=since, count=most)
        assert answer[: 8 * len(found)] == found.tobytes()
        self._same_values(answer[8 * len(found) :], values)
        self._look_at_states()

    def _look_at_states(self) -> None:
        for number in UNIVERSE:
            row, native = self.table.rows.get(int(number)), self._native.row(int(number))
            assert (row is None) == (native is None)
            if row is not None:
                assert (row.version, row.updates) == native[:2]
                assert bits(np.frombuffer(native[2], self.table.dtype)) == bits(row.state)

    def _same_values(self, answer: bytes, values: Values) -> None:
        assert bits(np.frombuffer(answer, self.table.dtype)) == bits(values)


@pytest.mark.parametrize("text", BY_SERVERS)
def test_answers_and_bits_are_those_of_the_reference(text: str) -> None:
    others = [policy_of(one, RANKS) for one in BY_SERVERS]
    told: list[PushAnswer] = []
    for seed in range(SEEDS):
        made: list[Twins] = []

        def keeper(policy: Policy, sources: range, seed: int = seed, made: list[Twins] = made) -> Any:
            made.append(Twins(policy, sources, seed))
            return made[0]

        Schedule(policy_of(text, RANKS), RANKS, seed, keeper, others if seed % 3 == 0 else ()).play()
        told += made[0].told
    assert {0, 3} <= {int(one.applied) for one in told}


@st.composite
def batches(draw: Any) -> list[tuple[Ids, int]]:
    """Ids that are pushed, one after the other, and by how many sources at once."""
    ids = st.lists(st.integers(0, 3000), max_size=700, unique=True)
    return [(np.array(sorted(draw(ids)), np.uint64), draw(st.integers(1, 2))) for _ in range(draw(st.integers(1, 4)))]


@given(batches(), st.integers(1, 3))
def test_tables_grow_and_keep_every_row(pushed: list[tuple[Ids, int]], width: int) -> None:
    native = _core.TableKey(np.zeros(1), width, "asp", Weighed("sum").text(), "add", 1)
    expected: dict[int, float] = {}
    for clock, (ids, factor) in enumerate(pushed):
        rows = np.outer(np.arange(len(ids)) + 1.0, np.full(width, float(factor)))
        assert native.push((0, clock, clock, 1.0), ids, rows, 0.0) == [(0, clock, 0, clock + 1, [0])]
        for place, number in enumerate(ids):
            expected[int(number)] = expected.get(int(number), 0.0) + (place + 1.0) * factor
    everything = np.arange(3001, dtype=np.uint64)
    values = np.frombuffer(native.all(everything)).reshape(-1, width)
    assert (values == np.array([expected.get(i, 0.0) for i in range(3001)])[:, None]).all()
    found = np.frombuffer(native.range(0, 3001)[: 8 * len(expected)], np.uint64)
    assert found.tolist() == sorted(expected)


def test_contributions_of_a_version_are_merged_by_id() -> None:
    native = _core.TableKey(np.zeros(1, np.float32), 2, "bsp", Weighed("sum").text(), "add", 2)
    first, second = np.array([1, 5], np.uint64), np.array([5, 9], np.uint64)
    ones = np.ones((2, 2), np.float32)
    assert native.push((0, 0, 0, 1.0), first, ones, 0.0) == []
    assert native.push((1, 0, 0, 3.0), second, ones, 0.0) == [(0, 0, 0, 1, [0, 1]), (1, 0, 0, 1, [0, 1])]
    values = np.frombuffer(native.all(np.array([1, 5, 9], np.uint64)), np.float32).reshape(3, 2)
    assert values[:, 0].tolist() == values[:, 1].tolist() == [1.0, 4.0, 3.0]


def test_a_contribution_that_is_not_finite_makes_no_rows() -> None:
    native = _core.TableKey(np.zeros(1, np.float32), 1, "asp", Weighed("sum").text(), "add", 1)
    ids = np.array([4], np.uint64)
    assert native.push((0, 0, 0, 1.0), ids, np.full((1, 1), np.nan, np.float32), 0.0) == [(0, 0, 3, 1, [])]
    assert native.row(4) is None and native.range(0, 10) == b""
    assert native.push((0, 1, 1, 1.0), ids, np.ones((1, 1), np.float32), 0.0) == [(0, 1, 0, 2, [0])]
    assert native.row(4)[:2] == (2, 1)


def test_memory_for_rows_is_limited_and_without_it_nothing_has_happened() -> None:
    native = _core.TableKey(np.zeros(1), 1024, "asp", Weighed("sum").text(), "add", 1, limit=1 << 20)
    few, many = np.arange(8, dtype=np.uint64), np.arange(100, dtype=np.uint64)
    assert native.push((0, 0, 0, 1.0), few, np.ones((8, 1024)), 0.0) == [(0, 0, 0, 1, [0])]
    with pytest.raises(CapacityError, match="a key needs more than its 1048576 bytes of memory"):
        native.push((0, 1, 1, 1.0), many, np.ones((100, 1024)), 0.0)
    assert native.version == 1 and len(native.range(0, 100)) == 8 * (8 + 8192)
    assert native.push((0, 1, 1, 1.0), few, np.ones((8, 1024)), 0.0) == [(0, 1, 0, 2, [0])]
    with pytest.raises(InvalidArgumentError, match="a read of rows is answered with 65536 bytes or more, and 65535 is"):
        native.all(few, 65535)
    with pytest.raises(InvalidArgumentError, match="read fewer rows at a time"):
        native.range(0, 100, 8 * (8 + 8192) - 1)


def test_update_none_is_refused_in_the_same_words() -> None:
    words = "update none gives what a round has combined, which rows don't have"
    with pytest.raises(InvalidArgumentError, match=words):
        TableRows(1, np.float32, update_of("none"))
    with pytest.raises(InvalidArgumentError, match=words):
        _core.TableKey(np.zeros(1, np.float32), 1, "bsp", Weighed("sum").text(), "none", 1)


def test_rows_that_do_not_fit_are_refused() -> None:
    table = TableRows(2, np.float32, update_of("add"))
    for ids, rows in (
        (np.array([1, 1], np.uint64), np.ones((2, 2), np.float32)),
        (np.array([1], np.uint64), np.ones((2, 2), np.float32)),
        (np.array([1], np.uint64), np.ones((1, 2))),
    ):
        with pytest.raises(MismatchError, match="rank 3 has pushed"):
            table.check(3, RowGradients(ids, rows))
