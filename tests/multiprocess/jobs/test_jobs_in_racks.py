"""Jobs with racks, over the scheduler: whose sums are right, what goes past aggregators, and who is named in errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from byteps_like.server.process import EmbeddedServer
from tests.multiprocess.real_world import Cluster, Pool

RANKS = 5
RACKS = ("a", "b", "a", "b", "")
"""Of the ranks; servers have none, a and b."""


class RackedCluster(Cluster):
    """With servers of these racks, and ranks of RACKS."""

    def __init__(self, servers: tuple[str, ...] = ("", "a", "b"), **settings: Any) -> None:
        super().__init__(RANKS, len(servers), start=False, **settings)
        self.servers = [EmbeddedServer(self.config(role="server", shards=2, rack=rack)) for rack in servers]
        for server in self.servers:
            server.start()

    def rank_settings(self, rank: int) -> dict[str, Any]:
        return {**super().rank_settings(rank), "rack": RACKS[rank]}

    def stats(self, rack: str) -> dict[str, int]:
        """Of its only aggregator."""
        found = [server._server for server in self.servers if server._server._config.rack == rack]
        assert len(found) == 1
        return dict(found[0]._store.stats())


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(RANKS)
    yield made
    made.close()


@pytest.fixture
def cluster() -> Iterator[RackedCluster]:
    made = RackedCluster()
    yield made
    made.close()


def all_kinds(bps: Any, rank: int, size: int) -> list[float]:
    """Dense sums of several types, a codec, a store, a table, a process set, an optimizer step."""
    import torch

    total = sum(range(1, size + 1))
    for dtype in (torch.float32, torch.float64, torch.int64, torch.int8, torch.float16, torch.bfloat16):
        value = torch.full((70_001,), rank + 1, dtype=dtype)
        assert (bps.push_pull(value, average=False, name=f"sum.{dtype}") == total).all(), dtype
    assert (bps.push_pull(torch.arange(300_000.0) + rank, name="mean") == torch.arange(300_000.0) + 2).all()
    sent = bps.broadcast(torch.full((9,), float(rank)), root_rank=3, name="from3")
    assert (sent == 3).all()
    coded = bps.push_pull(torch.full((200_000,), rank + 1.0), average=False, name="coded", compression="fp8")
    assert torch.allclose(coded, torch.full_like(coded, float(total)), rtol=0.1)
    store = bps.Store("kept", {"w": np.zeros(3000, np.float32)}, consistency="bsp", combine="sum")
    store.push("w", np.full(3000, rank + 1, np.float32)).wait(30)
    out = np.empty(3000, np.float32)
    store.pull("w", out, version=1).wait(30)
    assert (out == total).all()
    bps.barrier()
    some = bps.add_process_set([0, 3])
    if rank in (0, 3):
        assert (bps.push_pull(torch.ones(50), average=False, name="two", process_set=some) == 2).all()
    bps.barrier()
    return [float(coded[0])]


@pytest.mark.timeout(120)
def test_everything_comes_out_as_without_racks(pool: Pool, cluster: RackedCluster) -> None:
    answers = pool.run(cluster, all_kinds, together=True)
    assert len({tuple(one) for one in answers}) == 1
    dense = 70_001 * (4 + 8 + 8 + 1 + 2 + 2) + 300_000 * 4
    for rack in "ab":
        stats = cluster.stats(rack)
        assert dense <= stats["relayed_up"] <= 1.01 * dense + 4096
        brought = stats["payload_received"] + stats["referenced"]
        assert brought == pytest.approx(2 * stats["relayed_up"], rel=0.02)
        assert stats["encoded"] == 0
    assert cluster.stats("")["encoded"] > 0


@pytest.mark.timeout(120)
def test_racks_with_encryption(pool: Pool) -> None:
    cluster = RackedCluster(tls="on", transport="tcp")
    try:
        answers = pool.run(cluster, all_kinds, together=True)
        assert len({tuple(one) for one in answers}) == 1
    finally:
        cluster.close()


def train(bps: Any, rank: int, size: int) -> list[float]:
    """Some steps of a small model; its weights."""
    import torch

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.ReLU(), torch.nn.Linear(96, 4))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
    )
    for step in range(4):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [value for one in model.parameters() for value in one.detach().flatten()[:50].tolist()]


@pytest.mark.timeout(120)
def test_training_is_the_same_but_for_the_order_of_sums(pool: Pool, cluster: RackedCluster) -> None:
    racked = pool.run(cluster, train, together=True)
    assert all(one == racked[0] for one in racked)
    flat = Cluster(RANKS, 1)
    try:
        plain = pool.run(flat, train, together=True)
    finally:
        flat.close()
    assert racked[0] == pytest.approx(plain[0], rel=1e-4, abs=1e-6)


def stalls(bps: Any, rank: int, size: int, missing: tuple[int, ...]) -> str:
    """What a rank hears that waits for ranks of a rack."""
    import torch

    if rank in missing:
        time.sleep(4)
        return ""
    try:
        bps.push_pull(torch.ones(100), name="late")
    except bps.BytePSLikeError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("missing", "named"), [((1,), "rank 1"), ((1, 3), "rack b (ranks 1, 3)")])
def test_a_stall_names_who_is_missing_of_a_rack(pool: Pool, missing: tuple[int, ...], named: str) -> None:
    cluster = RackedCluster(stall_warning=0.3, stall_timeout=1.5)
    try:
        texts = pool.run(cluster, stalls, missing)
    finally:
        cluster.close()
    for rank, text in enumerate(texts):
        if rank not in missing:
            assert text.startswith("StalledError"), text
            assert f"waiting for {named}" in text


def sums(bps: Any, rank: int, size: int) -> float:
    import torch

    return float(bps.push_pull(torch.full((100_000,), rank + 1.0), average=False, name="sum")[-1])


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "servers", [("", "", "a", "a", "b"), ("a", "", "c"), ("b", "")], ids=["several", "without workers", "one"]
)
def test_any_racks_and_servers(pool: Pool, servers: tuple[str, ...]) -> None:
    cluster = RackedCluster(servers)
    try:
        assert set(pool.run(cluster, sums, together=True)) == {15.0}
    finally:
        cluster.close()
