"""What torch builds on a process group, over real worlds of processes: against one process, and when ranks disagree."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.multiprocess.c10d.world import GroupPool
from tests.scenarios.c10d import users as c10d_users


@pytest.fixture(scope="module")
def pool() -> Iterator[GroupPool]:
    processes = GroupPool(4)
    yield processes
    processes.close()


@pytest.mark.parametrize("scenario", c10d_users.SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_user(pool: GroupPool, scenario: Callable[..., None]) -> None:
    for size in (2,) if scenario in c10d_users.SLOW else (2, 4):
        pool.run(size, scenario)


@pytest.mark.parametrize("scenario", c10d_users.FAILING, ids=lambda scenario: scenario.__name__)
def test_errors_reach(pool: GroupPool, scenario: Callable[..., None]) -> None:
    pool.run(2, scenario)
