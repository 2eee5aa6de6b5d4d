"""Which way the ranks of a host reduce among themselves, and shares by CUDA IPC over the software libcuda."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import torch
import torch.distributed as dist

from byteps_like.errors import InvalidArgumentError, ShutdownError
from byteps_like.torch.c10d.options import GroupOptions
from byteps_like.torch.device import devices
from byteps_like.torch.job import runtime
from byteps_like.torch.local.choice import PeerMeans, choose
from byteps_like.torch.local.peers_ipc import IpcPeers
from byteps_like.torch.local.peers_nccl import Turns
from byteps_like.torch.local.shares import even_places
from byteps_like.worker.engine.shares import slice_of
from tests.fakes.ddp_bucket import Bucket
from tests.fakes.native_groups import run_native_groups, sent_across
from tests.fakes.settings import configure
from tests.fakes.software_cuda import SoftwareCuda, software_control
from tests.fakes.software_driver import needs_software_driver
from tests.fakes.thread_group import GroupWorld, ThreadGroup
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, distance, flat, loss_of, mlp, share

ONE, OTHER = PeerMeans("a", True, ""), PeerMeans("b", True, "")
PARTS = [PeerMeans("a1", True, "", "0000:17:00.0"), PeerMeans("a2", True, "", "0000:17:00.0")]


@pytest.mark.parametrize(
    ("wanted", "found", "name", "why"),
    [
        ("auto", [ONE, OTHER], "nccl", "a device of its own"),
        ("auto", [ONE, ONE], "ipc", "share a device"),
        ("auto", [ONE, PeerMeans("b", False, "")], "ipc", "no NCCL"),
        ("auto", PARTS, "", "ranks have MIG instances of one GPU (0000:17:00.0), which can't map each other's memory"),
        ("auto", [PARTS[0], PARTS[0]], "ipc", "ranks share a device"),
        (
            "auto",
            [ONE, PeerMeans("a", True, "no kernels")],
            "",
            "and CUDA IPC is not available: local rank 1: no kernels",
        ),
        ("nccl", [ONE, ONE], "nccl", "asked for"),
        ("ipc", [ONE, OTHER], "ipc", "asked for"),
    ],
)
def test_the_choice(wanted, found, name, why):
    chosen, reason = choose(wanted, found)
    assert chosen == name and why in reason


def test_what_can_t_be_chosen():
    with pytest.raises(InvalidArgumentError, match="local rank 0: old driver"):
        choose("ipc", [PeerMeans("a", True, "old driver"), ONE])
    with pytest.raises(InvalidArgumentError, match="'mpi'}} is none of auto, nccl, ipc, gloo".replace("}}", "}")):
        choose("mpi", [ONE, OTHER])


def test_whoever_was_closed_says_so():
    peers = IpcPeers(None, object(), 2)
    peers.close()
    for call in (peers.check, lambda: peers.reduce_scatter(torch.ones(2), torch.ones(1), False)):
        with pytest.raises(ShutdownError, match="reductions among the GPUs of this host were shut down"):
            call()


def test_places_and_slices():
    assert even_places([0, 1, 0, 1]) == [[0, 2], [1, 3]]
    assert even_places([0, 0]) == [[0, 1]]
    assert even_places([0, 1]) is None and even_places([0, 0, 1]) is None
    assert [slice_of(5, 4, rank) for rank in range(4)] == [range(2), range(2, 4), range(4, 5), range(5, 5)]


def test_launches_of_two_kinds_come_in_one_order():
    """Rank 0 launches 2, 1, 2; rank 1's threads come to theirs as they like."""
    world, order, ended = GroupWorld(), [], []
    turns = [Turns(ThreadGroup(world, "turns", (0, 1), rank)) for rank in range(2)]

    def launch(kind, count):
        for _ in range(count):
            with turns[1].take(kind):
                order.append(kind)

    threads = [threading.Thread(target=launch, args=(1, 1)), threading.Thread(target=launch, args=(2, 2))]
    threads[0].start()
    time.sleep(0.05)
    threads[1].start()
    for kind in (2, 1, 2):
        with turns[0].take(kind):
            pass
    for thread in threads:
        thread.join(10)
    assert order == [2, 1, 2]

    def late():
        with pytest.raises(ShutdownError), turns[1].take(1):
            pass
        ended.append(True)

    thread = threading.Thread(target=late)
    thread.start()
    turns[0].close()
    thread.join(10)
    assert ended


@pytest.fixture
def played():
    """Four ranks' devices, two on each of two hosts; nothing may be misused."""
    control = software_control()
    yield [SoftwareCuda(control, rank % 2) for rank in range(4)]
    gc.collect()
    assert control.software_gpu_misuse() == b""


both_routes = pytest.mark.parametrize("servers", [False, True], ids=["among-workers", "servers"])


def finder(places):
    """Every tensor of a thread is on its own device."""

    def find(tensor):
        device = getattr(places, "device", None)
        return device if device is not None and device.holds(tensor) else None

    return find


