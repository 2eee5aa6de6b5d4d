"""The methods of a distributed optimizer, and what it has beside the plain one's own attributes."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.adapt.codec_monitor import CodecReport, report
from byteps_like.torch.adapt.tuning import Tuning
from byteps_like.torch.optimizer.twin import DistributedTwin
from byteps_like.torch.reduction.api import Reducer
from byteps_like.torch.reduction.feedback_state import MEMORY, restore, saved
from byteps_like.tuner.setting import Setting
from byteps_like.worker.api import TensorSpec

Closure = Callable[[], Any]


class Distribution:
    """What a distributed optimizer has beside the plain one's own attributes."""

    def __init__(self, reducer: Reducer) -> None:
        self.reducer = reducer
        self.skipping = False
        self.synchronized = False
        self.by_scaler = False
        self.loss_name = ""

    def synchronize(self, by_scaler: bool = False) -> None:
        """Blocks until gradients are averaged. `by_scaler`: GradScaler has asked for it, not the user."""
        self.reducer.synchronize()
        self.synchronized, self.by_scaler = True, by_scaler

    def restart(self) -> None:
        """The next step() synchronizes again."""
        self.synchronized = self.by_scaler = False

    def needs_synchronize(self) -> bool:
        """Whether step() has to; warns if the user seems to think so, but has done it."""
        if not self.synchronized or self.reducer.touched:
            return True
        if not self.by_scaler:
            # Horovod's words, which scripts filter by; unlike Horovod, nothing is sent again.
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after optimizer.synchronize()."
                " This can cause training slowdown. You may want to consider using optimizer.skip_synchronize()"
                " context if you use optimizer.synchronize() in your code.",
                stacklevel=3,
            )
        return False


class DistributedOptimizerMixin(DistributedTwin):
    """The methods that a distributed optimizer adds to, or changes in, the class of the plain one."""

    _distribution: Distribution

    def step(self, closure: Closure | None = None) -> Any:
        """One step of the plain optimizer with averaged gradients; with `closure`, after each call of it.

        A closure's loss is averaged too, so that all ranks of a line search take the same branch. Blocks until the
        gradients have landed. Raises as `synchronize` does.
        """
        own = self._distribution
        if closure is not None:
            return super().step(closure if own.skipping else functools.partial(self._synchronized_loss, closure))
        if not own.skipping and own.needs_synchronize():
            self.synchronize()
        own.restart()
        return super().step()

    def _synchronized_loss(self, closure: Closure) -> Any:
        loss = closure()
        self._distribution.reducer.synchronize()
        return averaged(loss, self._distribution)

    def synchronize(self) -> None:
        """Averages all gradients over the ranks; blocks until every `p.grad` is the average.

        `step()` calls it. Call it yourself to clip or unscale gradients, then `step()` in `skip_synchronize()`.
        Raises InvalidArgumentError if a gradient was changed after backward, and the job's error.
        """
        self._distribution.synchronize()

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within the block `step()` does not synchronize: for use after `synchronize()`."""
        self._distribution.skipping = True
        try:
            yield
        finally:
            self._distribution.skipping = False

    @property
    def _should_synchronize(self) -> bool:
        """Horovod's: whether `step()` synchronizes. Callbacks of scripts set it, in place of `skip_synchronize()`."""
        return not self._distribution.skipping

    @_should_synchronize.setter
    def _should_synchronize(self, should: bool) -> None:
        self._distribution.skipping = not should

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks in its step(), before it looks at the gradients: they must be averaged by then.

        So `scaler.step(optimizer)` alone is right; where `scaler.unscale_(optimizer)` comes first, `synchronize()`
        must be called before that.
        """
        own = self._distribution
        if own.reducer.touched and not own.skipping:
            own.synchronize(by_scaler=True)
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the plain optimizer's. Gradients on their way over the network are waited for and thrown away."""
        self._distribution.reducer.restart()
        self._distribution.restart()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the plain optimizer's; all ranks must add the same group. Blocks for one round trip."""
        super().add_param_group(param_group)
        self._distribution.reducer.refresh()

    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's, and under "byteps_like" what codecs remember: see docs/how-to/compression.md."""
        state: dict[str, Any] = super().state_dict()
        memory = saved(self._distribution.reducer)
        return {**state, MEMORY: memory} if memory else state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The plain optimizer's; what codecs remembered is taken where this rank of as many ranks has saved it."""
        super().load_state_dict(state_dict)
        restore(self._distribution.reducer, state_dict.get(MEMORY))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients are sent by the `passes`-th backward after a step. Call it between steps."""
        if self._distribution.reducer.active:
            raise InvalidArgumentError("set_backward_passes_per_step must be called between step() and backward()")
        super().set_backward_passes_per_step(passes)
        self._distribution.reducer.passes_per_step = passes

    @property
    def is_reducing(self) -> bool:
        """Whether gradients are on their way: from the first of a backward to `synchronize()`, or `step()`."""
        return self._distribution.reducer.active

    @property
    def route(self) -> str:
        """Which way gradients go: "server", "allreduce" or, in a world of one, "none"."""
        return self._distribution.reducer.route.name

    @property
    def route_why(self) -> str:
        """Why they go that way."""
        return self._distribution.reducer.route.why

    @property
    def tuned(self) -> Setting | None:
        """How gradients travel as tuning has it: what is tried now, or what was kept; None without tuning."""
        tuning = self._distribution.reducer.watchers.of(Tuning)
        return None if tuning is None else tuning.setting

    def compression_report(self) -> list[CodecReport]:
        """How encoded gradients are sent, and what was measured: docs/how-to/compression.md, "Automatic selection"."""
        return report(self._distribution.reducer)

    def close(self) -> None:
        """Removes all hooks: the gradients of these parameters are not averaged any more. Idempotent."""
        self._distribution.reducer.close()


def averaged(loss: Any, own: Distribution) -> Any:
    """The mean of `loss` over the ranks, in the type it came in; what is no number is returned as it is."""
    is_tensor = isinstance(loss, torch.Tensor)
    if not (isinstance(loss, float) or (is_tensor and loss.numel() == 1)):
        return loss
    route = own.reducer.route
    own.loss_name = own.loss_name or f"{own.reducer.label}.loss"
    buffer = torch.tensor([float(loss.detach() if is_tensor else loss)], dtype=torch.float64, device="cpu")
    (declared,) = route.declare([TensorSpec(own.loss_name, DType.FLOAT64, (1,))])
    route.push_pull(declared, buffer.data_ptr(), Op.AVERAGE).wait()
    return loss.detach().clone().fill_(buffer.item()) if is_tensor else buffer.item()
