"""Fixtures of the tests that need a network: skipped with the reason where no lab can be built."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from byteps_like.launch.lab import network as lab_network
from byteps_like.launch.lab.hosts import Lab


@pytest.fixture
def make_lab() -> Iterator[Callable[..., Lab]]:
    """Builds labs, `make_lab(4, rate="1gbit")`, and removes them after the test."""
    if reason := lab_network.why_not_viable():
        pytest.skip(reason)
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(Lab(*arguments, **options))


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    """Two hosts, unshaped."""
    return make_lab(2)
