"""A network that resets every connection for two seconds: who has patience enough goes on, who has not is told."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import byteps_like._core as core
from byteps_like.dtypes import DType, Op
from tests.fakes.firewall import Firewall
from tests.multiprocess.control.processes import Cluster

SECONDS = 2.0
SECRET, COUNT = b"s" * 32, 50_000
MEMBERS, SERVER = [11, 12], 13


@pytest.mark.parametrize("grace", [6.0, 0.7])
def test_members_and_scheduler_wait_for_each_other_as_long_as_the_grace_says(grace: float) -> None:
    cluster = Cluster(peer_grace=grace)
    wall = Firewall(cluster.address)
    try:
        first, second = cluster.workers(2, scheduler=wall.address, peer_grace=grace)
        with wall.resetting():
            time.sleep(SECONDS)
        assert wall.reset > 2
        if grace > SECONDS:
            first.send("barrier", name="after")
            assert second.ask("barrier", name="after")["answer"] == "barrier"
            assert first.outcome()["answer"] == "barrier"
        else:
            assert {member.hear("event")["error"] for member in (first, second)} == {"PeerLostError"}
    finally:
        wall.close()
        cluster.end()


def test_rounds_go_on_when_servers_can_be_reached_again() -> None:
    server = core.Server("job", SECRET, ["tcp://127.0.0.1:0"])
    server.set_world(bytes(16), 1, MEMBERS, SERVER, 5.0, 60.0, 0)
    wall = Firewall(server.urls[0])
    shards = [(0, 0, [f"tcp://{wall.address}"], SERVER)]

    def make(rank: int) -> core.Engine:
        return core.Engine(
            "job", SECRET, bytes(16), 1, rank, MEMBERS[rank], 2, shards, 1 << 17, 1 << 20, 20.0, 5.0, 60.0
        )

    def train(rank: int) -> bool:
        values = np.empty(COUNT, np.float32)
        for _ in range(50):
            values[:] = rank + 1
            assert engines[rank].wait(engines[rank].submit(0, values.ctypes.data, 0, 1, int(Op.SUM), 0, 0), 60.0)
            if not (values == 3).all():
                return False
        return True

    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(make, range(2)))
        for engine in engines:
            engine.declare(int(DType.FLOAT32), [(1, 0, 4 * COUNT, 0)])
        assert list(pool.map(train, range(2))) == [True, True]
        with wall.resetting():
            trained = [pool.submit(train, rank) for rank in range(2)]
            time.sleep(SECONDS)
            assert not any(one.done() for one in trained)
        assert [one.result(60) for one in trained] == [True, True]
    assert wall.reset > 2
    for engine in engines:
        engine.close()
    server.stop()
    wall.close()
