"""What PyTorch's hooks record of a step; that nothing of them is left afterwards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError
from byteps_like.timeline.perfetto import merged
from byteps_like.timeline.recorder import recorder
from byteps_like.torch.job import runtime, tracing
from byteps_like.worker.local import LocalWorker

LAYERS = ("0", "2", "3.0")


@pytest.fixture
def world() -> Iterator[None]:
    with runtime.bound(LocalWorker(1 << 20)):
        yield
    recorder.stop()
    tracing.follow_recorder()


def train(steps: int, before: Any = None) -> None:
    torch.manual_seed(0)
    tail = torch.nn.Sequential(torch.nn.Linear(8, 2), torch.nn.Tanh())
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8), tail)
    optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    for step in range(steps):
        if before is not None:
            before(step)
        optimizer.zero_grad()
        model(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.randn(2, 4))  # no part of training
    optimizer.close()


def spans(path: Path) -> list[dict[str, Any]]:
    return [event for event in merged(path)["traceEvents"] if event["ph"] == "X"]


def test_layers_and_steps_are_recorded_for_so_many_steps(world: None, tmp_path: Path) -> None:
    first = recorder.steps
    train(6, lambda step: bps.trace(str(tmp_path), steps=3) if step == 1 else None)
    assert not recorder.active
    found = spans(tmp_path)
    expected = {(category, layer): 3 for category in ("forward", "backward") for layer in LAYERS} | {
        ("update", "update"): 3
    }
    assert Counter((e["cat"], e["name"]) for e in found if e["cat"] in ("forward", "backward", "update")) == expected
    steps = [event for event in found if event["cat"] == "step"]
    assert [event["args"]["step"] - first for event in steps] == [0, 1, 2]
    for before, after in pairwise(steps):
        assert before["ts"] + before["dur"] == pytest.approx(after["ts"], abs=0.01)
    for step in steps:
        inside = [e for e in found if e["cat"] != "step" and step["ts"] <= e["ts"] <= step["ts"] + step["dur"]]
        order = [(e["cat"], e["name"]) for e in inside]
        assert order == [("forward", layer) for layer in LAYERS] + [("backward", layer) for layer in LAYERS[::-1]] + [
            ("update", "update")
        ]


def test_hooks_are_gone_after_the_last_step(world: None, tmp_path: Path) -> None:
    train(4, lambda step: bps.trace(str(tmp_path), steps=1) if step == 0 else None)
    assert not tracing._hooks._handles
    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_at_least_one_step(world: None, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="at least one"):
        bps.trace(str(tmp_path), steps=0)
