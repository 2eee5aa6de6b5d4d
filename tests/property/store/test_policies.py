"""Every policy over ten thousand schedules: each push counts once, nobody waits for ever, the policy's own promise."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.store.ledger import Version
from byteps_like.store.policies.bounded import Dssp, Ssp, extra
from byteps_like.store.policies.partial import Backup, KOfN
from byteps_like.store.policies.policy import Policy, PushPace
from byteps_like.store.policies.registry import POLICIES, policy_of, text_of
from tests.property.store.schedules import BLOCKS, Run, Schedule

RANKS = 4
TEXTS = (
    "bsp", "asp", "hogwild", "ssp:s=0", "ssp:s=3", "dssp:lo=1,hi=4", "backup:b=1", "backup:b=2", "k_of_n:k=3,late=next",
    "k_of_n:k=2,late=next,max_age=1", "k_of_n:k=2,grace=0.3", "k_of_n:k=1,grace=auto,late=next",
    "k_of_n:k=auto", "k_of_n:k=auto,grace=0.3,late=next",
)  # fmt: skip
BLOCKED = tuple(text for text in TEXTS if policy_of(text, RANKS).has_rounds)
"""Those under which sources may be cut off, and versions be made of blocks."""
BY_SERVERS = tuple(text for text in TEXTS if text != "hogwild")
"""Those that servers know."""

SCHEDULES = 10_000


def test_every_policy_is_put_through_them() -> None:
    assert {text.partition(":")[0] for text in TEXTS} == POLICIES.keys()


@pytest.mark.parametrize("text", TEXTS)
def test_promises_hold_in_all_schedules(text: str) -> None:
    policy = policy_of(text, RANKS)
    for seed in range(SCHEDULES // len(TEXTS) + 1):
        run = Schedule(policy, RANKS, seed).play()
        try:
            assert not run.unfinished
            check_once(run)
            check_promise(policy, run)
        except AssertionError as error:
            raise AssertionError(f"{text}, seed {seed}: {error}") from error


@pytest.mark.parametrize("text", BLOCKED)
def test_promises_hold_where_sources_send_blocks(text: str) -> None:
    policy = policy_of(text, RANKS)
    for seed in range(SCHEDULES // len(BLOCKED) + 1):
        run = Schedule(policy, RANKS, seed, blocks=True).play()
        try:
            assert not run.unfinished
            check_once(run)
            check_blocks(run)
            check_promise(policy, run)
        except AssertionError as error:
            raise AssertionError(f"{text}, seed {seed}: {error}") from error


def check_blocks(run: Run) -> None:
    """Every sample of every step is in one version, or late, and no version has blocks of two steps of a source."""
    steps: dict[int, int] = defaultdict(int)
    step_of = {}
    for push in run.sent:
        step_of[push] = steps[push.source]
        steps[push.source] += push.last
    settled = [push for version, _ in run.versions for push in version.pushes] + [push for push, _ in run.late]
    samples: dict[tuple[int, int], float] = defaultdict(float)
    for push in settled:
        samples[push.source, step_of[push]] += push.weight
    complete = [one for one in samples if one[1] < steps[one[0]]]  # whoever dies may leave the last one unfinished
    assert all(samples[one] == BLOCKS for one in complete) and len(complete) == sum(steps.values())
    for version, _ in run.versions:
        by_source = {(push.source, step_of[push]) for push in version.pushes}
        assert len(by_source) == len({push.source for push in version.pushes})


def check_once(run: Run) -> None:
    """What was sent is part of one version, or late, in the order of its source's clocks."""
    settled = [push for version, _ in run.versions for push in version.pushes] + [push for push, _ in run.late]
    assert len(settled) == len(set(settled)) == len(run.sent)
    assert set(settled) == set(run.sent)
    clocks = defaultdict(list)
    for version, _ in run.versions:
        for push in version.pushes:
            clocks[push.source].append(push.clock)
    assert all(one == sorted(one) for one in clocks.values())
    assert [version.number for version, _ in run.versions] == list(range(1, len(run.versions) + 1))


def check_promise(policy: Policy, run: Run) -> None:
    """What its first line says."""
    match policy.name:
        case "bsp":
            assert all(live <= finished(version) for version, live in run.versions)
            assert all(one.sent == one.clock for one in run.reads)
            assert not run.late
            if all(push.last for push in run.sent):
                assert all(one.clock == one.version for one in run.reads)
        case "ssp" | "dssp" | "asp" | "hogwild":
            bound = policy.s if isinstance(policy, Ssp) else policy.hi if isinstance(policy, Dssp) else math.inf
            assert all(one.clock - one.least <= bound and one.sent == one.clock for one in run.reads)
            assert all(len(version.pushes) == 1 for version, _ in run.versions)
            assert not run.late
        case _:
            assert isinstance(policy, KOfN | Backup)
            check_partial(policy, run)


def check_partial(policy: KOfN | Backup, run: Run) -> None:
    """Enough pushes, none too old, nobody has read what it had."""
    allowed = policy.max_age if policy.late == "next" else 0
    for version, live in run.versions:
        assert len(finished(version)) >= needed(policy, len(live)) or live <= finished(version)
        assert all(0 <= version.age(push) <= allowed for push in version.pushes)
    assert all(version - push.base > allowed for push, version in run.late)
    assert all(one.version > one.base for one in run.reads)
    if policy.grace == 0:
        assert all(blocks < needed(policy, live) for blocks, live in run.open if live)


def finished(version: Version) -> set[int]:
    """Sources whose last blocks it has."""
    return {push.source for push in version.pushes if push.last}


def needed(policy: KOfN | Backup, live: int) -> int:
    """Pushes that make a version. Nothing is known here of contributions, so that "auto" wants all."""
    if isinstance(policy, Backup):
        return max(live - policy.b, 1)
    return min(policy.k, live) if isinstance(policy.k, int) else live


@given(st.integers(0, 100), st.integers(1, 20), st.integers(0, 100), st.integers(1, 20), st.integers(0, 8))
def test_dssp_goes_on_for_as_many_clocks_as_make_it_wait_least(
    fast: int, each: int, slow: int, its: int, most: int
) -> None:
    ends = [slow + its * clocks for clocks in range(400)]
    arrivals = [fast + each * clocks for clocks in range(most + 1)]
    waits = [min(end - arrival for end in ends if end >= arrival) for arrival in arrivals]
    assert extra(PushPace(fast, each), PushPace(slow, its), most) == waits.index(min(waits))


def test_dssp_that_knows_no_intervals_keeps_to_its_lower_bound() -> None:
    assert extra(PushPace(1.0, None), PushPace(1.0, 2.0), 5) == extra(PushPace(1.0, 1.0), PushPace(), 5) == 0


@pytest.mark.parametrize("text", TEXTS)
def test_a_policy_is_what_its_text_says(text: str) -> None:
    policy = policy_of(text, RANKS)
    assert policy_of(text_of(policy), RANKS) == policy
