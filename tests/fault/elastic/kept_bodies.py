"""What ranks do in the tests of elastic jobs with stores, whose servers die: `body(bps, rank, size, ...)`."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from byteps_like.config import Config
from byteps_like.control.calls.client import order_drain, query_status
from byteps_like.control.calls.status import MemberStatus
from byteps_like.control.members.drains import DrainOrder, DrainState
from byteps_like.control.types import MemberRole
from byteps_like.store.future import Future
from tests.fault.bodies import Seen, watch
from tests.fault.store.store_bodies import digits

_ROUNDS = 60
_NEWS = 3.0
"""Seconds in which all servers hear of a death, and tell the scheduler how many keys have copies since."""
_SIZES = {"scalar": 1, "vector": 1001, "matrix": 300_000}


def _servers(job: dict[str, Any]) -> list[MemberStatus]:
    """Those that are there."""
    members = query_status(Config.from_env(**job)).members
    return [one for one in members if one.member.role is MemberRole.SERVER and one.state == "running"]


def _replicated(job: dict[str, Any]) -> float:
    """Keys of living servers of which others have copies, as they have told last."""
    return sum(one.stats.get("replicated", 0) for one in _servers(job))


def _kill(job: dict[str, Any], server: int, keys: int, last: float = 0.0) -> None:
    """Once there are copies of all keys, and what servers have told is newer than the `last` death."""
    end = time.monotonic() + 30
    while time.monotonic() < last + _NEWS or _replicated(job) < keys:
        assert time.monotonic() < end, f"there are copies of {_replicated(job)} keys, not {keys}"
        time.sleep(0.05)
    os.kill(server, signal.SIGKILL)


def _drain(job: dict[str, Any], server: int) -> None:
    """Until the server of that rank has left."""
    config, order = Config.from_env(**job), DrainOrder(MemberRole.SERVER, server)
    end = time.monotonic() + 30
    while (progress := order_drain(config, order)).state is DrainState.ASKED:
        assert time.monotonic() < end, "it has not handed over what it keeps"
        order = replace(order, number=progress.number)
        time.sleep(0.05)
    assert progress.state is DrainState.LEFT


def _terminate(job: dict[str, Any], servers: list[int]) -> None:
    """These processes at once. Until they have left."""
    left = len(_servers(job)) - len(servers)
    for process in servers:
        os.kill(process, signal.SIGTERM)
    end = time.monotonic() + 30
    while len(_servers(job)) > left:
        assert time.monotonic() < end, "they have not handed over what they keep"
        time.sleep(0.05)


def count_without_servers(
    bps: Any, rank: int, size: int, policy: str, gone: dict[int, Any], job: dict[str, Any], how: str = "kill"
) -> dict[str, Any]:
    """Pushes a number of its own in every round to a store and to a table, and reads now and then; in rounds `gone`,
    rank 0 kills the server process of that id, or, where there are no copies, has the server of that rank leave
    ("drain"), or terminates those processes ("SIGTERM"). What became of its pushes, and the sums in the end."""
    replicas = 2 if how == "kill" else 1
    like = {name: np.zeros(count, np.int64) for name, count in _SIZES.items()}
    store = bps.Store("counts", like, consistency=policy, combine="sum", init="zeros", replicas=replicas)
    table = bps.KV("rows", 2, np.int64, consistency=policy, replicas=replicas)
    keys = bps.KV.spread(np.arange(500), 500)
    kept = len(like) + len(table._table.shards.firsts)
    futures: list[Future] = []
    last = 0.0
    for number in range(_ROUNDS):
        if rank == 0 and number in gone and how == "drain":
            _drain(job, gone[number])
        elif rank == 0 and number in gone and how == "SIGTERM":
            _terminate(job, gone[number])
        elif rank == 0 and number in gone:
            _kill(job, gone[number], kept, last)
            last = time.monotonic()
        for name, value in like.items():
            futures.append(store.push(name, np.full_like(value, 1000**rank)))
        futures.append(table.push(keys, np.full((len(keys), 2), 1000**rank, np.int64)))
        if number % 7 == rank:
            store.pull("vector", np.empty_like(like["vector"])).wait(30)
            table.pull(keys).wait(30)
        if number % 5 == 0:
            futures[-1].wait(30)
    counted = sum(_is_counted(future) for future in futures)
    bps.barrier()
    sums = set()
    for name, value in like.items():
        out = np.empty_like(value)
        store.pull(name, out).wait(30)
        sums |= set(out.tolist())
    rows = np.empty((len(keys), 2), np.int64)
    table.pull(keys, rows).wait(30)
    return {"counted": counted, "sums": sorted(sums | set(rows.flatten().tolist()))}


def _is_counted(future: Future) -> bool:
    future.wait(30)
    return bool(future.counted)


def train_without_server(
    bps: Any, rank: int, size: int, consistency: str, server: int, job: dict[str, Any]
) -> dict[str, Any]:
    """The digits, whose weights and Adam's state servers keep. Rank 0 kills this server process in the middle."""
    images, labels = digits()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    plain = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = bps.DistributedOptimizer(plain, model.named_parameters(), consistency=consistency, apply="server")
    for step in range(160):
        if rank == 0 and step == 60:
            _kill(job, server, len(list(model.parameters())))
        batch = torch.randint(len(labels), (64,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    optimizer.finish()
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).float().mean().item()
    return {"accuracy": right}


def lose_lone_value(bps: Any, rank: int, size: int, server: int) -> Seen:
    """A store that one server alone has; rank 0 kills that."""
    store = bps.Store("lone", {"w": np.zeros(8, np.float32)}, consistency="asp", replicas=1)
    bps.barrier()
    if rank == 0:
        os.kill(server, signal.SIGKILL)

    def until() -> None:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            store.push("w", np.ones(8, np.float32)).wait(20)

    return watch(until)
