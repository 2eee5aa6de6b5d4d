"""DistributedOptimizer(shard="optimizer") in worlds of one to three ranks: equalities, bytes, orders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.job import runtime
from byteps_like.torch.sharded.update import SliceStep
from byteps_like.worker.local import LocalWorker
from byteps_like.worker.local_group import LocalOperation
from byteps_like.worker.standing import Standing
from tests.fakes.native_world import run_native_world
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import fill, flat
from tests.scenarios.optimizers import sharded, sharded_tuned, sharded_wire

BODIES = [*sharded.SCENARIOS, *sharded_wire.SCENARIOS, *sharded_tuned.SCENARIOS]


@pytest.mark.parametrize(("size", "servers"), [(1, False), (2, True), (3, False)])
@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_scenario(body, size, servers):
    run_world(size, body, world=ThreadWorld(size, partition_bytes=1024), servers=servers)


def moved(bps: Any, rank: int, size: int, options: dict[str, Any]) -> tuple[int, int, list[float]]:
    """Payload bytes of the second step each way, and the parameters after it."""
    model = fill(nn.Sequential(nn.Linear(64 * size, 256, bias=False), nn.Linear(256, 64 * size, bias=False)))
    optimizer = bps.DistributedOptimizer(torch.optim.Adam(model.parameters()), **options)
    counts = []
    for _ in range(2):
        bps.barrier()
        before = bps.stats()
        bps.barrier()
        model(torch.full((2, 64 * size), rank + 1.0)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        bps.barrier()
        counts.append([bps.stats()[f"payload_{way}"] - before[f"payload_{way}"] for way in ("sent", "received")])
    return *counts[1], flat(model).tolist()


@pytest.mark.parametrize("size", [2, 4, 8])
def test_bytes_are_those_of_an_all_reduce(size):
    """2(n-1)/n M each way, over TCP; beside that what announces messages, 62 bytes each, and the control vector."""
    model_bytes = 4 * 2 * 256 * 64 * size
    expected = 2 * (size - 1) * model_bytes // size
    runs = [run_native_world(size, moved, options, partition_bytes=256 << 10) for options in ({}, sharded.SHARDED)]
    for results in runs:
        for sent, received, _ in results:
            assert expected <= sent < expected * 1.004 + 512 and expected <= received < expected * 1.004 + 512
    # Of two ranks sums have one order only; of more, this is said in docs/how-to/sharding.md.
    plain, ours = (torch.tensor([result[2] for result in results]) for results in runs)
    assert torch.equal(ours, ours[:1].expand_as(ours))
    torch.testing.assert_close(ours, plain, rtol=0 if size == 2 else 1e-5, atol=0 if size == 2 else 1e-7)


@pytest.mark.parametrize(("way", "wire"), [("bf16", 0.5), ({"*": "int8"}, 0.25), ({"*": "fixed16"}, 0.5)])
def test_what_is_cast_or_encoded_saves_its_bytes_on_the_way_to_the_shares(way, wire):
    """(n-1)/n M each way for the parameters, and as much times what is left of a gradient; the rest is scales."""
    size = 2
    model_bytes = 4 * 2 * 256 * 64 * size
    expected = (size - 1) * model_bytes / size * (1 + wire)
    results = run_native_world(size, moved, {"compression": way, **sharded.SHARDED}, partition_bytes=256 << 10)
    for sent, received, _ in results:
        assert expected <= sent < expected * 1.02 + 2048 and expected <= received < expected * 1.02 + 2048
    weights = torch.tensor([result[2] for result in results])
    assert torch.equal(weights, weights[:1].expand_as(weights))


def test_shares_are_cut_anew_over_real_links():
    run_native_world(2, sharded_tuned.nothing_changes, partition_bytes=1024)


class PlainWorker(LocalWorker):
    """A worker whose groups can't encode."""

    coded_scatter = None


