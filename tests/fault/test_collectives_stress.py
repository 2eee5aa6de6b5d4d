"""Random calls of all kinds, algorithms and sizes, several in flight on several groups: none hangs, all are right."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from byteps_like.collectives.schedules.schedule import Layout
from tests.fault.traffic import Call, draw, start
from tests.fault.worlds import Forked, Threads

DEPTH = 8  # calls in flight


def _layout(hosts: tuple[int, ...], ranks: tuple[int, ...]) -> Layout:
    numbers = {host: number for number, host in enumerate(dict.fromkeys(hosts[rank] for rank in ranks))}
    return Layout(tuple(numbers[hosts[rank]] for rank in ranks))


def _calls(communicator: Any, seed: int, count: int, hosts: tuple[int, ...], shared: bool) -> int:
    dice, own = random.Random(seed), random.Random(1000 * seed + communicator.rank)
    everybody = tuple(range(communicator.size))
    members = [everybody, *(tuple(sorted(dice.sample(everybody, dice.randint(2, len(everybody))))) for _ in range(3))]
    flights: list[tuple[int, Call, Any]] = []

    def land(left: int) -> None:
        while len(flights) > left:
            number, call, (operation, check) = flights.pop(own.randrange(len(flights)))
            try:
                operation.wait()
                check()
            except Exception as error:
                raise AssertionError(f"seed {seed}, rank {communicator.rank}, call {number}: {call}") from error

    for number in range(count):
        which = dice.randrange(len(members))
        call = draw(dice, _layout(hosts, members[which]), shared=shared)
        waits = dice.random() < 0.4
        if communicator.rank in members[which]:
            group = communicator.group(f"{seed}/{which}", members[which])
            flights.append((number, call, start(group, call)))
            land(0 if waits else DEPTH)
    land(0)
    return count


@pytest.mark.parametrize(
    ("transport", "hosts"),
    [
        ("tcp", (0, 0)),
        ("tcp", (0, 1, 0, 2, 2)),
        ("shm", (0, 0, 0)),
        ("auto", (0, 0, 1, 1)),
        ("chaos://tcp?seed=5&delay_ms=1&stall=0.02&stall_ms=5", (0, 1, 0)),
    ],
)
def test_random_calls_by_threads_of_one_process(transport: str, hosts: tuple[int, ...]) -> None:
    with Threads(len(hosts), transport, hosts) as world:
        for seed in (1, 2):
            world.run(_calls, seed, 60, hosts, transport == "shm")


@pytest.mark.parametrize("transport", ["tcp", "shm"])
def test_random_calls_by_processes(transport: str) -> None:
    with Forked(3, transport) as world:
        for seed in (11, 12):
            world.run(_calls, seed, 80, (0, 0, 0), transport == "shm")
