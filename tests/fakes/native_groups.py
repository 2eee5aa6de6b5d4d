"""torch process groups of threads over the native core's own links, on hosts as the test says: bytes are counted."""

from __future__ import annotations

import secrets
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch

from byteps_like.collectives.communicator import Communicator
from byteps_like.config import Config
from byteps_like.torch.c10d.process_group import GroupMembership, ProcessGroup

DEADLINE = 60.0


def run_native_groups(
    hosts: Sequence[int], body: Callable[..., Any], *args: Any, store: Any = None, options: Any = None
) -> list[Any]:
    """Runs `body(group, rank, *args)` on every rank; their results. `hosts[rank]` numbers its host; TCP on loopback."""
    config = Config.from_env({}, transport="tcp", host="127.0.0.1", stall_timeout=30.0)
    job, secret = f"hosts-{secrets.token_hex(4)}", secrets.token_bytes(32)
    made = [Communicator(config, job, secret) for _ in hosts]
    for one, host in zip(made, hosts, strict=True):
        one.own = replace(one.own, host_id=f"host {host}")
    for rank, one in enumerate(made):
        one.join(1, rank, [each.own for each in made])
    results: list[Any] = [None] * len(hosts)
    failures: list[str] = []
    barrier = threading.Barrier(len(hosts))

    def main(rank: int) -> None:
        torch.set_num_threads(1)
        everyone = tuple(range(len(hosts)))
        membership = GroupMembership(made[rank], "0", everyone, timedelta(seconds=20), store, owns_world=True)
        group = ProcessGroup(membership, options)
        try:
            results[rank] = body(group, rank, *args)
            barrier.wait(DEADLINE)
        except Exception:  # noqa: BLE001 - shown below
            failures.append(f"--- rank {rank} ---\n{traceback.format_exc()}")
            barrier.abort()
        finally:
            group.shutdown()

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(len(hosts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert not failures, "\n".join(failures)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def sent_across(group: ProcessGroup, counter: str = "payload_sent") -> int:
    """What this rank has sent to ranks on other hosts, over all lanes: payload, or "bytes_sent" with frames."""
    lane: Any = group.lanes.first
    world: Any = group.world
    own = lane.hosts[lane.rank]
    return sum(world.counters(peer)[counter] for peer, host in enumerate(lane.hosts) if host != own)
