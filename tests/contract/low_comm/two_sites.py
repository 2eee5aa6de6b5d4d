"""Two sites, each a job of its own, and an upper group, all in this process: how they exchange, and what must come of
it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from byteps_like.store.upper.upper import Upper
from tests.contract.mixed_job import DEADLINE, MixedJob, in_threads, native_worker

SITES, RANKS, EVERY, PHASES = 2, 2, 3, 4
_EXCHANGES = [
    (0.25, "add", "float32", native_worker),
    (0.25, "nesterov:lr=0.5,momentum=0.9", "float64", native_worker),
    (0.0, "add", "int64", native_worker),
    (1.0, "add", "int64", native_worker),
]


def over_exchanges(*more: tuple[float, str, str, Any]) -> pytest.MarkDecorator:
    """Runs a test with each way to exchange: how much of the upper group's values sites take, its update, the type of
    the values, and the kind of workers."""
    return pytest.mark.parametrize(("merge", "update", "dtype", "kind"), [*_EXCHANGES, *more])


class World:
    """Two sites and an upper group, all in this process."""

    def __init__(self, jobs: list[MixedJob], above: MixedJob) -> None:
        self.jobs, self.above = jobs, above
        self.turn = threading.Barrier(SITES * RANKS, timeout=DEADLINE)

    def upper(self, site: int, **terms: Any) -> Upper:
        common = self.above.common
        given = {"every": EVERY, "merge": 0.25, **terms}
        return Upper(
            common["scheduler"], sites=SITES, site=site, servers=2, job=common["job"], secret=common["secret"],
            stall_timeout=20.0, **given,
        )  # fmt: skip

    def exchanging(self, site: int, merge: float, update: str, dtype: str) -> Upper:
        """With the terms of `over_exchanges`. Contributions of integers are summed, as integers take no means."""
        return self.upper(site, merge=merge, update=update, combine="sum" if dtype == "int64" else "mean")

    @contextmanager
    def turn_of(self, site: int) -> Iterator[None]:
        """Its body runs on the ranks of one site after the other. All ranks enter it."""
        for _ in range(site):
            self.turn.wait()
        yield
        for _ in range(site, SITES):
            self.turn.wait()

    def everybody(self, body: Callable[[int, Any], Any]) -> list[list[Any]]:
        """What `body(site, worker)` returns, by site and rank."""
        calls = [
            lambda site=site, worker=worker: body(site, worker)
            for site, job in enumerate(self.jobs)
            for worker in job.workers
        ]
        found = in_threads(calls)
        return [found[site * RANKS : (site + 1) * RANKS] for site in range(SITES)]


@contextmanager
def world(kind: Any = native_worker, **settings: Any) -> Iterator[World]:
    with ExitStack() as ending:
        above = MixedJob(makers=[], others=SITES, stall_timeout=20.0)
        ending.callback(above.close)
        jobs = [MixedJob(makers=[kind] * RANKS, hosts=("",), stall_timeout=20.0, **settings) for _ in range(SITES)]
        for job in jobs:
            ending.callback(job.close)
        yield World(jobs, above)


def check_values(found: list[list[Any]], sites: Sequence[np.ndarray], above: np.ndarray, dtype: str) -> None:
    """Compares what ranks have found, by site: the site's values, on rank 0 those of the upper group, and an error."""
    near = {"rtol": 1e-5, "atol": 1e-4} if dtype == "float32" else {"rtol": 1e-12, "atol": 1e-9}
    for site, ranks in enumerate(found):
        np.testing.assert_allclose(ranks[0][1], above, **near)
        for value, _, error in ranks:
            np.testing.assert_allclose(value, sites[site], **near)
            assert error is None


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.002)
