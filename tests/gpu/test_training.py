"""Training on a GPU equals that on the CPU; ranks are threads on one device, each on a stream of its own.

Not run yet: there was no device where this was written.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.fakes.thread_process_groups import run_groups
from tests.fakes.thread_world import ThreadWorld, run_world

CUDA = torch.device("cuda", 0)
STEPS = 5


def images() -> nn.Module:
    """The network of examples/digits.py, in float64."""
    torch.manual_seed(1)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)]
    return nn.Sequential(*layers).double()


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 1, 8, 8, generator=generator, dtype=torch.float64)
    return x, torch.randint(10, (8,), generator=generator)


def alone() -> torch.Tensor:
    """On the CPU, by one process."""
    model = images()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return nn.utils.parameters_to_vector(model.parameters()).detach()


def together(bps, rank, size, change=lambda model: model):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        model = images().to(CUDA)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        forward = change(model)
        for step in range(STEPS):
            optimizer.zero_grad()
            x, y = (part[rank::size].to(CUDA) for part in batch(step))
            functional.cross_entropy(forward(x), y).backward()
            optimizer.step()
        return nn.utils.parameters_to_vector(model.parameters()).detach().cpu()


@pytest.mark.parametrize("servers", [True, False])
def test_equals_the_cpu(servers):
    found = run_world(2, together, world=ThreadWorld(2, partition_bytes=4096), servers=servers)
    assert torch.equal(found[0], found[1])
    torch.testing.assert_close(found[0], alone())


def test_compiled_models():
    found = run_world(1, together, torch.compile)
    torch.testing.assert_close(found[0], alone())


def test_scaled_steps_are_skipped_on_all_ranks():
    def body(bps, rank, size):
        model = nn.Linear(4, 4).to(CUDA)
        nn.init.ones_(model.weight)
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0)
        factor = float("inf") if rank == 1 else 1.0
        scaler.scale((model(torch.ones(1, 4, device=CUDA)) * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return bool((model.weight == 1).all()), scaler.get_scale()

    assert run_world(2, body) == [(True, 2.0)] * 2


def test_work_waits_on_streams():
    def body(group, rank, size):
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor = torch.zeros(1 << 20, device=CUDA)
            torch.cuda._sleep(50_000_000)
            tensor += rank + 1.0  # the copy down has to come after it
            work = group.allreduce([tensor])
            work.wait()
            total = tensor.sum() / tensor.numel()  # and this after the copy up
            future = group.allreduce([tensor]).get_future().wait()[0]
            return total.item(), future.mean().item()

    assert run_groups(2, body) == [(3.0, 6.0)] * 2


def test_graphs_are_refused():
    def body(bps, rank, size):
        tensor = torch.zeros(4, device=CUDA)
        bps.push_pull(tensor)
        graph = torch.cuda.CUDAGraph()
        with pytest.raises(bps.InvalidArgumentError, match="CUDA graph"), torch.cuda.graph(graph):
            bps.push_pull(tensor)

    run_world(1, body)


def test_no_memory_is_left():
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    run_world(2, together)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
