"""1,000 simulated members join, send heartbeats and leave: how long does one scheduler take?

    python -m bench.internals.members [--members 1000] [--repeats 3]

A real scheduler and all members share one process and two cores. Members speak the real protocol, proofs included,
over a few connections; each checks that it is in the world it is sent, but makes no Python objects of the others.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from bench.report import OUT, context, print_table, write_json_lines
from byteps_like.config import Config
from byteps_like.control.calls import wire
from byteps_like.control.calls.loop import control_loop
from byteps_like.control.calls.rpc import STREAMS, Caller
from byteps_like.control.calls.ruler import open_channel, scheduler_of
from byteps_like.control.calls.scheduler import SERVICE, SchedulerServer
from byteps_like.control.members.seats import JoinClaim
from byteps_like.control.types import Member, MemberRole
from byteps_like.control.v1 import scheduler_pb2 as pb

TARGET_SECONDS = 5.0
PER_CHANNEL = STREAMS // 2
"""Members on one connection: each has its watch stream and a call."""


@dataclass
class Simulated:
    """One member without a process."""

    caller: Caller
    rank: int
    world_size: int
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    watcher: asyncio.Task[None] | None = None
    formed: asyncio.Event = field(default_factory=asyncio.Event)

    async def join(self) -> None:
        """Claims its place, opens its watch stream and waits for the world."""
        member = Member(MemberRole.WORKER, self.rank, f"boot/{self.rank // 8}", f"10.0.0.{self.rank // 8}", self.rank)
        claim = JoinClaim(self.id, member, self.world_size, 0, {"partition_bytes": "4194304"}, 60.0)
        await self.caller.call("Join", wire.claim_to_wire(claim), 60.0)
        self.watcher = asyncio.create_task(self._watch())
        await self.formed.wait()

    async def heartbeat(self) -> None:
        """One sign of life with counters."""
        stats = {"bytes_sent": 1e9, "bytes_received": 1e9, "steps": 10.0}
        await self.caller.call("Heartbeat", pb.HeartbeatRequest(member_id=self.id, stats=stats), 60.0)

    async def leave(self) -> None:
        """Goes in order; the scheduler then ends its stream."""
        await self.caller.call("Leave", pb.LeaveRequest(member_id=self.id), 60.0)
        assert self.watcher is not None
        await self.watcher

    async def _watch(self) -> None:
        async for message in self.caller.stream("Watch", pb.WatchRequest(member_id=self.id)):
            if message.HasField("world"):
                rank = list(message.world.member_ids).index(self.id)
                if len(message.world.workers) != self.world_size or message.world.workers[rank].pid != self.rank:
                    raise RuntimeError(f"rank {self.rank} is not in its world")
                self.formed.set()


async def simulate(config: Config, secret: bytes, count: int) -> dict[str, float]:
    """Seconds of each phase."""
    channels: list[grpc.aio.Channel] = [open_channel(config, secret) for _ in range(-(-count // PER_CHANNEL))]
    callers = [Caller(channel, SERVICE, scheduler_of(config, secret)) for channel in channels]
    members = [Simulated(callers[rank // PER_CHANNEL], rank, count) for rank in range(count)]
    phases: dict[str, Callable[[Simulated], Awaitable[None]]] = {
        "join": Simulated.join,
        "heartbeat": Simulated.heartbeat,
        "leave": Simulated.leave,
    }
    times: dict[str, float] = {}
    for name, phase in phases.items():
        started = time.perf_counter()
        await asyncio.gather(*(phase(member) for member in members))
        times[name] = time.perf_counter() - started
    for channel in channels:
        await channel.close(None)
    return times


def measure(count: int) -> dict[str, Any]:
    """One job of `count` workers, from the first join to the last leave."""
    config = Config(job="members", secret=secrets.token_hex(32), num_servers=0)
    server = SchedulerServer(config)
    address = server.start()
    try:
        client = Config(job="members", secret=config.secret, scheduler=address)
        started, used = time.perf_counter(), time.process_time()
        times = control_loop().run(simulate(client, config.secret.encode(), count))
        total = time.perf_counter() - started
        return {"members": count, **times, "total": total, "cpu": time.process_time() - used, "target": TARGET_SECONDS}
    finally:
        server.stop()


def main() -> None:
    """Measures, shows a table and writes JSON lines; exit code 1 if the target is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:2]))
    rows = [measure(arguments.members) for _ in range(arguments.repeats)]
    names = ("join", "heartbeat", "leave", "total", "cpu")
    shown = [tuple(f"{row[name]:.2f} s" for name in names) for row in rows]
    print_table(f"{arguments.members} members, two cores, target {TARGET_SECONDS:g} s", names, shown)
    write_json_lines(OUT / "members.jsonl", context(vars(arguments)), rows)
    if sorted(row["total"] for row in rows)[len(rows) // 2] > TARGET_SECONDS:
        sys.exit(1)


if __name__ == "__main__":
    main()
