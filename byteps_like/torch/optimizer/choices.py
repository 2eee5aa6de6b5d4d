"""Which options of DistributedOptimizer go together."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.adapt.tuning import OFF, Tune, check_tune
from byteps_like.torch.calls.reductions import Adasum
from byteps_like.torch.compression.rules import Rules
from byteps_like.torch.optimizer.onebit_adam import OnebitAdam
from byteps_like.torch.optimizer.twin import Asked, DistributedTwin, check_passes

CONFLICTS = (
    ("cross_barrier", "op=Adasum", "Adasum needs all gradients"),
    ("shard", "op=Adasum", "Adasum reduces whole steps"),
    ("shard", "sufficient_factors", "weights that travel as factors can't leave the chunks that shares are cut from"),
    ("shard", "powersgd", "its factors are sums over rows and columns of whole matrices, of which no rank has a share"),
    ("shard", "rows", "which rows a gradient has differs from step to step, and shares are cut once"),
    ("shard", "route='server'", "shares go by collectives among the workers, beside servers if there are any"),
    ("sufficient_factors", "op=Adasum", "Adasum reduces whole steps"),
    ("sufficient_factors", "OnebitAdam", "it sends momenta, sums over many batches, which have no factors"),
    ("a codec", "op=Adasum", "Adasum needs whole steps"),
    ("momentum before a codec", "the optimizer's momentum", "it would count twice: set the optimizer's to 0"),
    ("tune", "op=Adasum", "steps go whole and have nothing to tune"),
    ("gradient_predivide_factor", "op=Adasum", "Adasum is no sum that could be scaled"),
    ("route='server'", "op=Adasum", "Adasum goes among the workers"),
    ("consistency", "op=Adasum", "Adasum reduces whole steps of all ranks"),
    ("consistency", "gradient_predivide_factor", "servers combine contributions by their weights"),
    ("consistency", "route='allreduce'", "servers keep the weights"),
    ("consistency", "process_set", "servers keep the weights for all ranks"),
    ("consistency", "shard", "servers keep the optimizer's state, each a share"),
    ("consistency", "cross_barrier", "there is no barrier between the steps of the ranks to cross"),
    ("consistency", "OnebitAdam", "its momenta are sums over the batches of all ranks"),
    ("consistency", "compression", "what servers keep is encoded with codec=, as codec='int8', on its way to them"),
)
"""Options that exclude each other, and why: all pairs that are refused, as docs/how-to/choose-options.md lists them."""


@dataclass(frozen=True)
class Choices:
    """What a user has asked of DistributedOptimizer beside what every optimizer has. See there."""

    asked: Asked
    route: str
    model: torch.nn.Module | None
    cross_barrier: bool
    shard: str
    tune: Tune | None
    sufficient_factors: bool | str
    rules: Rules
    stored: bool = False
    """Servers keep the weights."""

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises InvalidArgumentError for what can't be, alone or together."""
        check_passes(self.asked.backward_passes_per_step)
        if self.shard not in ("", "optimizer"):
            raise InvalidArgumentError(f"shard={self.shard!r} must be '' or 'optimizer'")
        check_tune(self.tune)
        chosen = self._chosen(optimizer)
        for one, other, why in CONFLICTS:
            if one in chosen and other in chosen:
                raise InvalidArgumentError(f"{one} and {other} don't go together: {why}; leave one of them out")

    def _chosen(self, optimizer: torch.optim.Optimizer) -> set[str]:
        ways = [way for _, way in self.rules.ways]
        asked = {
            "op=Adasum": self.asked.op is Adasum,
            "gradient_predivide_factor": self.asked.gradient_predivide_factor != 1.0,
            "route='server'": self.route == "server",
            "route='allreduce'": self.route == "allreduce",
            "process_set": self.asked.process_set is not None,
            "consistency": self.stored,
            "cross_barrier": self.cross_barrier,
            "shard": bool(self.shard),
            "tune": self.tune is not None and os.fspath(self.tune) != OFF,
            "sufficient_factors": bool(self.sufficient_factors),
            "OnebitAdam": isinstance(optimizer, OnebitAdam),
            "compression": not self.rules.none,
            "a codec": self.rules.codecs,
            "powersgd": any(way.low_rank for way in ways),
            "rows": any(way.by_rows for way in ways),
            "momentum before a codec": any(way.momentum for way in ways),
            "the optimizer's momentum": any(group.get("momentum") for group in optimizer.param_groups),
        }
        return {name for name, wanted in asked.items() if wanted}


def check_plain(optimizer: object) -> None:
    """Raises InvalidArgumentError for what is no optimizer, or a distributed one."""
    if not isinstance(optimizer, torch.optim.Optimizer) or isinstance(optimizer, DistributedTwin):
        raise InvalidArgumentError(f"DistributedOptimizer needs a plain torch optimizer, not {optimizer!r}")
