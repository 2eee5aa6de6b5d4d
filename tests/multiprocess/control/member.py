"""A process for tests of the control plane: a scheduler, or a member that obeys JSON commands on its standard input.

Every line it prints is a JSON object: the answer to a command, or {"event": ...} when the scheduler tells something.
"""

from __future__ import annotations

import json
import os
import sys
import time
from threading import Lock
from typing import Any

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, query_status
from byteps_like.control.calls.scheduler import run_scheduler
from byteps_like.control.types import Member, MemberRole, WatchEvent
from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, StalledError
from byteps_like.worker.api import TensorSpec

_SAYING = Lock()
"""Answers come from the main thread, events from another."""


def say(**fields: Any) -> None:
    with _SAYING:
        print(json.dumps({**fields, "at": time.time()}), flush=True)


class MemberProcess:
    """One ControlClient at a time; `join` makes a new one."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.role = MemberRole(config.role)
        self.client = ControlClient(config)
        self.epoch = 0

    def join(self, rank: int = -1, **changes: Any) -> dict[str, Any]:
        self.client = ControlClient(Config.from_env(**changes))
        urls = ("tcp://127.0.0.1:1",) if self.role is MemberRole.SERVER else ()
        member = Member(self.role, rank, "boot", "here", os.getpid(), urls, shards=2)
        world = self.client.join(member)
        self.epoch = world.number
        self.client.on_event(self.hear)
        if self.role is MemberRole.SERVER:
            self.client.ready(world)
        return {"rank": self.client.rank, "epoch": world.number, "workers": len(world.workers)}

    def next_view(self) -> dict[str, Any]:
        world = self.client.next_view()
        self.epoch = world.number
        self.client.ready(world)
        return {"epoch": world.number}

    def declare(self, name: str, shape: list[int], dtype: str = "FLOAT32") -> dict[str, Any]:
        (declared,) = self.client.declare([TensorSpec(name, DType[dtype], tuple(shape))])
        return {"partitions": [(part.key, part.nbytes, part.server, part.shard) for part in declared.partitions]}

    def barrier(self, name: str, timeout: float | None = None) -> dict[str, Any]:
        self.client.barrier(name, timeout)
        return {}

    def report(self, text: str) -> dict[str, Any]:
        self.client.report(StalledError(text), self.epoch)
        return {}

    def leave(self) -> dict[str, Any]:
        started = time.monotonic()
        self.client.leave()
        return {"seconds": time.monotonic() - started}

    def wait_for(self, name: str) -> dict[str, Any]:
        self.client.waiting({"name": name, "round": 1, "since": 1.0, "started": {name: 1}})
        return {}

    def status(self) -> dict[str, Any]:
        status = query_status(self.config)
        return {"state": status.state, "text": status.text, "members": [member.state for member in status.members]}

    def fork(self, times: int) -> dict[str, Any]:
        """Forked children are refused by the client, end by themselves, and leave their parent's line alone."""
        return {"exits": sorted({self._fork() for _ in range(times)})}

    def _fork(self) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        try:
            self.client.barrier("in the child")
        except BytePSLikeError as error:
            os._exit(7 if "was forked from" in str(error) else 8)
        os._exit(9)

    @staticmethod
    def hear(event: WatchEvent) -> None:
        say(event=event.kind.value, text=event.text, error=type(event.error).__name__)

    def obey(self, line: str) -> None:
        command = json.loads(line)
        try:
            say(answer=command["do"], **getattr(self, command.pop("do"))(**command))
        except BytePSLikeError as error:
            say(error=type(error).__name__, text=str(error))


def main() -> None:
    config = Config.from_env()
    if config.role == "scheduler":
        standby = "STANDBY" in os.environ
        sys.exit(run_scheduler(config, lambda address: say(address=address), standby=standby))
    member = MemberProcess(config)
    for line in sys.stdin:
        member.obey(line)


if __name__ == "__main__":
    main()
