"""Two sites, each a job of its own, and an upper group, all in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from byteps_like.store.upper.upper import Upper
from tests.contract.mixed_job import DEADLINE, MixedJob, in_threads, native_worker

SITES, RANKS, EVERY, PHASES = 2, 2, 3, 4


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


def wait_for(what: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.002)
