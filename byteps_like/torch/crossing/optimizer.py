"""Crossing the barrier: step() doesn't wait, the next forward does, layer by layer. After ByteScheduler (SOSP'19)."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.crossing.flight import Advance, StepInFlight
from byteps_like.torch.crossing.guards import Guards
from byteps_like.torch.crossing.step import PartialStep, check_class, check_hooks, checked
from byteps_like.torch.optimizer.distributed import (
    Closure,
    DistributedOptimizerMixin,
    Distribution,
)
from byteps_like.torch.optimizer.parameter_names import ParameterNames
from byteps_like.torch.optimizer.twin import DistributedTwin, twin_of
from byteps_like.torch.reduction.api import Departing


class Crossing(Distribution):
    """What an optimizer that crosses the barrier has beside the plain one's own attributes."""

    reducer: Departing

    def __init__(self, reducer: Departing, guards: Guards) -> None:
        super().__init__(reducer)
        self.guards = guards
        self.stepped = False
        reference = weakref.ref(self)

        def on_gradient(parameter: torch.Tensor) -> None:
            own = reference()
            if own is not None:
                own.guards.arrived(parameter)
                own.land()

        reducer.on_gradient = on_gradient

    def land(self) -> None:
        """Before another round begins. What forward has used is updated already; it is about the rest."""
        self.guards.land()
        self.reducer.landed()

    def synchronize(self, by_scaler: bool = False) -> None:
        """Waits for updates; averages gradients unless there was no backward since the last step()."""
        self.guards.finish()
        if self.guards.flight is not None:  # streams wait for it; there was no backward since the step
            return
        self.land()
        if self.reducer.touched or not self.stepped:
            super().synchronize(by_scaler)

    def __del__(self) -> None:
        self.guards.leave()


class CrossBarrierMixin(DistributedOptimizerMixin):
    """The methods that differ from those of a DistributedOptimizer that waits in step()."""

    _distribution: Crossing

    def step(self, closure: Closure | None = None) -> Any:
        """One step of the plain optimizer with averaged gradients, made when they are there. Doesn't block.

        The hyperparameters are those of now. Every `p.grad` is None from here on, as after zero_grad(). The first step
        blocks, one in skip_synchronize(), and those after which gradients may travel in another way. Raises
        InvalidArgumentError for closures, step hooks and optimizers that don't update parameters independently, and
        what went wrong with the step before.
        """
        if closure is not None:
            raise InvalidArgumentError(
                "cross_barrier=True: step(closure) needs the updated weights at once; leave cross_barrier out"
            )
        own = self._distribution
        own.land()
        check_hooks(self)
        departed = None
        if not own.skipping and own.needs_synchronize():
            departed = own.reducer.depart()
            if departed is None:
                own.reducer.synchronize()
        if departed is None:
            self._step_at_once()
            own.guards.depart(None)
        else:
            flight = StepInFlight(departed, self._advance(), own.reducer.came_sparse)
            own.reducer.note(flight)
            own.guards.depart(flight)
        own.restart()
        own.stepped = True

    def _advance(self) -> Advance:
        """What updates parameters as their gradients land, with the hyperparameters of now."""
        return PartialStep(self, super(DistributedOptimizerMixin, self).step)

    def _step_at_once(self) -> None:
        with checked(self):
            super(DistributedOptimizerMixin, self).step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def synchronize(self) -> None:
        """Blocks until the updates of the last step() are made; after a backward, until gradients are averaged, too.
        On a device the current stream waits, as for DistributedOptimizer's.

        Call it before you use parameters otherwise than by calling their modules or state_dict(): copies, averages of
        weights, prints; also before you fork. To clip: `synchronize()`, clip, `step()` in skip_synchronize(); that
        step doesn't cross the barrier. Raises as DistributedOptimizer's, and what went wrong with the last step().
        """
        super().synchronize()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks in its step(): refused, as it looks at all gradients to decide on the step."""
        if not self._distribution.skipping:
            raise InvalidArgumentError(
                "cross_barrier=True: GradScaler decides by all gradients whether to step; use bfloat16 without a"
                " scaler, or leave cross_barrier out"
            )
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the plain optimizer's; updates go on. Gradients that no step() was made with are thrown away: blocks."""
        if self._distribution.reducer.active:
            self._distribution.guards.finish()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As DistributedOptimizer's, after the updates of the last step()."""
        self._distribution.guards.finish()
        super().add_param_group(param_group)
        self._distribution.guards.refresh(param_group["params"])

    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's, after the updates of the last step(). Blocks; raises as `synchronize`."""
        self._distribution.land()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The plain optimizer's, after the updates of the last step(). Blocks; raises as `synchronize`."""
        self._distribution.land()
        super().load_state_dict(state_dict)

    def close(self) -> None:
        """Waits for the updates of the last step(); then removes all hooks. Idempotent."""
        try:
            self._distribution.guards.land()
        finally:
            self._distribution.guards.remove()
            super().close()


def check_crossing(optimizer: torch.optim.Optimizer, model: object) -> nn.Module:
    """`model`. Raises InvalidArgumentError if `optimizer` can't cross the barrier, or `model` is no module."""
    check_class(optimizer)
    if isinstance(model, nn.Module):
        return model
    raise InvalidArgumentError(
        f"cross_barrier=True needs model=, the nn.Module whose forward waits for its parameters, not {model!r}"
    )


def crossing(
    optimizer: torch.optim.Optimizer,
    reducer: Departing,
    model: nn.Module,
    names: ParameterNames,
    methods: type[CrossBarrierMixin] = CrossBarrierMixin,
) -> DistributedTwin:
    """The twin of `optimizer` that crosses the barrier."""
    guards = Guards(model, (item for group in optimizer.param_groups for item in group["params"]))
    return twin_of(optimizer, methods, Crossing(reducer, guards), names)
