"""Tensors of a device that the host plays (tests/fakes/software_device.py): the scenarios are those of the CPU's."""

from __future__ import annotations

import gc
import math
import threading

import pytest
import torch
import torch.distributed as dist

from byteps_like.errors import InvalidArgumentError, PeerLostError, ShutdownError
from byteps_like.torch.c10d.options import GroupOptions
from byteps_like.torch.device import devices
from byteps_like.torch.gradients.slot import Slot, stage_all
from byteps_like.torch.job import runtime
from tests.fakes.ddp_bucket import Bucket
from tests.fakes.native_groups import run_native_groups, sent_across
from tests.fakes.software_device import DEADLINE, SoftwareDevice, software_device
from tests.fakes.thread_process_groups import run_groups
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.c10d import calls as c10d
from tests.scenarios.models import batch, distance, flat, loss_of, mlp, share
from tests.scenarios.operations import calls as operations
from tests.scenarios.optimizers import replicas
from tests.scenarios.optimizers import updates as optimizers

ON_HOSTS = {
    "every_class",  # it is long, and which classes of optimizers there are is no matter of devices
    "attributes_of_horovods",  # of sharded ones, too, which are refused on devices
    "a_call_that_others_make_first",  # on devices the 33rd call without a name blocks (docs/how-to/gpu.md)
}
SCENARIOS = [body for body in (*optimizers.SCENARIOS, *operations.SCENARIOS) if body.__name__ not in ON_HOSTS]
SCENARIOS.append(replicas.optimizer_state_is_dropped)  # one rank's gradients are in flight for longer than what follows


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "allreduce"])
@pytest.mark.parametrize("body", SCENARIOS, ids=lambda body: body.__name__)
def test_scenarios(body, servers):
    with software_device() as device:
        run_world(2, body, world=ThreadWorld(2, partition_bytes=1024), servers=servers)
    assert device.waits == 0


@pytest.mark.parametrize("body", c10d.SCENARIOS, ids=lambda body: body.__name__)
def test_collectives(body):
    with software_device():
        run_groups(2, body)


@pytest.mark.parametrize("compression", [None, "bf16", "onebit:block=64"])
def test_the_hook_of_ddp(compression):
    def body(bps, rank, size):
        parameters = [torch.zeros(40, 5), torch.zeros(7)]
        gradients = [torch.randn(item.shape, generator=torch.Generator().manual_seed(rank)) for item in parameters]
        state = bps.DDPHookState(compression=compression)
        bucket = Bucket(0, parameters, gradients)
        return bps.ddp_hook(state, bucket).wait().clone()

    expected = run_world(2, body)
    with software_device() as device:
        found = run_world(2, body)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert device.copied["down"] == device.copied["up"] > 0


def one_step(model, optimizer, seed):
    x, y = batch(seed)
    loss_of(model, x, y).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("gates", [True, False], ids=["gates", "host"])
def test_backward_waits_for_no_copy_and_step_for_none_up(gates):
    """Copies down stand still while backward runs, so nothing is pushed; then those up while step() runs."""
    world = ThreadWorld(2, partition_bytes=1024)
    meeting = threading.Barrier(2)

    def body(bps, rank, size):
        model, reference = mlp(), mlp()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        x, y = batch(1)
        for _ in range(2):  # in the first, the order of layers is agreed on
            meeting.wait(DEADLINE)
            pushed = sum(world.pushed.values())
            if rank == 0:
                device.running.clear()
            meeting.wait(DEADLINE)
            loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
            meeting.wait(DEADLINE)
            assert sum(world.pushed.values()) == pushed
            meeting.wait(DEADLINE)
            device.running.set()
            optimizer.step()
            optimizer.zero_grad()
            loss_of(reference, x, y).backward()
            plain.step()
            plain.zero_grad()
        return distance(flat(model), flat(reference))

    with software_device() as device:
        device.gates = gates
        assert max(run_world(2, body, world=world)) < 1e-12


def test_streams_wait_for_peers_and_hosts_do_not():
    """Rank 1 comes only when rank 0 has queued that its stream waits."""
    queued = threading.Event()

    def body(group, rank, size):
        tensor = torch.full((3,), rank + 1.0)
        if rank == 1:
            assert queued.wait(DEADLINE)
            group.allreduce([tensor]).wait()
            return tensor
        work = group.allreduce([tensor])
        device.lazy = True
        work.block_current_stream()
        assert not work.is_completed() and tensor.tolist() == [1.0] * 3
        queued.set()
        device.settle()
        assert work.is_completed() and work.is_success()
        return tensor

    with software_device() as device:
        found = run_groups(2, body)
    assert [tensor.tolist() for tensor in found] == [[3.0] * 3] * 2


def test_what_a_stream_waits_for_may_fail():
    def body(group, rank, size):
        work = group.allreduce([torch.ones(1)])
        device.lazy = True
        work.block_current_stream()
        group.abort()
        device.settle()
        with pytest.raises(ShutdownError):
            work.wait()

    with software_device() as device:
        run_groups(2, lambda group, rank, size: body(group, rank, size) if rank == 0 else None)


