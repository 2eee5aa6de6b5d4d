"""Being told of each step of a training loop, whichever optimizer makes it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from byteps_like.torch.job.after_steps import after_steps
from byteps_like.torch.optimizer.twin import DistributedTwin


class StepListener:
    """Calls the method `call` after each step of the first optimizer that is seen to step parameters of `model`.

    Keeps neither the model nor the method's object alive. Where that optimizer dies, another may take its place.
    """

    def __init__(self, model: nn.Module, call: Callable[[], None]) -> None:
        self._model = weakref.ref(model)
        self._call = weakref.WeakMethod(call)
        self._optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        self._handles: list[RemovableHandle] = [
            after_steps(self._stepped),
            register_optimizer_step_post_hook(self._plain_stepped),
        ]

    def remove(self) -> None:
        """From now on it isn't called. Idempotent."""
        for handle in self._handles:
            handle.remove()

    def _plain_stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        # A twin may make its step in many parts; it tells itself when it has.
        if not isinstance(optimizer, DistributedTwin):
            self._stepped(optimizer)

    def _stepped(self, optimizer: torch.optim.Optimizer) -> None:
        call = self._call()
        if call is None:
            return
        chosen = self._optimizer()
        if chosen is None and self._steps_the_model(optimizer):
            chosen, self._optimizer = optimizer, weakref.ref(optimizer)
        if chosen is optimizer:
            call()

    def _steps_the_model(self, optimizer: torch.optim.Optimizer) -> bool:
        model = self._model()
        own = set() if model is None else {id(parameter) for parameter in model.parameters()}
        return any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])
