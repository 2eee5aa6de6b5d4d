"""DistributedOptimizer: the user's optimizer, with gradients averaged over all ranks before each step."""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch import runtime as _runtime
from byteps_like.torch.adasum_optimizer import AdasumOptimizerMixin, StepReducer
from byteps_like.torch.arena_parts import Scaling
from byteps_like.torch.coding_state import MEMORY, restore, saved
from byteps_like.torch.compression_rules import Rules, check_compression, rules_of
from byteps_like.torch.following import follow
from byteps_like.torch.onebit_adam import OnebitAdam
from byteps_like.torch.ops import Adasum, Average, resolve_op
from byteps_like.torch.optimizer_choices import Choices, check_passes, check_plain
from byteps_like.torch.outsider import OutsiderMixin
from byteps_like.torch.parameter_names import ParameterNames
from byteps_like.torch.reducer import GradientReducer, ReducerOptions
from byteps_like.torch.twin import Twin, twin_of
from byteps_like.torch.watching import CodecReport, report
from byteps_like.tuner.setting import Setting
from byteps_like.worker.api import TensorSpec

Closure = Callable[[], Any]


class _Distribution:
    """What a distributed optimizer has beside the plain one's own attributes."""

    def __init__(self, reducer: GradientReducer) -> None:
        self.reducer = reducer
        self.skipping = False
        self.synchronized = False
        self.by_scaler = False
        self.loss_name = ""

    def synchronize(self, by_scaler: bool = False) -> None:
        self.reducer.synchronize()
        self.synchronized, self.by_scaler = True, by_scaler

    def restart(self) -> None:
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


class DistributedOptimizerMixin(Twin):
    """The methods that a distributed optimizer adds to, or changes in, the class of the plain one."""

    _distribution: _Distribution

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
        return _averaged(loss, self._distribution)

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
        check_passes(passes)
        if self._distribution.reducer.active:
            raise InvalidArgumentError("set_backward_passes_per_step must be called between step() and backward()")
        self._distribution.reducer.passes_per_step = passes

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
        tuning = self._distribution.reducer.tuning
        return None if tuning is None else tuning.setting

    def compression_report(self) -> list[CodecReport]:
        """How encoded gradients are sent, and what was measured: docs/how-to/compression.md, "Automatic selection"."""
        return report(self._distribution.reducer)

    def close(self) -> None:
        """Removes all hooks: the gradients of these parameters are not averaged any more. Idempotent."""
        self._distribution.reducer.close()


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: object = None,
    backward_passes_per_step: int = 1,
    op: Any = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: Any = None,
    *,
    route: str = "auto",
    cross_barrier: bool = False,
    model: torch.nn.Module | None = None,
    shard: str = "",
    tune: str | os.PathLike[str] | None = None,
    sufficient_factors: bool | str = False,
) -> Any:
    """An optimizer of the same class as `optimizer`, sharing its state, that averages gradients over all ranks.

    Gradients live in one buffer per element type, are sent from within backward, and waited for by `step()`. Don't
    touch `p.grad` between backward and `synchronize()`, nor keep it over the next backward: its memory is used again.

    `named_parameters`: names for error messages, for all parameters. `compression`: Compression.fp16 or bf16, a
    codec ("thc4", Compression.topk(0.01)), "auto", BytePS's dictionary, or rules by names; "rows" for embeddings. None:
    as the setting says. See docs/how-to/compression.md.
    `backward_passes_per_step=k`: sends after k backwards the sum of their gradients, as PyTorch and Horovod do.
    `op`: Average, Sum, or Adasum (see adasum_optimizer). `gradient_predivide_factor=f`: divides by f before the sum,
    by size()/f after it. `process_set`: averages over its ranks only; the others' optimizers stay as they are.
    `num_groups`, `groups`: Horovod's, not needed.
    `sparse_as_dense`: see ReducerOptions. `route`: "server", "allreduce" (among the workers), or "auto": servers if the
    job has any; the optimizer's `route` and `route_why` say what it came to.
    `cross_barrier`: step() returns at once, and each module of `model` waits for its own parameters
    (docs/explanation/scheduler.md).
    `shard="optimizer"`: each rank keeps and updates only its share of the state, as ZeRO-2 (docs/how-to/sharding.md).
    `tune`: "on", or a path to save to or to read, finds the best settings while training (docs/how-to/tuner.md).
    `sufficient_factors`: "auto" or True sends gradients of Linear weights as factors
    (docs/how-to/sufficient-factors.md).

    Blocks for one round trip. On the wire, per step and rank: the parameters' bytes (halved by compression of
    float32), two elements per parameter, up and down. Raises InvalidArgumentError for options that don't go together
    (see optimizer_choices), MismatchError if the ranks' models differ, NotInitializedError.
    """
    del num_groups, groups
    check_plain(optimizer)
    names = ParameterNames(optimizer.__dict__, None if named_parameters is None else list(named_parameters))
    whole = op is Adasum or bool(shard or sufficient_factors)
    rules = _rules(optimizer, compression, whole)
    choices = Choices(
        op, gradient_predivide_factor, route, model, cross_barrier, shard, tune, sufficient_factors, rules
    )
    choices.check(optimizer, backward_passes_per_step)
    if not _runtime.current().includes(process_set):
        return twin_of(optimizer, OutsiderMixin, process_set, names)
    if op is Adasum:
        steps = StepReducer(names, check_compression(compression), process_set)
        return twin_of(optimizer, AdasumOptimizerMixin, steps, names)
    scaling = _scaling(resolve_op(None, op), gradient_predivide_factor)
    options = ReducerOptions(rules, scaling, route, process_set, sparse_as_dense, crossing=cross_barrier)
    if isinstance(optimizer, OnebitAdam):
        options = replace(options, transform=optimizer.to_momentum)
    return _made(optimizer, names, options, choices, backward_passes_per_step)


