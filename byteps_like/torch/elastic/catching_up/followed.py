"""What of a state can be followed: its models and optimizers, if each step follows from gradients alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from byteps_like.torch.ddp.module import DistributedDataParallel
from byteps_like.torch.elastic.catching_up.steps import is_repeatable
from byteps_like.torch.elastic.state import State
from byteps_like.torch.elastic.torch_state import ModelStateHandler, OptimizerStateHandler, TorchState, handlers_of
from byteps_like.torch.optimizer.distributed import DistributedOptimizerMixin

Followed = Mapping[str, ModelStateHandler | OptimizerStateHandler]


def followed(state: State) -> Followed:
    """By their names in the state; none if it can't be."""
    if not isinstance(state, TorchState) or state.kept_on_servers():
        return {}
    found = {
        name: handler
        for name, handler in handlers_of(state).items()
        if isinstance(handler, ModelStateHandler | OptimizerStateHandler)
    }
    return found if all(is_repeatable(one) for one in optimizers(found).values()) else {}


def optimizers(what: Followed) -> dict[str, torch.optim.Optimizer]:
    """Those in it."""
    return {name: one.value for name, one in what.items() if isinstance(one, OptimizerStateHandler)}


def kept(what: Followed) -> dict[str, Any]:
    """What the last commit has kept of it: a tree that the next one changes."""
    return {name: handler.saved for name, handler in what.items()}


def take(what: Followed, content: Mapping[str, Any]) -> None:
    """Makes it what another process has kept. Raises what loading raises."""
    for name, handler in what.items():
        value = handler.value
        plain: Any = super(DistributedOptimizerMixin, value) if isinstance(value, DistributedOptimizerMixin) else value
        plain.load_state_dict(content[name])


def is_reducing(what: Followed) -> bool:
    """Whether gradients of it are on their way."""
    values = [handler.value for handler in what.values()]
    reducing = (DistributedDataParallel, DistributedOptimizerMixin)
    return any(value.is_reducing for value in values if isinstance(value, reducing))
