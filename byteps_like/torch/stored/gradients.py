"""Servers apply gradients: they get them while backward goes on, and step() lands the weights that come of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.bounded import Asp
from byteps_like.store.policies.policy import Policy
from byteps_like.torch.gradients.slot import too_many_passes
from byteps_like.torch.stored.blocks import Progress, Sent
from byteps_like.torch.stored.layers import FactorLayers, pair_of
from byteps_like.torch.stored.periods import Periods
from byteps_like.torch.stored.pushes import Pushes
from byteps_like.torch.stored.weights import KeptWeights


@dataclass
class _Given:
    """What backward has made of one parameter's gradient since the last step."""

    name: str
    hook: RemovableHandle
    passes: int = 0
    contributed: bool = False
    grad: torch.Tensor | None = None
    """As it was contributed."""
    version: int = 0
    sum: torch.Tensor | None = None
    """Of steps since the last push."""
    sent: Sent = field(default_factory=Sent)
    """Blocks of this step."""

    def restart(self) -> None:
        self.passes, self.contributed, self.grad, self.sent = 0, False, None, Sent()


class GradientPushes(Pushes):
    """Parameters have hooks. Between two pulls of one the plain optimizer steps with its gradient (Dean et al., "Large
    Scale Distributed Deep Networks", NeurIPS 2012)."""

    def __init__(
        self,
        weights: KeptWeights,
        periods: Periods,
        rates: Callable[[], dict[int, float]],
        policy: Policy,
        layers: FactorLayers,
    ) -> None:
        super().__init__(weights, periods)
        self._rates, self._each_step, self._layers = rates, _waits_for_each_step(policy), layers
        self._given: dict[int, _Given] = {}
        self._progress = Progress()
        self.refresh()

    @override
    def refresh(self) -> None:
        for name, parameter in self._trained():
            if id(parameter) not in self._given:
                register: Callable[..., RemovableHandle] = parameter.register_post_accumulate_grad_hook
                by_layers = parameter in self._layers
                handle = self._layers.follow(parameter, self._accumulated) if by_layers else register(self._accumulated)
                self._given[id(parameter)] = _Given(name, handle)

    @override
    def adopt(self, policy: Policy) -> None:
        super().adopt(policy)
        self._each_step = _waits_for_each_step(policy)

    @override
    def step(self, plain: Callable[[], Any]) -> None:
        self._weights.open()
        for _, parameter in self._trained():
            self._complete(parameter)
        due = self._due()
        for parameter in due:
            self._weights.start_read(parameter)
        _without_gradients(due, plain)
        self._land(due)
        self.restart()
        self._next_step()

    @override
    def restart(self) -> None:
        self._progress.restart()
        self._layers.forget()
        for given in self._given.values():
            given.restart()

    @override
    def reopen(self) -> None:
        self.restart()
        super().reopen()

    @override
    def restore(self, folder: Path) -> None:
        for given in self._given.values():
            given.sum = None  # of steps after those that are in it
        super().restore(folder)

    @override
    def block(self, weight: float | None) -> None:
        self._progress.end_block(weight, self.weight, self.passes_per_step)
        if not self._progress.leaves(self.weight, self.passes_per_step):
            return
        for _, parameter in self._trained():
            given = self._given[id(parameter)]
            if self._layers.has(parameter) and self._weights.cut_off(parameter):
                self._layers.make_whole(parameter)
            if self._may_send_block(parameter, given):
                self._send_block(parameter, given)

    def _may_send_block(self, parameter: torch.Tensor, given: _Given) -> bool:
        """Not of sparse gradients, nor of one that goes with those of steps before, or after."""
        grad = parameter.grad
        if grad is None or grad.layout is not torch.strided or given.contributed or given.sum is not None:
            return False
        return self._periods.pushes(given.name, self._steps)

    def _send_block(self, parameter: torch.Tensor, given: _Given) -> None:
        parts = [part for part in self._weights.cut_off(parameter) if part not in given.sent.weights]
        if not parts or parameter.grad is None:
            return
        parameter.grad = parameter.grad.contiguous()
        given.sent.send(
            parameter.grad.detach(), parts, self._weights.slices(parameter), (self._progress.weight, self.weight),
            lambda value, run, weight: self._push(
                parameter, value, lr=self._rates()[id(parameter)], weight=weight, part=run, last=False
            ),
        )  # fmt: skip

    @override
    def check_between_steps(self) -> None:
        if any(given.passes for given in self._given.values()):
            raise InvalidArgumentError("this must be called between step() and backward(): gradients are on their way")

    @override
    def check_unsent(self, what: str) -> None:
        raise InvalidArgumentError(
            f"{what} comes too late where servers apply gradients, which go to them during backward: pass"
            " apply='worker' to DistributedOptimizer, and change gradients before step()"
        )

    @override
    def close(self) -> None:
        self._layers.close()
        for given in self._given.values():
            given.hook.remove()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        given = self._given[id(parameter)]
        given.passes += 1
        if given.passes > self.passes_per_step:
            raise too_many_passes(given, self.passes_per_step)
        if given.passes == self.passes_per_step:
            self._weights.open()
            self._contribute(parameter, given)
        elif self._layers.has(parameter) and not self._layers.are_fewer(parameter):
            self._layers.make_whole(parameter)

    def _complete(self, parameter: torch.Tensor) -> None:
        given, grad = self._given[id(parameter)], parameter.grad
        if not given.contributed:
            if grad is not None or self._layers.has(parameter) or self._each_step or given.sent:
                self._contribute(parameter, given)
        elif grad is not None and (grad is not given.grad or grad._version != given.version):
            self.check_unsent(f"a change of the gradient of {given.name!r} after backward")

    def _contribute(self, parameter: torch.Tensor, given: _Given) -> None:
        if not self._goes_as_factors(parameter, given):
            self._layers.make_whole(parameter)
        grad = parameter.grad
        given.contributed, given.grad, given.version = True, grad, 0 if grad is None else grad._version
        if rows := self._layers.take(parameter):
            self._push(parameter, pair_of(rows, parameter), lr=self._rates()[id(parameter)])
            self._weights.start_read(parameter)
            return
        dense = torch.zeros_like(parameter) if grad is None else grad.detach()
        dense = dense.to_dense() if dense.is_sparse else dense
        given.sum = dense.clone() if given.sum is None else given.sum.add_(dense)
        if not self._periods.pushes(given.name, self._steps):
            return
        self._push_sum(parameter, given, given.sum)
        given.sum = None
        if self._periods.pulls(given.name, self._steps):
            self._weights.start_read(parameter)

    def _goes_as_factors(self, parameter: torch.Tensor, given: _Given) -> bool:
        """Whether its layers' factors are all that there is, and less, and their product comes back from servers."""
        if parameter.grad is not None or given.sum is not None or given.sent or not self._layers.has(parameter):
            return False
        exchanged = self._periods.pushes(given.name, self._steps) and self._periods.pulls(given.name, self._steps)
        return exchanged and self._layers.are_fewer(parameter)

    def _push_sum(self, parameter: torch.Tensor, given: _Given, value: torch.Tensor) -> None:
        lr = self._rates()[id(parameter)]
        if not given.sent:
            self._push(parameter, value, lr=lr)
            return
        given.sent.send_rest(
            value.contiguous(), self._weights.slices(parameter), self.weight,
            lambda rest, run, weight: self._push(parameter, rest, lr=lr, weight=weight, part=run),
        )  # fmt: skip


def _waits_for_each_step(policy: Policy) -> bool:
    """Whether servers wait for a contribution of each step, be it zeros."""
    return not isinstance(policy, Asp)


def _without_gradients(parameters: list[torch.Tensor], plain: Callable[[], Any]) -> None:
    """`plain()`, which leaves these as they are."""
    grads = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        plain()
    finally:
        for parameter, grad in zip(parameters, grads, strict=True):
            parameter.grad = grad
