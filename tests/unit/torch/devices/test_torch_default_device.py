"""What the runtime makes for itself is in this host's memory, whatever torch.set_default_device says: the core is given
its address."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from torch.utils import _device

import byteps_like.torch
from tests.fakes.thread_world import ThreadWorld, run_world
from tests.scenarios.models import batch, distance, flat, loss_of, mlp, share

FACTORIES = {function.__name__ for function in _device._device_constructors()}


def nameless(path: Path) -> list[str]:
    """Calls of torch that make a tensor where the program says, not we."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return [
        f"{path.name}:{call.lineno}: {ast.unparse(call)}"
        for call in calls
        if ast.unparse(call.func) in {f"torch.{name}" for name in FACTORIES}
        and not any(word.arg in ("device", None) for word in call.keywords)
    ]


def test_every_tensor_is_made_on_a_device_by_name():
    folder = Path(byteps_like.torch.__file__).parent
    assert [call for path in sorted(folder.glob("*.py")) for call in nameless(path)] == []


@pytest.mark.parametrize("servers", [True, False], ids=["servers", "allreduce"])
def test_training_where_another_device_is_the_default(servers):
    """Of which the meta device is one that has no memory at all."""

    def body(bps, rank, size):
        model, reference = mlp(), mlp()
        plain, batches = torch.optim.SGD(reference.parameters(), lr=0.1), [batch(step) for step in range(3)]
        with torch.device("meta"):
            optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
            for x, y in batches:
                loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
                optimizer.step()
                optimizer.zero_grad()
            bps.broadcast_parameters(model.state_dict(), root_rank=0)
            bps.allgather_object({"rank": rank})
        for x, y in batches:
            loss_of(reference, x, y).backward()
            plain.step()
            plain.zero_grad()
        return distance(flat(model), flat(reference))

    assert max(run_world(2, body, world=ThreadWorld(2, partition_bytes=1024), servers=servers)) < 1e-12
