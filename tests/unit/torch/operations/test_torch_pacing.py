"""Steps that begin in slots, by rank 0's clock."""

from __future__ import annotations

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.config import Config
from byteps_like.errors import ConfigError, InvalidArgumentError
from byteps_like.torch.job import pacing
from tests.fakes.thread_world import run_world

PERIOD, OFFSET = 0.1, 0.04


def test_all_ranks_begin_in_the_slots_of_rank_0(monkeypatch) -> None:
    clock = iter([50.0, 50.11, 50.2])
    slept: list[float] = []
    monkeypatch.setattr(pacing.time, "time", lambda: next(clock))
    monkeypatch.setattr(pacing.time, "sleep", slept.append)

    def body(bps, rank: int, size: int) -> int:
        pacer = bps.StepPacer(OFFSET, PERIOD)
        for _ in range(3):
            pacer.step()
        return pacer.skipped

    assert run_world(3, body) == [0, 0, 0]  # only rank 0 looks at the clock
    assert slept == pytest.approx([0.04, 0.03, 0.04], abs=1e-6)


class SlowClock:
    """Of a process whose steps take 10 ms of it, and that does nothing else but sleep."""

    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        self.now += 0.01
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_an_optimizer_paces_itself_where_the_settings_say_so(monkeypatch) -> None:
    clock = SlowClock()
    monkeypatch.setattr(pacing, "time", clock)
    bps.init(step_period=PERIOD, start_offset=OFFSET)
    try:
        parameter = torch.nn.Parameter(torch.zeros(3))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1))
        begun = []
        for _ in range(4):
            parameter.sum().backward()
            optimizer.step()
            begun.append(clock.now)
        assert begun == pytest.approx([1000 + OFFSET + slot * PERIOD for slot in range(4)], abs=1e-6)
    finally:
        bps.shutdown()
    bps.StepPacer(0.0, 0.01).step()  # needs no job


def test_what_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="period=0"):
        bps.StepPacer(0.0, 0)
    with pytest.raises(ConfigError, match="step_period=-1"):
        Config(step_period=-1.0)