@pytest.mark.parametrize("way", ["int8", Compress("onebit", momentum=0.9), Compress("onebit", warmup=((5, None),))])
def test_a_codec_is_refused_where_the_worker_cannot_encode_for_shares(way):
    import byteps_like.torch as bps

    named = [("w", nn.Parameter(torch.ones(8, 8)))]
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.1)
    with runtime.bound(PlainWorker()):
        with pytest.raises(bps.InvalidArgumentError, match=r"PlainWorker.*coded_scatter.*'(int:bits=8|onebit)"):
            bps.DistributedOptimizer(optimizer, named, compression={"w": way}, **sharded.SHARDED)
        bps.DistributedOptimizer(optimizer, named, compression={"w": "bf16"}, **sharded.SHARDED).close()


class LateLane:
    """A lane whose reduce-scatter of `late` ends when somebody's all-gather begins."""

    events: list[str]

    def __init__(self, number: int, events: list[str], late: bool, held: list[Any]) -> None:
        self._number, self._events, self._late, self._held = number, events, late, held

    def reduce_scatter(self, *_: Any) -> Any:
        self._events.append(f"reduce {self._number}")
        return LateOperation(self._held) if self._late else LocalOperation()

    def all_gather(self, *_: Any) -> Any:
        self._events.append(f"gather {self._number}")
        while self._held:
            self._held.pop()()
        return LocalOperation()


class LateOperation(LocalOperation):
    def __init__(self, held: list[Any]) -> None:
        self._held = held

    def on_done(self, callback: Any) -> None:
        self._held.append(callback)


def ordered_events(late: int) -> list[str]:
    """Of a step of a world of one with two layers of a chunk each; the reduction of chunk `late` is late."""
    import byteps_like.torch as bps

    events: list[str] = []
    with runtime.bound(LocalWorker(partition_bytes=4096)), pytest.MonkeyPatch.context() as patch:
        model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), shard="optimizer")
        (arena,) = optimizer._distribution.reducer.arenas
        held: list[Any] = []
        arena.lanes = [LateLane(number, events, number == late, held) for number in range(2)]
        arena.wire.scatters = arena.lanes
        update = SliceStep.update

        def noted(step: SliceStep, pairs: Any) -> None:
            pairs = list(pairs)
            events.append(f"update {int(pairs[0][0] is model[0].weight)}")
            update(step, pairs)

        patch.setattr(SliceStep, "update", noted)
        model[0].weight.register_post_accumulate_grad_hook(lambda _: events.append("backward ends"))
        model(torch.ones(1, 32)).sum().backward()
        optimizer.step()
        optimizer.close()
    return events


def test_chunks_are_sent_within_backward_and_go_on_by_themselves():
    # The layer nearest to the input is in chunk 1, and first where both are there.
    assert sorted(ordered_events(late=-1)[:3]) == ["backward ends", "reduce 0", "reduce 1"]
    assert ordered_events(late=-1)[0] == "reduce 0"
    assert ordered_events(late=-1)[3:] == ["update 1", "gather 1", "update 0", "gather 0"]
    # One whose reduction is late keeps nobody waiting: it ends here only when another is gathered.
    assert ordered_events(late=1)[3:] == ["update 0", "gather 0", "update 1", "gather 1"]


def test_a_world_that_has_ended_keeps_no_shares():
    import byteps_like.torch as bps

    with runtime.bound(LocalWorker()):
        layer = nn.Linear(3, 3)
        optimizer = bps.DistributedOptimizer(torch.optim.Adam(layer.parameters()), shard="optimizer")
    with runtime.bound(LocalWorker()), pytest.raises(bps.ShutdownError, match="state_dict"):
        optimizer.step()


def test_shares_are_of_the_ranks_that_they_were_cut_over():
    import byteps_like.torch as bps

    worker = LocalWorker()
    with runtime.bound(worker):
        layer = nn.Linear(3, 3)
        optimizer = bps.DistributedOptimizer(torch.optim.Adam(layer.parameters()), shard="optimizer")
        layer(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        worker.standing = Standing(0, (1, 2))  # another view: a second worker has joined
        with pytest.raises(bps.ShutdownError, match="state_dict"):
            layer(torch.ones(2, 3)).sum().backward()
