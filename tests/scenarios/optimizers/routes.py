"""Which way gradients go, who chose it, and that every way comes to the same. `body(bps, rank, size)`."""

from __future__ import annotations

from typing import Any

import torch

from tests.scenarios.checks import matches, raises
from tests.scenarios.models import batch, loss_of, mlp, share


def every_route(bps: Any, rank: int, size: int) -> None:
    own = bps.DistributedOptimizer(torch.optim.SGD(mlp().parameters(), lr=0.1)).route
    assert own in (("server", "allreduce") if size > 1 else ("none",))
    for route in ("auto", "server", "allreduce"):
        model, reference = mlp(), mlp()
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        if route == "server" and own == "allreduce":
            raises(bps.InvalidArgumentError, lambda: bps.DistributedOptimizer(inner, route="server"), "no servers")  # noqa: B023
            continue
        optimizer = bps.DistributedOptimizer(inner, route=route)
        assert optimizer.route == (own if route == "auto" or own == "none" else route)
        assert ("chose" in optimizer.route_why) == (route == "allreduce" and own == "server")
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(3):
            x, y = batch(step)
            optimizer.zero_grad()
            plain.zero_grad()
            loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
            loss_of(reference, x, y).backward()
            optimizer.step()
            plain.step()
        matches(bps, model, reference)
        optimizer.close()


def wrapped(bps: Any, rank: int, size: int) -> None:
    model, reference = bps.DistributedDataParallel(mlp(), route="allreduce"), mlp()
    x, y = batch(0)
    loss_of(model, share(x, rank, size), share(y, rank, size)).backward()
    loss_of(reference, x, y).backward()
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def shared_memory(bps: Any, rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = bps.empty_shared(7, 3, dtype=dtype)
        assert tensor.shape == (7, 3) and tensor.dtype is dtype and not tensor.any()
        tensor += rank
        assert bps.allreduce_(tensor, op=bps.Max, name=f"shared.{dtype}").eq(size - 1).all()
    assert bps.empty_shared(0, 4).shape == (0, 4) and bps.empty_shared().shape == ()


SCENARIOS = [every_route, wrapped, shared_memory]
"""Bodies that need nothing but (bps, rank, size)."""
