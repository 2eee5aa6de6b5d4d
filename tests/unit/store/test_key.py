"""What becomes of a key's value: by every policy, what was pushed and nothing else."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest

from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError
from byteps_like.store.combining.weighed import Weighed
from byteps_like.store.key import PushAnswer, StoreKey
from byteps_like.store.policies.policy import Contribution
from byteps_like.store.policies.registry import policy_of
from byteps_like.store.updates.registry import update_of
from byteps_like.wire.note import Applied


def key_of(policy: str, update: str = "add", ranks: int = 2, kind: Any = np.float32, **how: Any) -> StoreKey:
    combining = Weighed(**{"combine": "sum", **how})
    return StoreKey(np.zeros(3, kind), policy_of(policy, ranks), range(ranks), update_of(update), combining)


def push(
    key: StoreKey, source: int, number: float, base: int | None = None, weight: float = 1.0, lr: float | None = None
) -> list[PushAnswer]:
    """Three times `number`, as the source's next."""
    contribution = Contribution(source, key.ledger.clock(source), key.ledger.version if base is None else base, weight)
    return key.push(contribution, np.full_like(key.value, number), 0.0, lr)


def told(answers: list[PushAnswer]) -> list[tuple[int, Applied, int]]:
    return [(one.push.source, one.applied, one.version) for one in answers]


def test_rounds_of_all_are_means_that_an_optimizer_steps_by() -> None:
    key = key_of("bsp", "sgd:lr=0.5", combine="mean")
    assert push(key, 0, 1.0) == [] and key.read(0) is None
    assert told(push(key, 1, 3.0)) == [(0, Applied.COUNTED, 1), (1, Applied.COUNTED, 1)]
    assert np.array_equal(key.read(0), np.full(3, -1.0))  # type: ignore[arg-type]


def test_a_second_push_of_one_source_is_held_for_the_next_round() -> None:
    key = key_of("bsp")
    push(key, 0, 1.0)
    assert told(push(key, 0, 10.0)) == [(0, Applied.HELD, 0)]
    push(key, 1, 2.0)
    assert key.value[0] == 3.0
    assert told(push(key, 1, 20.0)) == [(0, Applied.COUNTED, 2), (1, Applied.COUNTED, 2)]
    assert key.value[0] == 33.0


def test_late_contributions_leave_no_trace() -> None:
    key = key_of("backup:b=1")
    push(key, 0, 1.0)
    assert told(push(key, 1, 100.0, base=0)) == [(1, Applied.LATE, 1)]
    push(key, 1, 2.0)
    assert key.value[0] == 3.0


def test_what_is_not_finite_counts_for_the_round_but_is_not_applied() -> None:
    key = key_of("bsp", combine="mean")
    push(key, 0, math.nan)
    assert told(push(key, 1, 4.0)) == [(0, Applied.NOT_FINITE, 1), (1, Applied.COUNTED, 1)]
    assert key.value[0] == 4.0, "the mean of what is finite"
    assert [told(push(key, rank, math.inf)) for rank in (0, 1)][1] == [
        (0, Applied.NOT_FINITE, 2), (1, Applied.NOT_FINITE, 2)]  # fmt: skip
    assert (key.value[0], key.ledger.version) == (4.0, 2)


def tick(key: StoreKey, source: int) -> list[PushAnswer]:
    """Nothing, as the source's next."""
    return key.push(Contribution(source, key.ledger.clock(source), key.ledger.version, idle=True), None, 0.0)


def test_nobody_waits_for_who_ticks_and_a_tick_is_in_no_mean() -> None:
    key = key_of("bsp", "sgd:lr=1", combine="mean", ranks=3)
    push(key, 0, 1.0), tick(key, 1)
    answers = push(key, 2, 5.0)
    assert told(answers) == [(one, Applied.COUNTED, 1) for one in range(3)]
    assert [one.contributors for one in answers] == [(0, 2)] * 3
    assert key.value[0] == -3.0


def test_where_all_tick_there_is_a_version_and_nothing_is_updated() -> None:
    key = key_of("bsp", "momentum:lr=1", combine="mean")
    push(key, 0, 1.0), push(key, 1, 1.0)
    value, state = key.value.copy(), key.state.copy()
    tick(key, 0)
    answers = tick(key, 1)
    assert told(answers) == [(0, Applied.COUNTED, 2), (1, Applied.COUNTED, 2)]
    assert [one.contributors for one in answers] == [(), ()]
    assert np.array_equal(key.value, value) and np.array_equal(key.state, state)


def test_ticks_let_the_others_read_under_a_bound() -> None:
    key = key_of("ssp:s=1")
    for number in (1.0, 2.0):
        push(key, 0, number)
    assert key.read(0) is None
    tick(key, 1)
    assert np.array_equal(key.read(0), np.full(3, 3.0))  # type: ignore[arg-type]


def test_a_tick_has_no_rate_that_others_could_miss() -> None:
    key = key_of("bsp", "sgd", ranks=3)
    push(key, 0, 1.0, lr=0.5), tick(key, 1)
    assert told(push(key, 2, 1.0, lr=0.5))[0] == (0, Applied.COUNTED, 1)
    assert key.value[0] == -1.0


def test_what_adds_up_to_infinity_is_not_applied() -> None:
    key = key_of("bsp", "momentum")
    push(key, 0, 3e38)
    assert told(push(key, 1, 3e38)) == [(0, Applied.NOT_FINITE, 1), (1, Applied.NOT_FINITE, 1)]
    assert not key.value.any() and not key.state.any()
    push(key, 0, 3e38), push(key, 1, -3e38)
    assert key.ledger.version == 2 and not key.value.any(), "and the next one is"