@needs_software_driver
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("hosts", [[0, 0, 1, 1], [0, 0]], ids=["two-hosts", "one-host"])
def test_local_ranks_move_their_shares_by_ipc(played, hosts, dtype):
    """As by NCCL, which has its test in test_torch_devices: half of each tensor per rank, once, between hosts."""
    places = threading.local()
    size = len(hosts)

    def body(group, rank):
        places.device, found = played[rank], []
        group.allreduce([torch.ones(8)]).wait()
        before = sent_across(group)
        for numel, op in ((4096, dist.ReduceOp.SUM), (4095, dist.ReduceOp.SUM), (4096, dist.ReduceOp.AVG)):
            tensor = torch.arange(numel, dtype=torch.float32).remainder(8).to(dtype) * (rank + 1)
            works = [group.allreduce([tensor], op), group.allreduce([torch.ones(8)])]
            for work in works:
                work.wait()
            places.device.current().stream.synchronize()
            found.append(tensor)
        return found, sent_across(group) - before

    with devices.replace(finder(places)):
        results = run_native_groups(hosts, body, options=GroupOptions(local={"cpu": "ipc"}))
    base = torch.arange(4096).remainder(8).float()
    total = sum(range(1, size + 1))
    halves = 3 * (2048 * dtype.itemsize + 4 * 4)
    for (whole, odd, mean), sent in results:
        assert torch.equal(whole.float(), base * total) and torch.equal(odd.float(), base[:4095] * total)
        assert torch.equal(mean.float(), base * total / size)
        assert (sent == 0) if size == 2 else (halves <= sent < halves + 6 * 64)


@needs_software_driver
@both_routes
def test_shares_that_were_asked_for_and_can_t_be_are_an_error(played, servers):
    places = threading.local()
    world = ThreadWorld(2)
    world.groups.per_host = 1

    def body(bps, rank, size):
        places.device = played[rank]
        configure(runtime.current(), local_shares="ipc")
        model = mlp().float()
        with pytest.raises(InvalidArgumentError, match="all hosts must have the same number of ranks, at least two"):
            bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    with devices.replace(finder(places)):
        run_world(2, body, world=world, servers=servers)


@needs_software_driver
@both_routes
@pytest.mark.parametrize("hosts", [1, 2])
def test_optimizers_move_shares_of_partitions(played, hosts, servers):
    """Four ranks train as one does; between hosts goes half of each gradient per rank, within one nothing."""
    places = threading.local()
    world = ThreadWorld(4, partition_bytes=1024)
    world.groups.per_host = 4 // hosts

    def body(bps, rank, size):
        device = places.device = played[rank]
        configure(runtime.current(), local_shares="ipc")
        model, reference = mlp().float(), mlp().float()
        with device.in_stream_order():
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            x, y = (item.float() for item in batch(step))
            with device.in_stream_order():
                loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
                optimizer.step()
                optimizer.zero_grad()
            loss_of(reference, x, y).backward()
            plain.step()
            plain.zero_grad()
        device.current().stream.synchronize()
        with pytest.raises(InvalidArgumentError, match="local_shares=off"):
            bps.join()
        sent = sum(parameter.nbytes for parameter in model.parameters()) * 3
        return distance(flat(model), flat(reference)), device.copied["down"] / sent

    with devices.replace(finder(places)):
        results = run_world(4, body, world=world, servers=servers)
    for far, sent in results:
        assert far < 1e-5
        assert sent == 0 if hosts == 1 else 0.45 < sent < 0.55


@needs_software_driver
@both_routes
def test_partitions_go_in_one_order_whatever_that_of_backward(played, servers):
    places, meeting = threading.local(), threading.Barrier(2)
    world = ThreadWorld(2, partition_bytes=1024)
    world.groups.per_host = 2

    def body(bps, rank, size):
        device = places.device = played[rank]
        configure(runtime.current(), local_shares="auto")
        layers = [torch.nn.Linear(16, 16, bias=False) for _ in range(4)]
        x = torch.full((1, 16), rank + 1.0)
        found = []
        with device.in_stream_order():
            named = [(str(number), layer.weight) for number, layer in enumerate(layers)]
            optimizer = bps.DistributedOptimizer(torch.optim.SGD([item for _, item in named], lr=0.0), named)
            for _ in range(3):
                meeting.wait(20)
                order = range(4) if rank else range(3, -1, -1)
                sum((number + 1) * layers[number](x).sum() for number in order).backward()
                optimizer.step()
                found.append([layer.weight.grad.mean().item() for layer in layers])
                optimizer.zero_grad()
        return found

    with devices.replace(finder(places)):
        assert run_world(2, body, world=world, servers=servers) == [[[1.5, 3.0, 4.5, 6.0]] * 3] * 2


@needs_software_driver
@both_routes
@pytest.mark.parametrize("hosts", [1, 2])
def test_the_hook_of_ddp_moves_shares(played, hosts, servers):
    places = threading.local()
    world = ThreadWorld(4, partition_bytes=1024)
    world.groups.per_host = 4 // hosts

    def body(bps, rank, size):
        device = places.device = played[rank]
        configure(runtime.current(), local_shares="ipc")
        state, found = bps.DDPHookState(), []
        with device.in_stream_order():
            for step in range(3):
                parameters = [torch.zeros(40, 16), torch.zeros(7)]
                gradients = [torch.full(item.shape, rank + step + 1.0) for item in parameters]
                future = bps.ddp_hook(state, Bucket(0, parameters, gradients))
                found.append(device.awaited(future).unique().tolist())
        return found, device.copied["down"]

    with devices.replace(finder(places)):
        results = run_world(4, body, world=world, servers=servers)
    for found, down in results:
        assert found == [[2.5], [3.5], [4.5]]
        assert down == (0 if hosts == 1 else pytest.approx(3 * 647 * 4 / 2, rel=0.02))