def test_what_a_stream_waits_for_comes_after_the_end_of_the_group_too():
    """Rank 0 leaves while its stream waits for rank 1: it goes on once that has come."""
    left = threading.Event()

    def body(group, rank, size):
        tensor = torch.full((3,), rank + 1.0)
        if rank == 1:
            assert left.wait(DEADLINE)
            group.allreduce([tensor]).wait()
            return tensor
        work = group.allreduce([tensor])
        device.lazy = True
        work.block_current_stream()
        for stage in group.aboard._stages.values():
            stage.close()
        left.set()
        device.settle()
        assert work.is_success()
        return tensor

    with software_device() as device:
        found = run_groups(2, body)
    assert [tensor.tolist() for tensor in found] == [[3.0] * 3] * 2


class Behind:
    """Two ranks whose first steps are done, and whose copies of the next stand still while `step` returns."""

    def __init__(self, change):
        self._meeting = threading.Barrier(2)
        self._change = change
        with software_device() as self.device:
            self.results = run_world(2, self._body, world=ThreadWorld(2, partition_bytes=1024))

    def _meet(self, action=None):
        if self._meeting.wait(DEADLINE) == 0 and action is not None:
            action()
        self._meeting.wait(DEADLINE)

    def _stop(self):
        self.device.lazy = True
        self.device.running.clear()

    def _go_on(self):
        threading.Timer(0.2, self.device.running.set).start()

    def _body(self, bps, rank, size):
        model = mlp()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        one_step(model, optimizer, 0)
        optimizer.step()  # a second round: its order is settled
        self._meet(self._stop)
        try:
            loss_of(model, *batch(1)).backward()
            (arena,) = optimizer._distribution.reducer.parameters.buckets
            flown = [handle for _, handle in arena._flights.flown]
            return self._change(self, bps, optimizer, model, flown)
        finally:
            self.device.running.set()


def test_nothing_changes_between_rounds_before_the_last_has_landed():
    def change(world, bps, optimizer, model, flown):
        optimizer.synchronize()
        ended = [handle._ended.is_set() for handle in flown]  # the copies up are the streams' to wait for
        reducer = optimizer._distribution.reducer
        world._meet(world._go_on)
        reducer.recut(reducer.route, 2048)
        return any(ended), all(handle._ended.is_set() for handle in flown)

    assert Behind(change).results == [(False, True)] * 2


def test_what_failed_while_a_stream_waited_is_raised_in_the_next_round():
    def change(world, bps, optimizer, model, flown):
        optimizer.synchronize()
        for handle in flown:
            handle._launch = lost
        world._meet(world._go_on)
        with pytest.raises(PeerLostError, match="rank 7 is gone"):
            one_step(model, optimizer, 2)
        return True

    def lost():
        raise PeerLostError("rank 7 is gone")

    assert Behind(change).results == [True, True]


def test_clipping_leaves_what_is_no_number_where_it_is():
    slot = Slot("weight", torch.zeros(3), 0, torch.float32, limit=1.0)
    slot.place(torch.zeros(3), 0)
    for gradient, expected in (([3.0, 4.0, 0.0], [0.6, 0.8, 0.0]), ([0.1, math.nan, 0.0], [0.1, math.nan, 0.0])):
        slot.parameter.grad = torch.tensor(gradient)
        stage_all([slot], 1.0)
        torch.testing.assert_close(slot.region, torch.tensor(expected), equal_nan=True)


def test_work_and_its_future_wait_on_streams():
    def body(group, rank, size):
        tensor = torch.full((3,), rank + 1.0, requires_grad=False)
        version = tensor._version
        work = group.allreduce([tensor])
        assert work.get_future().wait()[0] is tensor and tensor.tolist() == [3.0] * 3
        assert tensor._version == version, "copies come at any time, which autograd must not see"

    with software_device() as device:
        run_groups(2, body)
        assert device.waits == 0 and {100, 101} <= set(device.kept) | {100, 101}


def test_a_future_that_completes_does_not_hold_the_program_s_stream():
    def body(group, rank, size):
        tensors = [torch.ones(3), torch.ones(2)]
        future = group.allreduce_coalesced(tensors).get_future()
        single = group.allreduce([torch.ones(4)]).get_future()
        future.wait()
        single.wait()
        return [tensor.tolist() for tensor in tensors]

    with software_device() as device:
        device.lazy = True
        assert run_groups(2, body) == [[[2.0] * 3, [2.0] * 2]] * 2
        assert device.waits == 0


def test_calls_keep_their_order_whatever_they_are_on():
    def body(group, rank, size):
        for _ in range(10):
            on_device, on_host = torch.ones(2), host(torch.full((2,), 2.0))
            first = group.allreduce([on_device])
            second = group.broadcast([on_host], 1 - rank if size == 1 else 0)
            second.wait()
            first.wait()
            assert on_device.tolist() == [2.0] * 2 and on_host.tolist() == [2.0] * 2

    with software_device() as device:

        def host(tensor):
            copy = device.empty(tensor)
            return copy.copy_(tensor)

        run_groups(2, body)


