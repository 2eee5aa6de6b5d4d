"""The one clock: what follows from `failure_timeout`, what overrides it, and what contradicts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.config import Config
from byteps_like.config_clock import LONGEST, SHORTEST, FailureClock
from byteps_like.control.calls.scheduler import patience_of
from byteps_like.errors import ConfigError

TIMEOUTS = st.floats(SHORTEST, LONGEST)
NAMES = sorted(FailureClock().settings())


@given(TIMEOUTS)
def test_all_times_follow_from_one_and_come_in_order(timeout: float) -> None:
    config = Config.from_env({}, failure_timeout=timeout)
    patience = patience_of(config)
    assert config.heartbeat_interval == config.peer_grace == pytest.approx(timeout / 20)
    assert (config.join_timeout, config.stall_timeout) == pytest.approx((6 * timeout, 12 * timeout))
    assert patience.quiet == pytest.approx(timeout / 5) and patience.first_watch == pytest.approx(timeout / 2)
    order = [
        config.heartbeat_interval, patience.quiet, patience.returning, patience.first_watch, timeout,
        config.clock.absence, config.stall_timeout,
    ]  # fmt: skip
    assert order == sorted(order) and len(set(order)) == len(order)
    assert patience.grace < patience.quiet and config.stall_warning < config.stall_timeout


@given(TIMEOUTS, st.sampled_from(NAMES), st.floats(0.5, 2.0))
def test_a_setting_of_its_own_overrides_what_follows(timeout: float, name: str, factor: float) -> None:
    derived = FailureClock(timeout).settings()
    value = derived[name] * factor
    if name == "heartbeat_interval":
        value = min(value, timeout / 10)
    config = Config.from_env({}, failure_timeout=timeout, **{name: value})
    assert {other: getattr(config, other) for other in NAMES} == derived | {name: value}


@given(TIMEOUTS, st.sampled_from(NAMES))
def test_what_contradicts_it_is_refused_and_both_are_named(timeout: float, name: str) -> None:
    wrong = {"heartbeat_interval": timeout, "peer_grace": 2 * timeout, "stall_warning": 13 * timeout}
    value = wrong.get(name, timeout / 2)
    other = "stall_timeout" if name == "stall_warning" else "failure_timeout"
    with pytest.raises(ConfigError) as refused:
        Config.from_env({}, failure_timeout=timeout, **{name: value})
    assert f"{name}={value:g} contradicts {other}=" in str(refused.value)


@pytest.mark.parametrize("timeout", [0.0, 0.9, 601.0, -1.0])
def test_it_has_limits(timeout: float) -> None:
    with pytest.raises(ConfigError, match=r"failure_timeout=.* is not 1 to 600 seconds"):
        Config.from_env({}, failure_timeout=timeout)


def test_jobs_that_are_not_elastic_have_the_times_that_they_had() -> None:
    config = Config.from_env({})
    assert [getattr(config, name) for name in NAMES] == [1.0, 60.0, 0.7, 120.0, 5.0]
    patience = patience_of(config)
    assert (patience.quiet, patience.first_watch, patience.returning, patience.prepare) == (5.0, 5.0, 3.0, 10.0)
    assert Config.from_env({}, stall_timeout=0.5, peer_grace=20.0).stall_timeout == 0.5, "no clock was asked for"


def test_elastic_jobs_follow_it_by_themselves() -> None:
    config = Config.from_env({"BYTEPS_LIKE_ELASTIC": "1"})
    assert {name: getattr(config, name) for name in NAMES} == FailureClock().settings()
    assert patience_of(config).quiet == 2.0
    given_itself = Config.from_env({"BYTEPS_LIKE_ELASTIC": "1", "BYTEPS_LIKE_PEER_GRACE": "0.7"})
    assert given_itself.peer_grace == 0.7, "though that is the default elsewhere"
    assert config.held_to(config.job_settings()) == config
