"""The server's store key gives, event by event, the answers and the bits of its Python twin."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like import _core
from byteps_like.errors import BytePSLikeError, CapacityError, CorruptError, InvalidArgumentError, MismatchError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.combining.decoded import Decoded
from byteps_like.store.combining.gradient_code import GradientCode
from byteps_like.store.combining.registry import combining_of
from byteps_like.store.combining.weighed import AGES, COMBINES, Weighed
from byteps_like.store.key import PushAnswer, StoreKey
from byteps_like.store.ledger import Ledger
from byteps_like.store.policies.policy import Contribution, Policy
from byteps_like.store.policies.registry import policy_of, text_of
from byteps_like.store.updates.registry import OURS, update_of
from byteps_like.store.updates.update import Values
from byteps_like.wire.note import Applied
from tests.property.store.schedules import Schedule
from tests.property.store.test_policies import BLOCKED, BY_SERVERS, RANKS

SEEDS = 120
"""Schedules of each policy."""
SHAPES = [(1,), (3,), (5, 7), (2, 1033), (0, 4)]
UPDATES = [kind.name for kind in OURS]
INTEGER_UPDATES = [kind.name for kind in OURS if kind.takes_integers]
WAYS: list[Combining] = [
    Weighed(combine, age, damp) for combine in COMBINES for age in (None, *AGES) for damp in (None, *AGES)
]
CODES: list[Combining] = [Decoded(GradientCode(RANKS, s, seed=3), combine) for s in (1, 2, 3) for combine in COMBINES]
SPECIALS = [0.0, -0.0, 1.0, 1e-45, -3e38, 3e38]
"""Denormals, zeros of both signs, and what overflows when it is added up."""
Call = Callable[[], Any]


def native_of(key: StoreKey, **how: Any) -> Any:
    """The native twin of a key to which nothing has come."""
    texts = text_of(key.policy), key.combining.text(), key.update.spec()
    return _core.StoreKey(key.value, *texts, len(list(key.sources)), **how)


def listed(answers: list[PushAnswer]) -> list[tuple[int, int, int, int, list[int]]]:
    """As the native one says it."""
    return [(one.push.source, one.push.clock, int(one.applied), one.version, list(one.contributors)) for one in answers]


def bits(values: Values) -> bytes:
    """With one NaN."""
    return np.where(np.isnan(values), values.dtype.type(0), values).tobytes() + np.isnan(values).tobytes()


def outcome(call: Call) -> Any:
    """What it returns, or what is wrong."""
    try:
        return call()
    except BytePSLikeError as error:
        return type(error), str(error)


def drawn_values(random: Random, draw: np.random.Generator, shape: tuple[int, ...], kind: Any) -> Values:
    """What a contribution may bring: now and then with what is special, or not finite."""
    if kind is np.int64:
        return draw.integers(-(2**63), 2**63 - 1, shape)
    drawn = draw.standard_normal(shape)
    special = draw.random(shape) < 0.2 * random.random()
    drawn[special] = draw.choice(SPECIALS, shape)[special]
    if drawn.size and random.random() < 0.1:
        drawn.flat[random.randrange(drawn.size)] = random.choice([math.nan, math.inf, -math.inf])
    return drawn.astype(kind)


class Twins:
    """A StoreKey and its native twin, as the ledger of a schedule: pushes get gradients here, and all is compared."""

    def __init__(self, policy: Policy, sources: range, seed: int, ways: Sequence[Combining] = (*WAYS, *CODES)) -> None:
        self._ways = ways
        self._random, self._draw = Random(seed), np.random.default_rng(seed)
        self.key = self._made(policy, sources)
        self._native = native_of(self.key)
        self._came: dict[Contribution, tuple[Contribution, Values | None]] = {}
        self._reads: list[tuple[Values, bytes]] = []
        self.told: list[PushAnswer] = []
        self.errors: list[type] = []

    def _made(self, policy: Policy, sources: range) -> StoreKey:
        kind = self._random.choice([np.float32, np.float32, np.float64, np.int64])
        names = INTEGER_UPDATES if kind is np.int64 else UPDATES
        update = update_of(self._random.choice([name for name in names if name != "none" or policy.has_rounds]))
        way = Weighed("sum") if kind is np.int64 else self._random.choice(self._ways)
        self._is_whole = kind is np.int64
        value = drawn_values(self._random, self._draw, self._random.choice(SHAPES), kind)
        return StoreKey(value, policy, sources, update, way)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.key.ledger, name)

    def push(self, push: Contribution, now: float) -> list[Any]:
        if push not in self._came:
            weight = 1.0 if isinstance(self.key.combining, Decoded) else self._weight(push)
            drawn = drawn_values(self._random, self._draw, self.key.value.shape, self.key.value.dtype.type)
            idle = self._random.random() < 0.1
            self._came[push] = replace(push, weight=weight, idle=idle), None if idle else drawn
        repeated = push.clock < self.key.ledger.clock(push.source)
        if not repeated and self._random.random() < 0.05:
            self._give(push, now, 7.0)  # of another schedule
        else:
            self._give(push, now, None if push.base % 4 == 3 else 0.5 / (1 + push.base))
        if push.clock >= self.key.ledger.clock(push.source):
            assert self.errors[-1] is MismatchError
            staged = self.key._staged.values()
            self._give(push, now, next(one.lr for one in staged if one.push.base == push.base and not one.push.idle))
        self._hear(push.source)
        return []

    def _weight(self, push: Contribution) -> float:
        own = not self._is_whole and self._random.random() < 0.5
        return self._random.uniform(0.01, 3.0) if own else push.weight

    def _give(self, push: Contribution, now: float, lr: float | None) -> None:
        one, gradient = self._came[push]
        as_tuple = one.source, one.clock, one.base, one.weight
        found = outcome(lambda: self.key.push(one, gradient, now, lr))
        self._same(found, outcome(lambda: self._native.push(as_tuple, gradient, now, lr, one.last)))

    def _hear(self, source: int) -> None:
        if self._random.random() < 0.5:
            clock = self._random.randint(0, self.key.ledger.clocks[source])
            self.key.heard(source, clock)
            self._native.heard(source, clock)

    def pass_time(self, now: float) -> list[Any]:
        self._same(outcome(lambda: self.key.pass_time(now)), outcome(lambda: self._native.pass_time(now)))
        return []

    def change(self, policy: Policy, now: float) -> list[Any]:
        self._same(
            outcome(lambda: self.key.change(policy, now)), outcome(lambda: self._native.change(text_of(policy), now))
        )
        return []

    def rest(self, source: int, now: float) -> list[Any]:
        self._same(outcome(lambda: self.key.rest(source, now)), outcome(lambda: self._native.rest(source, now)))
        return []

    def wake(self, source: int) -> None:
        self.key.wake(source)
        self._native.wake(source)

    def lose(self, source: int, now: float) -> list[Any]:
        self._same(outcome(lambda: self.key.lose(source, now)), outcome(lambda: self._native.lose(source, now)))
        return []

    def join(self, source: int) -> int:
        clock = self.key.join(source)
        assert clock == self._native.join(source)
        return clock

    def _same(self, found: Any, native: Any) -> None:
        if isinstance(found, list):
            self.told += found
            found = listed(found)
        else:
            self.errors.append(found[0])
        assert found == native
        ledger = self.key.ledger
        assert ledger.policy.ready_at(ledger) == self._native.ready_at()
        assert all(ledger.may_read(one) == self._native.may_read(one) for one in ledger.clocks)
        self._look()

    def _look(self) -> None:
        version, value = self._native.value()
        assert (version, value.shape, value.dtype) == (
            self.key.ledger.version,
            self.key.value.shape,
            self.key.value.dtype,
        )
        assert bits(value) == bits(self.key.value)
        state = np.frombuffer(self._native.state(), value.dtype)
        assert bits(state) == bits(self.key.state)
        if self._random.random() < 0.3:
            self._reads.append((value, bits(value)))
        assert all(bits(read) == as_it_was for read, as_it_was in self._reads)
        self._reads = [one for one in self._reads if self._random.random() < 0.8]


@pytest.mark.parametrize("text", BY_SERVERS)
def test_twins_agree_in_all_schedules(text: str) -> None:
    policy = policy_of(text, RANKS)
    told: set[Applied] = set()
    errors: set[type] = set()
    for seed in range(SEEDS):
        made: list[Twins] = []

        def keeper(policy: Policy, sources: range, seed: int = seed, made: list[Twins] = made) -> Ledger:
            made.append(Twins(policy, sources, seed))
            return cast(Ledger, made[0])

        try:
            assert not Schedule(policy, RANKS, seed, keeper).play().unfinished
        except AssertionError as error:
            raise AssertionError(f"{text}, seed {seed}: {error}") from error
        told |= {one.applied for one in made[0].told}
        errors |= set(made[0].errors)
    assert {Applied.COUNTED, Applied.NOT_FINITE} <= told, "the schedules have something to compare"
    assert CorruptError in errors


@pytest.mark.parametrize("text", BY_SERVERS)
def test_twins_agree_when_policies_change(text: str) -> None:
    """And nobody waits for ever: what the old policy held back the new one decides."""
    others = [policy_of(other, RANKS) for other in BY_SERVERS]
    for seed in range(SEEDS // 2):
        keys: list[Twins] = []

        def keeper(policy: Policy, sources: range, seed: int = seed, keys: list[Twins] = keys) -> Ledger:
            keys.append(Twins(policy, sources, seed))
            return cast(Ledger, keys[0])

        try:
            assert not Schedule(policy_of(text, RANKS), RANKS, seed, keeper, others).play().unfinished
        except AssertionError as error:
            raise AssertionError(f"{text}, seed {seed}: {error}") from error


@pytest.mark.parametrize("text", BLOCKED)
def test_twins_agree_where_sources_send_blocks(text: str) -> None:
    policy = policy_of(text, RANKS)
    several = 0
    for seed in range(SEEDS):
        keys: list[Twins] = []

        def keeper(policy: Policy, sources: range, seed: int = seed, keys: list[Twins] = keys) -> Ledger:
            keys.append(Twins(policy, sources, seed, WAYS))
            return cast(Ledger, keys[0])

        try:
            assert not Schedule(policy, RANKS, seed, keeper, blocks=True).play().unfinished
        except AssertionError as error:
            raise AssertionError(f"{text}, seed {seed}: {error}") from error
        several += sum(not one.push.last and one.applied is Applied.COUNTED for one in keys[0].told)
    assert several > SEEDS, "blocks are in versions"


def test_a_block_of_a_coded_gradient_is_refused_in_the_same_words() -> None:
    key = StoreKey(np.zeros(2), policy_of("k_of_n:k=2", 3), range(3), update_of("add"), Decoded(GradientCode(3, 1)))
    native, gradient = native_of(key), np.ones(2)
    found = outcome(lambda: key.push(Contribution(0, 0, 0, last=False), gradient, 0.0))
    assert found == outcome(lambda: native.push((0, 0, 0, 1.0), gradient, 0.0, None, False))
    assert found[0] is InvalidArgumentError


@given(st.floats(0, allow_infinity=False), st.floats(0, allow_infinity=False))
def test_two_rates_for_one_version_are_refused_in_the_same_words(one: float, other: float) -> None:
    key = StoreKey(np.zeros(2, np.float32), policy_of("bsp", 2), range(2), update_of("sgd"))
    native = native_of(key)
    gradient = np.ones(2, np.float32)
    key.push(Contribution(0, 0, 0), gradient, 0.0, one)
    native.push((0, 0, 0, 1.0), gradient, 0.0, one)
    for rate in (other, None):
        found = outcome(lambda rate=rate: key.push(Contribution(1, 0, 0), gradient, 0.0, rate))  # type: ignore[misc]
        refused = outcome(lambda rate=rate: native.push((1, 0, 0, 1.0), gradient, 0.0, rate))  # type: ignore[misc]
        if rate != one:
            assert found == refused and found[0] is MismatchError
            continue
        assert listed(found) == refused
        return


@pytest.mark.parametrize(
    ("kind", "push", "lr", "error"),
    [
        (np.float32, Contribution(5, 0, 0), None, CorruptError),
        (np.float32, Contribution(0, 1, 0), None, CorruptError),
        (np.float32, Contribution(0, 0, 1), None, CorruptError),
        (np.float32, Contribution(0, 0, 0, 0.0), None, InvalidArgumentError),
        (np.float32, Contribution(0, 0, 0, math.nan), None, InvalidArgumentError),
        (np.float32, Contribution(0, 0, 0, 3.5e38), None, InvalidArgumentError),
        (np.float32, Contribution(0, 0, 0, 1e-46), None, InvalidArgumentError),
        (np.float32, Contribution(0, 0, 0), -1.0, InvalidArgumentError),
        (np.float32, Contribution(0, 0, 0), math.nan, InvalidArgumentError),
        (np.float32, Contribution(0, 0, 0), math.inf, InvalidArgumentError),
        (np.int64, Contribution(0, 0, 0, 0.5), None, InvalidArgumentError),
        (np.int64, Contribution(0, 0, 0, 2.0**63), None, InvalidArgumentError),
    ],
)
def test_what_makes_no_sense_is_refused_in_the_same_words_and_has_not_come(
    kind: Any, push: Contribution, lr: float | None, error: type
) -> None:
    key = StoreKey(np.zeros(2, kind), policy_of("asp", 2), range(2), update_of("add"), Weighed("sum"))
    native, gradient = native_of(key), np.ones(2, kind)
    found = outcome(lambda: key.push(push, gradient, 0.0, lr))
    native_push = push.source, push.clock, push.base, push.weight
    assert found == outcome(lambda: native.push(native_push, gradient, 0.0, lr)) and found[0] is error
    good = Contribution(0, 0, 0)
    assert listed(key.push(good, gradient, 0.0)) == native.push((0, 0, 0, 1.0), gradient, 0.0) == [(0, 0, 0, 1, [0])]


def test_the_oldest_contributions_still_make_a_mean() -> None:
    key = StoreKey(np.zeros(1), policy_of("asp", 2), range(2), update_of("add"), Weighed("mean", "exp"))
    native, one = native_of(key), np.ones(1)
    for clock in range(5000):
        key.push(Contribution(0, clock, clock, 1.0), one, 0.0)
        native.push((0, clock, clock, 1.0), one, 0.0)
    key.push(Contribution(1, 0, 0, 2.0**-149), one, 0.0)
    native.push((1, 0, 0, 2.0**-149), one, 0.0)
    assert key.value[0] == native.value()[1][0] == 5001.0


def test_an_answer_that_was_lost_is_given_again_until_it_is_heard() -> None:
    key = StoreKey(np.zeros(1), policy_of("backup:b=1", 2), range(2), update_of("add"))
    native, one = native_of(key), np.ones(1)

    def both(source: int, clock: int, base: int, number: float = 1.0) -> Any:
        gradient = one * number
        answers = listed(key.push(Contribution(source, clock, base), gradient, 0.0))
        assert answers == native.push((source, clock, base, 1.0), gradient, 0.0)
        return answers

    said = [both(0, 0, 0), both(1, 0, 0), both(1, 1, 1, math.nan)]
    assert said == [[(0, 0, 0, 1, [0])], [(1, 0, 1, 1, [])], [(1, 1, 3, 2, [])]]
    assert [both(0, 0, 0), both(1, 0, 0), both(1, 1, 1)] == said
    for keeper in (key, native):
        keeper.heard(1, 1)
        with pytest.raises(CorruptError, match="rank 1 has pushed its contribution 0 again, but it has said"):
            keeper.push(Contribution(1, 0, 0) if keeper is key else (1, 0, 0, 1.0), one, 0.0)
    assert [both(0, 0, 0), both(1, 1, 1)] == [said[0], said[2]]
    assert key.value[0] == native.value()[1][0] == 1.0


def test_answers_to_a_source_that_has_left_are_not_kept_for_who_comes_in_its_place() -> None:
    key = StoreKey(np.zeros(1), policy_of("bsp", 2), range(2), update_of("add"))
    native, one = native_of(key), np.ones(1)
    for source, clock in ((0, 0), (1, 0), (0, 1)):
        key.push(Contribution(source, clock, 0), one, 0.0)
        native.push((source, clock, 0, 1.0), one, 0.0)
    assert key.lose(0, 0.0) == native.lose(0, 0.0) == []
    answers = listed(key.push(Contribution(1, 1, 1), one, 0.0))
    assert answers == native.push((1, 1, 1, 1.0), one, 0.0) == [(0, 1, 0, 2, [0, 1]), (1, 1, 0, 2, [0, 1])]
    assert key.join(0) == native.join(0) == 2
    for clock in (0, 1):
        found = outcome(lambda clock=clock: key.push(Contribution(0, clock, 0), one, 0.0))  # type: ignore[misc]
        assert found == outcome(lambda clock=clock: native.push((0, clock, 0, 1.0), one, 0.0))  # type: ignore[misc]
        assert found[0] is CorruptError


def test_memory_for_a_copy_is_needed_while_somebody_reads_and_without_it_nothing_has_happened() -> None:
    key = StoreKey(np.zeros(1024), policy_of("asp", 1), range(1), update_of("add"))
    native, one = native_of(key, limit=2 * 8192), np.ones(1024)
    version, read = native.value()
    with pytest.raises(CapacityError, match="a key needs more than its 16384 bytes of memory"):
        native.push((0, 0, 0, 1.0), one, 0.0)
    assert version == native.value()[0] == 0 and not read.any()
    del read
    assert native.push((0, 0, 0, 1.0), one, 0.0) == [(0, 0, 0, 1, [0])]
    assert native.held == 2 * 8192 and native.value()[1].all()


@pytest.mark.parametrize("way", [*WAYS, *CODES])
def test_a_way_of_combining_is_what_its_text_says(way: Combining) -> None:
    assert combining_of(way.text()) == way
    assert _core.StoreKey(np.zeros(1), "asp", way.text(), "add", 1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("median:age=none,damp=none", "combined by sum or mean, or coded, not by median"),
        ("mean:age=none", "damp is missing"),
        ("mean:age=old,damp=none", "age=old must be one of none, exp, inverse"),
        ("mean:age=none,damp=none,k=1", "there is no k"),
        ("coded:combine=mean,n=4,s=4,seed=0", "s=4 must be a whole number from 0 to 3"),
        ("coded:combine=median,n=4,s=1,seed=0", "combine=median must be one of"),
        ("coded:combine=sum,n=65,s=1,seed=0", "65"),
    ],
)
def test_texts_that_no_worker_would_send_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        _core.StoreKey(np.zeros(1), "asp", text, "add", 1)


@pytest.mark.parametrize(
    ("kind", "way", "update", "words"),
    [
        (np.int64, Weighed("mean"), "add", "integers can only be summed"),
        (np.int64, Weighed("sum", damp="exp"), "add", "integers can only be summed"),
        (np.int64, Weighed("sum"), "adam", "takes no values of int64"),
        (np.float32, Weighed("sum"), "none", "update none .* asp has no rounds"),
    ],
)
def test_rules_that_have_nothing_to_do_with_a_type_are_refused(
    kind: Any, way: Combining, update: str, words: str
) -> None:
    value, policy = np.zeros(1, kind), policy_of("asp", 1)
    with pytest.raises(InvalidArgumentError, match=words):
        StoreKey(value, policy, range(1), update_of(update), way)
    with pytest.raises(InvalidArgumentError, match=words):
        _core.StoreKey(value, text_of(policy), way.text(), update_of(update).spec(), 1)


@pytest.mark.parametrize("text", ["bsp", "k_of_n:k=2,late=next", "k_of_n:k=2", "ssp:s=1", "asp"])
def test_who_waits_goes_on_waiting_when_a_value_is_replaced(text: str) -> None:
    policy = policy_of(text, 3)
    key = StoreKey(np.zeros(4, np.float32), policy, range(3), update_of("add"), Weighed("sum"))
    native = native_of(key)
    draw = np.random.default_rng(1)

    def look() -> list[bool]:
        version, value = native.value()
        assert version == key.ledger.version and bits(value) == bits(key.value)
        may = [key.ledger.may_read(source) for source in range(3)]
        assert may == [native.may_read(source) for source in range(3)]
        return may

    for source in (0, 1, 2, 0, 0, 1):
        push = Contribution(source, key.ledger.clock(source), key.ledger.version)
        gradient = draw.standard_normal(4).astype(np.float32)
        answers = native.push((push.source, push.clock, push.base, 1.0), gradient, 0.0)
        assert answers == listed(key.push(push, gradient, 0.0))
        before, version = look(), key.ledger.version
        value = draw.standard_normal(4).astype(np.float32)
        key.replace(value)
        native.replace(value)
        assert key.ledger.version == version + 1 and np.array_equal(key.value, value)
        after = look()
        assert after == before


@pytest.mark.parametrize("text", ["bsp", "k_of_n:k=2,late=next", "backup:b=1", "ssp:s=1", "dssp:lo=1,hi=3", "asp"])
@pytest.mark.parametrize("seed", range(5))
def test_twins_agree_when_a_value_is_restored(text: str, seed: int) -> None:
    """To one that was saved before: what waits then is late, clocks go on, steps count from there."""
    random, draw, policy = Random(seed), np.random.default_rng(seed), policy_of(text, 3)
    key = StoreKey(np.zeros(4, np.float32), policy, range(3), update_of("adam:lr=0.1"), Weighed("sum"))
    native = native_of(key)
    saved = key.value.copy(), key.state.copy(), 0
    for time in range(60):
        source = random.randrange(3)
        push = Contribution(source, key.ledger.clock(source), key.ledger.version)
        gradient = draw.standard_normal(4).astype(np.float32)
        answers = native.push((push.source, push.clock, push.base, 1.0), gradient, float(time))
        assert answers == listed(key.push(push, gradient, float(time)))
        if random.random() < 0.1:
            saved = key.value.copy(), key.state.copy(), key.ledger.version
        if random.random() < 0.15:
            clocks = [key.ledger.clock(one) for one in range(3)]
            late = key.restore(*(one.copy() for one in saved[:2]), saved[2], float(time))
            assert native.restore(*saved, float(time)) == listed(late)
            assert {one.applied for one in late} <= {Applied.LATE}
            assert (key.ledger.version, clocks) == (saved[2], [key.ledger.clock(one) for one in range(3)])
        version, value = native.value()
        assert version == key.ledger.version and bits(value) == bits(key.value)
        assert native.state() == key.state.tobytes()
        for one in range(3):
            assert native.may_read(one) == key.ledger.may_read(one)
