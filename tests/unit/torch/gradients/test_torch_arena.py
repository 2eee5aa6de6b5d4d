"""Where gradients live, when partitions are sent, and that the layout follows backward."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.torch.gradients import slot
from byteps_like.torch.job import runtime
from byteps_like.worker.local import LocalWorker
from tests.fakes.spying_worker import Spy
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, loss_of, mlp, share


@pytest.fixture
def spy():
    torch.set_num_threads(1)
    worker = Spy()
    with runtime.bound(worker):
        yield worker


def one_backward(model, optimizer, step=0):
    optimizer.zero_grad()
    loss_of(model, *batch(step)).backward()


def test_gradients_are_aligned_views_of_one_buffer(spy):
    model = mlp()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    one_backward(model, optimizer)
    storages = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(storages) == 1
    assert all(p.grad.data_ptr() % 64 == 0 for p in model.parameters())
    assert storages.pop() % 4096 == 0


def test_each_partition_is_sent_once_and_most_within_backward(spy):
    model = mlp(widths=(20, 40, 40, 40, 5))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        spy.sent.clear()
        one_backward(model, optimizer, step)
        early = sorted(part for parts in spy.sent for part in parts)
        optimizer.step()
        everything = sorted(part for parts in spy.sent for part in parts)
        assert everything == list(range(len(spy.declared.partitions)))
        # The control elements' partition waits for step(); in the first step the guess at the order may cost more.
        assert len(early) >= len(everything) - 1 - (step == 0)


@pytest.mark.parametrize("crosses", [False, True])
def test_layers_near_the_input_go_first_where_forward_waits_for_its_own_only(spy, crosses):
    model = mlp(widths=(20, 40, 40, 40, 5))
    more = {"cross_barrier": True, "model": model} if crosses else {}
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **more)
    for step in range(2):
        spy.sent.clear()
        spy.priorities.clear()
        one_backward(model, optimizer, step)
        optimizer.step()
    assert len(spy.sent) > 3
    assert spy.priorities == ([parts[0] for parts in spy.sent] if crosses else [0] * len(spy.sent))


def test_a_priority_that_is_asked_for_is_kept():
    seen = {}

    class Worker(LocalWorker):
        def push_pull(self, declared, address, op, *, root=0, parts=None, priority=None):
            seen[declared.spec.name] = declared.spec.priority if priority is None else priority
            return super().push_pull(declared, address, op, root=root, parts=parts, priority=priority)

    with runtime.bound(Worker()):
        bps.declare("told", torch.ones(3), priority=7)
        bps.push_pull(torch.ones(3), name="told")
        bps.push_pull(torch.ones(3), name="asked", priority=5)
        bps.push_pull(torch.ones(3), name="plain")
    assert {name.partition(" ")[0].rpartition(".")[2]: value for name, value in seen.items()} == {
        "told": 7,
        "asked": 5,
        "plain": 0,
    }


def test_layout_follows_backward(spy):
    class Crossed(torch.nn.Module):
        """Used in the opposite of the order in which its layers were made."""

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(20, 20) for _ in range(6))

        def forward(self, x):
            for layer in reversed(self.layers):
                x = layer(x).tanh()
            return x

    model = Crossed()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    firsts = []
    for _ in range(3):
        optimizer.zero_grad()
        spy.sent.clear()
        model(torch.ones(2, 20)).sum().backward()
        firsts.append(spy.sent[0][0])
        optimizer.step()
        addresses = [layer.weight.grad.data_ptr() for layer in model.layers]
        assert addresses == sorted(addresses)
    assert firsts[0] > 0 and firsts[1:] == [0, 0]
    gradients = [p.grad.clone() for p in model.parameters()]
    optimizer.close()
    model.zero_grad()
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.add_(gradient, alpha=0.1)
    model(torch.ones(2, 20)).sum().backward()
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-5)


def test_gradients_survive_an_arena_that_is_made_anew_between_round_and_step(spy):
    """The table's gradient leaves its arena after the first round. What is left gets another arena, which is cut as was
    asked for before: the gradients of that round are for the step to come."""
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 3))
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    reducer = optimizer._distribution.reducer
    reducer.recut(reducer.route, 4096)
    model(torch.arange(5)).square().sum().backward()
    expected = model[1].weight.grad.clone()
    optimizer.synchronize()
    assert len(reducer.sparse) == 1 and expected.abs().sum() > 0
    assert torch.equal(model[1].weight.grad, expected)


def test_all_ranks_take_the_order_of_rank_0():
    def body(bps, rank, size):
        model = mlp(widths=(20, 30, 30, 5))
        heads = [mlp(widths=(5, 30, 1), seed=k) for k in (5, 6)]
        parameters = [p for module in [model, *heads] for p in module.parameters()]
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(parameters, lr=0.1))
        for step in range(3):
            optimizer.zero_grad()
            hidden = model(share(batch(step)[0], rank, size))
            # Ranks finish their heads in different orders.
            for head in heads if rank == 0 else heads[::-1]:
                head(hidden.detach()).square().mean().backward()
            hidden.square().mean().backward()
            optimizer.step()
        base = min(p.grad.data_ptr() for p in parameters)
        return [p.grad.data_ptr() - base for p in parameters]

    offsets = run_world(3, body, world=ThreadWorld(3, partition_bytes=512))
    assert offsets[0] == offsets[1] == offsets[2]


def test_compressed_gradients_stay_outside_the_arena(spy):
    model = mlp(torch.float32)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), compression=bps.Compression.fp16)
    one_backward(model, optimizer)
    optimizer.step()
    elements = sum(p.numel() for p in model.parameters())
    assert spy.declared.spec.nbytes < 2 * elements + 64 * 10
    assert len({p.grad.untyped_storage().data_ptr() for p in model.parameters()}) > 1


def test_sparse_gradients_are_made_dense_with_one_warning_where_there_are_no_collectives(monkeypatch):
    monkeypatch.setattr(slot, "_warned_sparse", False)
    monkeypatch.setattr(runtime.Runtime, "has_collectives", False)

    def body(bps, rank, size):
        table = torch.nn.Embedding(10, 3, sparse=True)
        plain = torch.optim.SGD(table.parameters(), lr=0.1)
        optimizer = bps.DistributedOptimizer(plain, cross_barrier=True, model=table)
        for _ in range(3):
            optimizer.zero_grad()
            table(torch.tensor([1, 2, 2])).sum().backward()
            optimizer.step()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_world(2, body)
    assert sum("made dense" in str(item.message) for item in caught) == 1


def test_sparse_gradients_leave_the_arena(spy):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.dense = torch.nn.Embedding(1000, 8, sparse=True), torch.nn.Linear(8, 2)

    model = Model()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    sizes = []
    for _ in range(3):
        optimizer.zero_grad()
        model.dense(model.table(torch.tensor([3, 5]))).sum().backward()
        sizes.append(sum(arena.data.numel() for arena in optimizer._distribution.reducer.parameters.buckets))
        optimizer.step()
        assert model.table.weight.grad.is_sparse and model.table.weight.grad._nnz() == 2
    assert sizes[0] > 8000 and sizes[1] == sizes[2] < 100


def test_memory_lives_as_long_as_a_view_of_it():
    memory = LocalWorker().allocate(4096)
    alive = weakref.ref(memory)
    view = tensor_over(memory, torch.float32)[10:20].view(2, 5)
    del memory
    gc.collect()
    assert alive() is not None
    view.fill_(1.0)
    del view
    gc.collect()
    assert alive() is None


def test_arena_is_freed_with_its_optimizer(spy):
    model = mlp()
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    one_backward(model, optimizer)
    arena = weakref.ref(optimizer._distribution.reducer.parameters.buckets[0])
    del optimizer
    assert arena() is None
    model.zero_grad()
    loss_of(model, *batch(0)).backward()
