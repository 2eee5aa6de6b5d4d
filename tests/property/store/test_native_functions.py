"""Functions of users on native keys, which must leave the bits of their Python twins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like import _core
from byteps_like.store import Pushed, function
from byteps_like.store.combining.weighed import Weighed
from byteps_like.store.key import ContentKey, StoreKey
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.policies.registry import policy_of
from byteps_like.store.rows import RowGradients, TableRows
from byteps_like.store.updates.registry import update_of
from byteps_like.store.updates.update import Values
from byteps_like.wire.note import Applied
from tests.property.store.test_native_key import bits, listed, native_of


@function("test.twins", state=1)
def running_mean(value: Values, state: Values, push: Pushed) -> None:
    state[0] += push.gradient / value.dtype.type(2 + push.age)
    value -= value.dtype.type(push.lr or 0.5) * state[0] * value.dtype.type(push.weight)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_functions_give_the_same_bits_and_leave_out_the_same(dtype: Any) -> None:
    first = np.linspace(-1, 1, 33).astype(dtype)
    key = StoreKey(first, policy_of("asp", 2), range(2), update_of("function:test.twins"), Weighed("sum"))
    native = native_of(key)
    draw = np.random.default_rng(2)
    told = []
    for turn, source in enumerate((0, 1, 1, 0, 1)):
        size = np.finfo(dtype).max if turn == 2 else 1.0  # adds up to infinities
        gradient = (draw.standard_normal(33) / 4 * size).astype(dtype)
        push = Contribution(source, key.ledger.clock(source), 0, 4.0 if turn == 2 else 1.5)
        lr = None if turn % 2 else 3.0
        answers = listed(key.push(push, gradient, 0.0, lr))
        assert answers == native.push((source, push.clock, push.base, push.weight), gradient, 0.0, lr)
        told += [applied for _, _, applied, *_ in answers]
        assert bits(native.value()[1]) == bits(key.value) and native.state() == key.state.tobytes()
    assert told == [Applied.COUNTED, Applied.COUNTED, Applied.NOT_FINITE, Applied.COUNTED, Applied.COUNTED]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_function_updates_each_row_and_leaves_those_that_it_would_spoil(dtype: Any) -> None:
    update, sum_of = update_of("function:test.twins"), Weighed("sum")
    table = TableRows(2, dtype, update)
    key = ContentKey(table, policy_of("asp", 2), range(2), update, sum_of)
    native = _core.TableKey(np.zeros(1, dtype), 2, "asp", sum_of.text(), update.spec(), 2)
    ids = np.array([3, 9], np.uint64)
    for clock, size in enumerate((1.0, np.finfo(dtype).max, 1.0)):
        rows = np.array([[1.5, 2.5], [size, size]], dtype)  # the second becomes infinite in between
        push = Contribution(0, clock, clock, 1.0)
        answers = listed(key.push(push, RowGradients(ids, rows), 0.0, 8.0))
        assert answers == native.push((0, clock, clock, 1.0), ids, rows, 0.0, 8.0)
        assert native.all(ids) == table.read(ids).tobytes()
    assert np.isfinite(table.read(ids)).all()
