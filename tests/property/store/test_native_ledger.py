"""The server's ledger and policies do, push by push, what their Python twins do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from byteps_like import _core
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.gradient_estimate import GradientEstimate
from byteps_like.store.ledger import Event, Ledger, Version
from byteps_like.store.policies.policy import Contribution, Policy
from byteps_like.store.policies.registry import policy_of, text_of
from tests.property.store.schedules import Schedule
from tests.property.store.test_policies import BLOCKED, BY_SERVERS, RANKS, SCHEDULES


class Twins(Ledger):
    """Does everything twice, and compares."""

    def __init__(self, policy: Policy, sources: range) -> None:
        super().__init__(policy, sources)
        self._is_alone = False
        self._native = _core.Ledger(text_of(policy), len(sources))

    def push(self, push: Contribution, now: float) -> list[Event]:
        with self._alone():
            events = super().push(push, now)
        return self._same(events, self._native.push(push.source, push.clock, push.base, now, push.last))

    def pass_time(self, now: float) -> list[Event]:
        events = super().pass_time(now)
        return events if self._is_alone else self._same(events, self._native.pass_time(now))

    def lose(self, source: int, now: float) -> list[Event]:
        with self._alone():
            events = super().lose(source, now)
        return self._same(events, self._native.lose(source, now))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Within the block, the native one is not told of what this one does to itself."""
        self._is_alone = True
        yield
        self._is_alone = False

    def join(self, source: int) -> int:
        clock = super().join(source)
        assert clock == self._native.join(source)
        return clock

    def may_read(self, reader: int) -> bool:
        found = super().may_read(reader)
        assert found == self._native.may_read(reader)
        return found

    def _same(self, events: list[Event], native: list[tuple[int, int, int]]) -> list[Event]:
        assert listed(events) == native
        if self.policy.observes and any(isinstance(event, Version) for event in events):
            self._observe_something()
        assert self.policy.ready_at(self) == self._native.ready_at()
        assert sorted(self.cut_off()) == self._native.cut_off()
        return events

    def _observe_something(self) -> None:
        """Gradients in which anything from one contribution to all is best."""
        draw = Random(self.version)
        seen = GradientEstimate(draw.uniform(-0.5, 2), draw.uniform(0, 4))
        super().observe(seen)
        self._native.observe(seen.square, seen.noise)


def listed(events: list[Event]) -> list[tuple[int, int, int]]:
    """As the native one says it."""
    found = []
    for event in events:
        number, pushes = (event.number, event.pushes) if isinstance(event, Version) else (0, (event.push,))
        found += [(push.source, push.clock, number) for push in pushes]
    return found


@pytest.mark.parametrize("text", BY_SERVERS)
def test_twins_agree_in_all_schedules(text: str) -> None:
    policy = policy_of(text, RANKS)
    for seed in range(SCHEDULES // len(BY_SERVERS) + 1):
        Schedule(policy, RANKS, seed, Twins).play()


@pytest.mark.parametrize("text", BLOCKED)
def test_twins_agree_where_sources_send_blocks(text: str) -> None:
    policy = policy_of(text, RANKS)
    for seed in range(SCHEDULES // len(BLOCKED) + 1):
        Schedule(policy, RANKS, seed, Twins, blocks=True).play()


def test_a_missing_push_is_refused_in_the_same_words() -> None:
    key, native = Ledger(policy_of("asp", 2), range(2)), _core.Ledger("asp", 2)
    with pytest.raises(CorruptError) as expected:
        key.push(Contribution(1, 3, 0), 0.0)
    with pytest.raises(CorruptError) as found:
        native.push(1, 3, 0, 0.0)
    assert str(expected.value) == str(found.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("bps", "policy bps is not known"),
        ("ssp", "policy ssp: s is missing"),
        ("ssp:s=-1", "policy ssp:s=-1: s=-1 must be a whole number from 0"),
        ("dssp:hi=1,lo=2", "lo=2 must be a whole number from 0 to 1"),
        ("k_of_n:grace=auto,k=0,late=drop,max_age=inf", "k=0 must be a whole number from 1"),
        ("bsp:s=1", "there is no s"),
    ],
)
def test_texts_that_no_worker_would_send_are_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgumentError, match=words):
        _core.Ledger(text, 2)
