"""What several files share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.multiprocess.c10d.pool import C10dPool


@pytest.fixture(scope="session")
def c10d_pool() -> Iterator[C10dPool]:
    """Four processes that have imported torch."""
    pool = C10dPool(4)
    yield pool
    pool.close()