def _made(
    optimizer: torch.optim.Optimizer, names: ParameterNames, options: ReducerOptions, choices: Choices, passes: int
) -> Any:
    # Not at the top: what few need, and what builds upon this module.
    if choices.shard:
        from byteps_like.torch.sharded_optimizer import sharded

        return sharded(optimizer, names, options, passes)
    if choices.cross_barrier:
        from byteps_like.torch.crossing import check_crossing, crossing

        model = check_crossing(optimizer, choices.model)
    reducer = _reducer(names, options, choices)
    reducer.passes_per_step = passes
    if choices.cross_barrier:
        return crossing(optimizer, reducer, model, names)
    return twin_of(optimizer, DistributedOptimizerMixin, _Distribution(reducer), names)


def _reducer(names: ParameterNames, options: ReducerOptions, choices: Choices) -> GradientReducer:
    if choices.sufficient_factors:
        from byteps_like.torch.factors_reducer import factor_reducer

        return factor_reducer(names, options, choices.model, choices.sufficient_factors)
    options.rules.check_names(name for name, _ in names())
    reducer = GradientReducer(names, options)
    if options.transform is None:
        reducer.take_rates(names.rates)
    follow(reducer, choices.tune)
    return reducer


def _rules(optimizer: object, compression: object, whole: bool) -> Rules:
    """What was asked for, else the setting: of gradients that go by themselves, not `whole` in another way."""
    runtime = _runtime.current()
    if isinstance(optimizer, OnebitAdam):
        compression = optimizer.way(compression)
    elif compression is None and not whole:
        compression = runtime.compression
    plain = isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD)
    return rules_of(compression, plain=plain, min_bytes=runtime.min_compress_bytes)


def _scaling(op: Op, predivide: float) -> Scaling:
    if op not in (Op.AVERAGE, Op.SUM):
        raise InvalidArgumentError(f"gradients can't be reduced with op={op.name}; use Average or Sum")
    if predivide <= 0.0 or (predivide != 1.0 and op is not Op.AVERAGE):
        raise InvalidArgumentError(f"gradient_predivide_factor={predivide} must be positive, and needs op=Average")
    return Scaling(op, predivide)


def _averaged(loss: Any, own: _Distribution) -> Any:
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
