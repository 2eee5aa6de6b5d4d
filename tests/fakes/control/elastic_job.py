"""An elastic job of which only the control plane is there: a real scheduler, and workers that do nothing but belong."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, catch_up
from byteps_like.control.calls.returning import returning
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.control.types import Member, MemberRole

PATIENCE = 20.0


class ElasticJob:
    """Its workers leave a world only all at a time."""

    def __init__(self, state: str = "", **settings: Any) -> None:
        """`state`: where schedulers keep theirs."""
        usual = {"secret": "a secret that only the tests know", "job": "elastic", "host": "127.0.0.1"}
        self.settings: dict[str, Any] = {**usual, "elastic": True, "max_workers": 4, "num_servers": 0, **settings}
        self._state = state
        self._pool = ThreadPoolExecutor(32)
        self.workers: list[ControlClient] = []
        self.settings["scheduler"] = "127.0.0.1:0"
        self.start_scheduler()

    def start_scheduler(self) -> None:
        """The first, or another one at the address of the one before, if there is a state."""
        self.scheduler = SchedulerServer(Config.from_env({}, scheduler_state=self._state, **self.settings))
        self.settings["scheduler"] = self.scheduler.start()

    def config(self, **more: Any) -> Config:
        """Of a member, or of somebody who would become one."""
        return Config.from_env({}, **(self.settings | more))

    def join(
        self, rank: int = -1, *, role: str = "worker", waits: bool = True, **member: Any
    ) -> tuple[ControlClient, Future[Any]]:
        """Somebody who comes, and the view that it waits for."""
        client = ControlClient(self.config(role=role))
        own: dict[str, Any] = {"host_id": "boot", "host": "here", "pid": 1, **member}
        return client, self._pool.submit(client.join, Member(MemberRole(role), rank, **own), PATIENCE, waits)

    def form(self, *members: dict[str, Any]) -> list[ControlClient]:
        """The workers of a world, one with each of these fields of a Member."""
        self.settings["world_size"] = len(members)
        joining = [self.join(rank, **member) for rank, member in enumerate(members)]
        for _, view in joining:
            view.result(PATIENCE)
        self.workers = sorted((client for client, _ in joining), key=lambda client: client.rank)
        return self.workers

    def form_next(self) -> list[ControlClient]:
        """The same number of workers in the next world, for which they leave this one."""
        self.leave_for_next()
        return self.form(*[{}] * len(self.workers))

    def leave_for_next(self) -> None:
        """All of them will return."""
        with returning():
            for worker in self.workers:
                worker.leave()

    def catch_up(self, address: str, timeout: float = PATIENCE) -> Future[str]:
        """What a newcomer is told."""
        return self._pool.submit(catch_up, self.config(), address, timeout)

    def close(self) -> None:
        """Ends the job, and all calls with it."""
        for worker in self.workers:
            worker.leave()
        self.scheduler.stop()
        self._pool.shutdown()


def until(true: Callable[[], Any]) -> None:
    """Blocks until it is so."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, f"not within {PATIENCE:g} s"
        time.sleep(0.01)