def test_tensors_of_this_host_and_of_others_beside_those_of_a_device():
    device, other, alien = SoftwareDevice(), SoftwareDevice("software:1"), torch.ones(2)

    def place(tensor):
        if tensor.data_ptr() == alien.data_ptr():
            return other
        return device if device.holds(tensor) else None

    def body(group, rank, size):
        gathered = [device.empty(torch.ones(2)) for _ in range(size)]
        group.allgather([gathered], [torch.full((2,), rank + 1.0)]).wait()
        with pytest.raises(InvalidArgumentError, match="tensors are on software:0 and on"):
            group.allgather([[torch.ones(2), alien]], [torch.ones(2)])
        return [tensor.tolist() for tensor in gathered]

    with devices.replace(place):
        assert run_groups(2, body) == [[[1.0] * 2, [2.0] * 2]] * 2
    device.close()


def test_futures_of_several_calls_come_after_their_copies():
    def body(group, rank, size):
        tensors = [torch.full((2,), rank + 1.0), torch.full((3,), rank + 2.0)]
        work = group.allreduce_coalesced(tensors)
        future = work.get_future()
        future.wait()
        return [tensor.tolist() for tensor in tensors]

    expected = [[3.0] * 2, [5.0] * 3]
    with software_device():
        assert run_groups(2, body) == [expected] * 2


def test_graphs_that_are_captured_are_refused():
    def body(bps, rank, size):
        model = mlp()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        one_step(model, optimizer, 0)
        device.captures = True
        for call in (lambda: bps.push_pull(torch.ones(2)), lambda: one_step(model, optimizer, 1)):
            with pytest.raises(bps.InvalidArgumentError, match="while a CUDA graph is captured on software:0"):
                call()
        device.captures = False

    with software_device() as device:
        run_world(1, body)

        def capturing(group, rank, size):
            device.captures = True
            with pytest.raises(InvalidArgumentError, match="allreduce while a CUDA graph"):
                group.allreduce([torch.ones(2)])

        run_groups(1, capturing)


def test_parameters_on_two_devices_and_the_host():
    """Three arenas of one element type, under the same names on ranks whose devices have other numbers."""
    played = [SoftwareDevice(f"software:{number}") for number in range(2)]

    def body(bps, rank, size):
        model, reference = mlp(), mlp()
        for number, parameter in enumerate(model.parameters()):
            places[parameter.data_ptr()] = (None, played[rank], played[1 - rank])[number % 3]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        x, y = batch(1)
        loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
        optimizer.step()
        loss_of(reference, x, y).backward()
        torch.optim.SGD(reference.parameters(), lr=0.1).step()
        assert distance(flat(model), flat(reference)) < 1e-12
        return sorted(runtime.current().arenas)

    places = {}
    with devices.replace(lambda tensor: places.get(tensor.data_ptr())):
        names = run_world(2, body)
    for device in played:
        device.close()
    assert names[0] == names[1] and len(names[0]) == 3


def test_memory_is_page_locked_as_long_as_it_is_used():
    def body(bps, rank, size):
        model = mlp()
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        one_step(model, optimizer, rank)
        assert device.locked > 0
        optimizer.close()

    with software_device() as device:
        run_world(2, body)
        gc.collect()
        assert device.locked == 0


@pytest.mark.parametrize("choice", [{"compression": "powersgd"}, {"shard": "optimizer"}])
def test_what_is_computed_on_the_host_is_refused(choice):
    def body(bps, rank, size):
        with pytest.raises(bps.InvalidArgumentError, match="must be on the CPU: "):
            bps.DistributedOptimizer(torch.optim.SGD(mlp(widths=(256, 256)).parameters(), lr=0.1), **choice)

    with software_device():
        run_world(2, body)


def test_local_ranks_move_their_shares_between_hosts():
    """Two hosts of two ranks, gloo in NCCL's place: each rank sends half of what it would, in calls of any size."""

    def body(group, rank):
        found = []
        group.allreduce([torch.ones(8)]).wait()
        before = sent_across(group)
        for numel, op in ((4096, dist.ReduceOp.SUM), (4095, dist.ReduceOp.SUM), (4096, dist.ReduceOp.AVG)):
            tensor = torch.arange(numel, dtype=torch.float64) * (rank + 1)
            works = [group.allreduce([tensor], op), group.allreduce([torch.ones(8)])]
            for work in works:
                work.wait()
            found.append(tensor)
        return found, sent_across(group) - before

    with software_device():
        options = GroupOptions(local={"cpu": "gloo"})
        results = run_native_groups([0, 0, 1, 1], body, store=dist.HashStore(), options=options)
    base = torch.arange(4096, dtype=torch.float64)
    for (total, odd, mean), sent in results:
        assert torch.equal(total, base * 10) and torch.equal(odd, base[:4095] * 10) and torch.equal(mean, base * 2.5)
        halves = 3 * (2048 * 8 + 4 * 4)
        assert halves <= sent < halves + 6 * 64, "half of each tensor, once, and what tells that calls are the same"