def test_a_single_contribution_is_applied_as_it_is() -> None:
    key = key_of("asp", "assign", combine="mean")
    push(key, 0, -0.0, weight=0.3)
    assert np.signbit(key.value).all()


def test_of_two_rates_the_newer_version_s_counts() -> None:
    key = key_of("k_of_n:k=2,late=next", "sgd", ranks=3)
    push(key, 0, 1.0, lr=1.0), push(key, 1, 1.0, lr=1.0)
    push(key, 0, 1.0, lr=0.5), push(key, 2, 1.0, base=0, lr=1.0)
    assert key.value[0] == -2.0 - 0.5 * 2


def test_an_old_single_contribution_is_damped() -> None:
    key = key_of("asp", damp="inverse", ranks=3)
    for source in (0, 1):
        push(key, source, 1.0)
    push(key, 2, 8.0, base=0)
    assert key.value[0] == 2.0 + 8.0 / 2


def test_repeated_contributions_are_not_kept() -> None:
    key = key_of("asp")
    first = Contribution(0, 0, 0)
    for _ in range(3):
        key.push(first, np.ones(3, np.float32), 0.0)
    assert key.value[0] == 1.0 and not key._staged


def test_an_answer_that_was_lost_is_given_again_until_it_is_heard() -> None:
    key = key_of("asp")
    first = push(key, 0, 1.0)
    push(key, 1, 1.0)
    assert key.push(first[0].push, np.ones(3, np.float32), 0.0) == first, "of its own version, not of the newest"
    key.heard(0, 1)
    with pytest.raises(CorruptError, match="rank 0 has pushed its contribution 0 again, but it has said"):
        key.push(first[0].push, np.ones(3, np.float32), 0.0)
    assert key.value[0] == 2.0


def test_a_held_contribution_is_told_so_again_and_an_open_one_waits() -> None:
    key = key_of("bsp")
    push(key, 0, 1.0), push(key, 0, 10.0)
    assert key.push(Contribution(0, 0, 0), np.ones(3, np.float32), 0.0) == []
    assert told(key.push(Contribution(0, 1, 0), np.ones(3, np.float32), 0.0)) == [(0, Applied.HELD, 0)]
    push(key, 1, 2.0)
    assert key.value[0] == 3.0


@pytest.mark.parametrize("policy", ["bsp", "asp", "ssp:s=1", "k_of_n:k=2,late=next", "dssp:lo=0,hi=2"])
def test_integers_add_up_exactly_whatever_comes_twice(policy: str) -> None:
    random = Random(0)
    key = key_of(policy, kind=np.int64, ranks=3)
    sent: list[tuple[Contribution, int]] = []
    for _ in range(200):
        source = random.randrange(3)
        one = Contribution(source, key.ledger.clock(source), key.ledger.version), random.getrandbits(62)
        sent.append(one)
        for contribution, number in (one, random.choice(sent)):
            key.push(contribution, np.full(3, number, np.int64), 0.0)
    for source in range(3):
        key.lose(source, 0.0)
    expected = sum(number for _, number in sent) & (1 << 64) - 1
    assert key.value.view(np.uint64).tolist() == [expected] * 3


def test_ranks_of_two_schedules_are_refused() -> None:
    key = key_of("bsp", "sgd")
    push(key, 0, 1.0, lr=0.1)
    with pytest.raises(MismatchError, match=r"rank 1 .* lr=0.2, but rank 0 with lr=0.1, both computed on version 0"):
        push(key, 1, 1.0, lr=0.2)
    assert push(key, 1, 1.0, lr=0.1)


def test_what_does_not_fit_is_refused_and_has_not_come() -> None:
    key = key_of("asp")
    with pytest.raises(MismatchError, match=r"rank 0 has pushed float64 of shape \(3,\) to a key of float32"):
        key.push(Contribution(0, 0, 0), np.zeros(3), 0.0)
    with pytest.raises(InvalidArgumentError, match="integers can only be summed, with whole numbers as weights"):
        push(key_of("asp", kind=np.int64), 0, 1, weight=0.5)
    with pytest.raises(InvalidArgumentError, match=r"lr of a push must be at least 0 and finite, not -1\.0"):
        push(key, 0, 1.0, lr=-1.0)
    with pytest.raises(InvalidArgumentError, match=r"weight 0\.0"):
        push(key, 0, 1.0, weight=0.0)
    with pytest.raises(CorruptError, match="computed on version 1"):
        push(key, 0, 1.0, base=1)
    with pytest.raises(CorruptError, match="rank 7 has pushed to a key of which it is no source"):
        key.push(Contribution(7, 0, 0), np.zeros(3, np.float32), 0.0)
    assert key.ledger.clock(0) == 0 and not key._staged


@pytest.mark.parametrize(("update", "how"), [("add", {"combine": "mean"}), ("add", {"damp": "exp"}), ("sgd", {})])
def test_what_makes_fractions_takes_no_integers(update: str, how: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"int64|integers can only be summed"):
        key_of("asp", update, kind=np.int64, **how)


@pytest.mark.parametrize("policy", ["asp", "ssp:s=1", "dssp:lo=1,hi=2"])
def test_what_a_round_has_combined_needs_rounds(policy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"update none .* {policy.partition(':')[0]} has no rounds"):
        key_of(policy, "none")
    assert push(key_of("bsp", "none", ranks=1), 0, 3.0)
