"""Layers that no rank, or not every rank, uses in some steps, with codecs that remember. `body(bps, rank, size)`.

Nothing may be lost: what was applied and what the codecs still remember make the sum of all gradients.
"""

from __future__ import annotations

from typing import Any

import torch

from byteps_like.torch.compression.policy import Compress
from tests.scenarios.checks import same_everywhere
from tests.scenarios.models import distance
from tests.scenarios.optimizers.compression import Given, gradient
from tests.scenarios.optimizers.sharded import SHARDED

SHAPES = {"always": (16, 20), "at_times": (12, 25)}
RATES = [0.1, 0.1, 0.05, 0.2, 0.2, 0.02, 0.02]
"""Of each step. They change where nobody uses the layer, and where somebody does."""


def users(step: int, size: int) -> range:
    """The ranks that have a gradient of the layer that is used at times."""
    return (range(size), range(0), range(0), range(1), range(size), range(0), range(0))[step]


def given(step: int, rank: int, size: int) -> dict[str, torch.Tensor]:
    """The gradients of one rank in one step."""
    found = {"always": gradient(step, rank, SHAPES["always"])}
    if rank in users(step, size):
        found["at_times"] = gradient(step, rank, SHAPES["at_times"], seed=1)
    return found


class Ledger:
    """Training by `way`, and the account of each parameter in it: all gradients less what was applied, times rates."""

    def __init__(self, bps: Any, rank: int, size: int, way: Any, **options: Any) -> None:
        self.bps, self.rank, self.size = bps, rank, size
        self.model = Given(SHAPES)
        self.begin = {name: value.detach().double() for name, value in self.model.named_parameters()}
        inner = torch.optim.SGD(self.model.parameters(), lr=1.0)
        if options.get("cross_barrier"):
            options["model"] = self.model
        rules = dict.fromkeys(SHAPES, way)
        self.optimizer = bps.DistributedOptimizer(inner, self.model.named_parameters(), compression=rules, **options)

    def step(self, number: int) -> None:
        self.optimizer.param_groups[0]["lr"] = RATES[number]
        self.optimizer.zero_grad()
        self.model(given(number, self.rank, self.size)).backward()
        self.optimizer.step()

    @property
    def memory(self) -> dict[str, dict[str, torch.Tensor]]:
        """What this rank's codecs remember."""
        found: dict[str, dict[str, torch.Tensor]] = self.optimizer.state_dict()["byteps_like"]["parameters"]
        return found

    def missing(self, last: int) -> dict[str, torch.Tensor]:
        """What is neither applied after step `last`, nor remembered by any rank, in terms of the last rate."""
        found = {}
        for name, own in sorted(self.memory.items()):
            left = self.bps.allreduce(own["residual"].double(), name=f"left.{name}.{last}")
            total = torch.zeros_like(self.begin[name])
            for step in range(last + 1):
                for rank in range(self.size):
                    if name in (there := given(step, rank, self.size)):
                        total += RATES[step] * there[name].double() / self.size
            applied = self.begin[name] - dict(self.model.named_parameters())[name].detach().double()
            found[name] = total / RATES[last] - applied / RATES[last] - left
        return found

    def close(self) -> None:
        same_everywhere(self.bps, self.model.at_times.detach())
        self.optimizer.close()


def balances(bps: Any, rank: int, size: int, way: Any, **options: Any) -> None:
    """After each step."""
    ledger = Ledger(bps, rank, size, way, **options)
    for step in range(len(RATES)):
        ledger.step(step)
        for name, missing in ledger.missing(step).items():
            assert distance(missing + 1.0, torch.ones_like(missing)) < 1e-5, (way, options, step, name)
    ledger.close()


def sums_that_are_exact(bps: Any, rank: int, size: int) -> None:
    """Codecs whose sums are not encoded again."""
    for way in (Compress("chunktopk", feedback=True), Compress("randomk:ratio=0.1", feedback=True), "powersgd:rank=2"):
        balances(bps, rank, size, way)
        balances(bps, rank, size, way, cross_barrier=True)


def shares(bps: Any, rank: int, size: int) -> None:
    """What goes to shares is encoded once."""
    for codec in ("onebit:block=64", "topk:ratio=0.1"):
        for two_way in (False, True):
            way = Compress(codec, feedback=True, two_way=two_way)
            balances(bps, rank, size, way, **SHARDED)
            balances(bps, rank, size, way, cross_barrier=True, **SHARDED)


def memory_stays(bps: Any, rank: int, size: int) -> None:
    """Of a layer that nobody uses, to the last bit: residual and momentum, but for a change of the learning rate."""
    momenta = {"feedback": True, "momentum": 0.5}
    for options in ({}, {"cross_barrier": True}, SHARDED):
        for way in (Compress("onebit:block=64", **momenta), Compress("topk:ratio=0.1", **momenta, masked=True)):
            ledger, seen = Ledger(bps, rank, size, way, **options), []
            for step in range(3):
                ledger.step(step)
                seen.append({kind: value.clone() for kind, value in ledger.memory["at_times"].items()})
            assert all(bool(value.any()) for value in seen[0].values())
            for kind, value in seen[0].items():
                assert torch.equal(value, seen[1][kind]), (way, options, kind)
                factor = RATES[1] / RATES[2] if kind == "residual" else 1.0
                assert torch.equal(factor * value, seen[2][kind]), (way, options, kind)
            ledger.close()


def codecs_left_out(bps: Any, rank: int, size: int) -> None:
    """Gradients go raw for some rounds, in which what is owed of a layer that nobody uses is owed on."""
    for options in ({}, SHARDED):
        ledger = Ledger(bps, rank, size, Compress("randomk:ratio=0.1", feedback=True), **options)
        for step in range(len(RATES)):
            ledger.optimizer._distribution.reducer.codecs.switch(step not in (1, 2, 3))
            ledger.step(step)
            for name, missing in ledger.missing(step).items():
                assert distance(missing + 1.0, torch.ones_like(missing)) < 1e-5, (options, step, name)
        ledger.close()


SCENARIOS = [sums_that_are_exact, shares, memory_stays, codecs_left_out]
"""Bodies that need nothing but (bps, rank, size)."""
