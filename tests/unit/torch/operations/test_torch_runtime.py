"""init and shutdown of a process, and the world of one."""

from __future__ import annotations

import threading

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, MismatchError, NotInitializedError, ShutdownError
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.local import LocalWorker


@pytest.fixture(autouse=True)
def _down():
    bps.shutdown()
    yield
    bps.shutdown()


@pytest.mark.parametrize(
    "call",
    [bps.rank, bps.size, bps.local_rank, bps.local_size, bps.barrier, lambda: bps.push_pull(torch.ones(1)),
     lambda: bps.broadcast(torch.ones(1), 0), lambda: bps.broadcast_object(1), lambda: bps.allgather_object(1),
     lambda: bps.broadcast_parameters({}), lambda: bps.declare("a"),
     lambda: bps.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)])),
     lambda: bps.DistributedDataParallel(torch.nn.Linear(1, 1))],
)  # fmt: skip
def test_needs_init(call):
    with pytest.raises(NotInitializedError, match="init") as raised:
        call()
    assert isinstance(raised.value, ValueError)  # Horovod's, which its scripts catch


def test_horovods_places_of_init():
    assert bps.global_process_set.ranks == []
    for comm in ([0], [1, 2], object()):
        for call in (lambda comm=comm: bps.init(comm), lambda comm=comm: bps.init(comm=comm)):
            with pytest.raises(InvalidArgumentError, match="launcher"):
                call()
            assert not bps.initialized()
    bps.init([], "dynamic")
    bps.shutdown()
    with pytest.raises(InvalidArgumentError, match="already"):
        bps.init(None, [[0]])


def test_init_alone_is_a_world_of_one():
    assert not bps.initialized()
    before = set(threading.enumerate())  # those of other tests may end meanwhile
    bps.init()
    bps.init()
    assert bps.initialized() and bps.is_initialized()
    assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
    assert set(threading.enumerate()) <= before
    bps.barrier()
    bps.shutdown()
    assert not bps.initialized()


def test_suspend_and_resume_keep_the_optimizer():
    bps.init()
    parameter = torch.ones(3, requires_grad=True)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
    parameter.sum().backward()
    optimizer.step()
    bps.suspend()
    assert not bps.initialized()
    assert (bps.rank(), bps.size(), bps.local_rank(), bps.local_size()) == (0, 1, 0, 1)
    with pytest.raises(NotInitializedError):
        parameter.sum().backward()
    bps.resume(1, 0)
    optimizer.zero_grad()
    parameter.sum().backward()
    optimizer.step()
    assert parameter.tolist() == [-1.0] * 3


def test_only_who_is_initialized_can_be_suspended_and_shutdown_forgets_the_world():
    with pytest.raises(NotInitializedError):
        bps.suspend()
    bps.init()
    bps.suspend()
    bps.shutdown()
    with pytest.raises(NotInitializedError):
        bps.rank()


def test_names_of_byteps_modules():
    from byteps_like.torch import cross_barrier
    from byteps_like.torch.parallel import DistributedDataParallel

    assert DistributedDataParallel is bps.DistributedDataParallel is bps.parallel.DistributedDataParallel
    names = "Compression byteps_push_pull poll synchronize init shutdown size local_size rank local_rank CrossBarrier"
    for name in (names + " broadcast_parameters broadcast_optimizer_state").split():
        assert getattr(cross_barrier, name) is getattr(bps, name), name


def test_init_refuses_what_it_cannot_do():
    with pytest.raises(InvalidArgumentError, match="process set"):
        bps.init(process_sets=[1])
    with pytest.raises(InvalidArgumentError, match="comm"):
        bps.init(comm=[0])
    bps.init(comm=None)


def test_handles_of_a_world_that_was_left():
    bps.init()
    handle = bps.push_pull_async(torch.ones(2))
    bps.shutdown()
    bps.init()
    assert bps.synchronize(handle).tolist() == [1.0, 1.0]


class TestLocalWorker:
    def test_is_a_worker(self):
        assert isinstance(LocalWorker(), Worker)

    def test_partitions_cover_the_tensor(self):
        worker = LocalWorker(partition_bytes=64)
        (declared,) = worker.declare([TensorSpec("a", DType.FLOAT32, (5, 7))])
        assert [(part.offset, part.nbytes) for part in declared.partitions] == [(0, 64), (64, 64), (128, 12)]
        (empty,) = worker.declare([TensorSpec("b", DType.FLOAT32, (0, 3))])
        assert empty.partitions == () and empty.tensor_id != declared.tensor_id

    def test_memory_is_zero_aligned_and_writable(self):
        memory = LocalWorker().allocate(10000)
        assert memory.address % 4096 == 0 and memory.nbytes == 10000

    def test_checks(self):
        worker = LocalWorker(partition_bytes=64)
        (declared,) = worker.declare([TensorSpec("a", DType.FLOAT32, (32,))])
        with pytest.raises(MismatchError, match="float32"):
            worker.declare([TensorSpec("a", DType.INT32, (32,))])
        address = worker.allocate(128).address
        with pytest.raises(InvalidArgumentError, match="partitions"):
            worker.push_pull(declared, address, Op.SUM, parts=range(1, 3))
        with pytest.raises(InvalidArgumentError, match="rank 1"):
            worker.push_pull(declared, address, Op.BROADCAST, root=1)
        with pytest.raises(InvalidArgumentError, match="no address"):
            worker.push_pull(declared, 0, Op.SUM)
        worker.push_pull(declared, address, Op.SUM, parts=range(1, 2)).wait()
        worker.close()
        worker.close()
        with pytest.raises(ShutdownError):
            worker.push_pull(declared, address, Op.SUM)
