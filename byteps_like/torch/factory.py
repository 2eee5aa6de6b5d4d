"""DistributedOptimizer: the user's optimizer, with gradients averaged over all ranks before each step.

Here its options become the parts that do it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.adapt.attach import follow
from byteps_like.torch.calls.reductions import Adasum, Average, resolve_op
from byteps_like.torch.compression.rules import Rules, check_compression, rules_of
from byteps_like.torch.crossing.optimizer import check_crossing, crossing
from byteps_like.torch.factors.capture import module_with_factors
from byteps_like.torch.factors.router import factor_reducer
from byteps_like.torch.gradients.parts import Scaling
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.apart import apart
from byteps_like.torch.optimizer.adasum import AdasumOptimizerMixin, StepReducer
from byteps_like.torch.optimizer.choices import Choices, check_plain
from byteps_like.torch.optimizer.distributed import DistributedOptimizerMixin, Distribution
from byteps_like.torch.optimizer.onebit_adam import OnebitAdam
from byteps_like.torch.optimizer.outsider import OutsiderMixin
from byteps_like.torch.optimizer.parameter_names import ParameterNames
from byteps_like.torch.optimizer.twin import Asked, DistributedTwin, twin_of
from byteps_like.torch.reduction.api import Adaptable
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.reduction.reducer import GradientReducer
from byteps_like.torch.sharded.optimizer import shard_reducer, sharded
from byteps_like.torch.stored.layers import FactorLayers
from byteps_like.torch.stored.optimizer import stored
from byteps_like.torch.stored.periods import Periods
from byteps_like.torch.stored.terms import Consistencies, StoredTerms, stored_terms

logger = logging.getLogger(__name__)


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
    consistency: Consistencies | None = None,
    apply: str = "auto",
    push_every: int = 1,
    pull_every: int = 1,
    periods: Mapping[str, int] | None = None,
    **store: Any,
) -> Any:
    """Returns an optimizer that averages gradients over all ranks before each step.

    It has the class of `optimizer` and shares its state. Gradients are sent during backward, and `step()` waits for
    them. They live in one buffer per dtype, whose memory is reused: don't touch `p.grad` between backward and
    `synchronize()`, and don't keep a reference to it beyond the next backward.

    named_parameters: names of all parameters, as of `model.named_parameters()`, for error messages and rules.
    compression: Compression.fp16 or bf16, a codec ("thc4", Compression.topk(0.01)), "auto", BytePS's dictionary, or
        rules by names; "rows" for embeddings. None takes the setting `compression`. See docs/how-to/compression.md.
    backward_passes_per_step: number of backward passes whose gradients are summed before they are sent, as in PyTorch
        and Horovod.
    op: Average, Sum, or Adasum (of whole steps).
    gradient_predivide_factor: f divides gradients by f before the sum, and by size()/f after it.
    num_groups, groups: Horovod's; accepted and not needed.
    sparse_as_dense: sends sparse gradients as dense ones, and makes the results sparse again. By default they are sent
        by their rows.
    process_set: averages over its ranks only; the optimizers of other ranks work without communication.
    route: "server", "allreduce" (among the workers), or "auto", which takes servers if the job has any. The optimizer's
        `route` and `route_why` show the choice.
    cross_barrier: makes `step()` return at once; each module of `model` waits for its own parameters in the next
        forward (docs/explanation/scheduler.md).
    model: the module that `cross_barrier` and `sufficient_factors` need.
    shard: "optimizer" makes each rank keep and update only its share of the state, as ZeRO-2 does
        (docs/how-to/sharding.md).
    tune: "on", or a path to save to or to read from, finds the best settings while training (docs/how-to/tuner.md).
    sufficient_factors: "auto" or True sends gradients of Linear weights as factors (docs/how-to/sufficient-factors.md).
    consistency: "bsp", every step is everybody's; or "asp", "ssp:s=3", "backup:b=1" and others: servers keep the
        weights, and ranks don't wait for each other, or not for long (docs/how-to/consistency.md). None takes the
        setting `enable_async`, which stands for "asp" and apply="worker". A list is tried with `tune`, the fastest
        stays; what is as fast as that, and stands before it, is preferred.
    apply: with another consistency than bsp, "server" sends gradients during backward, and servers update; "worker"
        makes each step here, and sends how far it went; "auto" takes servers if they have the update.
    push_every, pull_every: likewise, after how many steps; `periods`: by patterns of names, instead of both.
    store: likewise, `age`, `damp`, `codec`, `feedback`, `filters`, `on_loss`, `replicas` and `upper` (see Store); a
        codec is for matrices of `min_compress_bytes` and more.

    Blocks for one round trip. On the wire, per step and rank, up and down: the parameters' bytes (half of them with a
    16-bit cast of float32), plus two elements per parameter. Raises InvalidArgumentError for options that exclude each
    other (docs/how-to/choose-options.md), MismatchError if the ranks' models differ, NotInitializedError.
    """
    del num_groups, groups
    check_plain(optimizer)
    terms = _terms(consistency, apply, Periods(push_every, pull_every, periods or {}), store, tune)
    names = ParameterNames(optimizer.__dict__, None if named_parameters is None else list(named_parameters))
    rules = _rules(optimizer, compression, whole=op is Adasum or terms is not None, shares=bool(shard))
    asked = Asked(op, gradient_predivide_factor, backward_passes_per_step, sparse_as_dense, process_set)
    choices = Choices(asked, route, model, cross_barrier, shard, tune, sufficient_factors, rules, terms is not None)
    choices.check(optimizer)
    if terms is None:
        twin = _distributed(optimizer, names, choices, compression)
    else:
        twin = stored(optimizer, names, terms, resolve_op(None, op), backward_passes_per_step, _layers(choices))
    twin._asked = asked
    return twin


def _layers(choices: Choices) -> FactorLayers:
    """Whose weights' gradients go to servers as factors."""
    wanted = choices.sufficient_factors
    return FactorLayers(module_with_factors(choices.model, wanted) if wanted else None)


def _distributed(
    optimizer: torch.optim.Optimizer, names: ParameterNames, choices: Choices, compression: object
) -> DistributedTwin:  # fmt: skip
    asked = choices.asked
    if asked.process_set is not None and not _runtime.current().includes(asked.process_set):
        return twin_of(optimizer, OutsiderMixin, asked.process_set, names)
    if asked.op is Adasum:
        steps = StepReducer(names, check_compression(compression), asked.process_set)
        return twin_of(optimizer, AdasumOptimizerMixin, steps, names)
    scaling = _scaling(resolve_op(None, asked.op), asked.gradient_predivide_factor)
    options = ReducerOptions(
        choices.rules, scaling, choices.route, asked.process_set, asked.sparse_as_dense, crossing=choices.cross_barrier
    )
    if isinstance(optimizer, OnebitAdam):
        options = replace(options, transform=optimizer.to_momentum)
    return _by_gradients(optimizer, names, options, choices)


def _terms(
    consistency: Consistencies | None,
    apply: str,
    periods: Periods,
    store: Mapping[str, Any],
    tune: str | os.PathLike[str] | None,
) -> StoredTerms | None:
    config = _runtime.settings()
    if consistency is None and config.enable_async:
        consistency, apply = "asp", "worker" if apply == "auto" else apply
    return stored_terms("bsp" if consistency is None else consistency, apply, periods, store, tune, config.tune)


def _by_gradients(
    optimizer: torch.optim.Optimizer, names: ParameterNames, options: ReducerOptions, choices: Choices
) -> DistributedTwin:  # fmt: skip
    passes = choices.asked.backward_passes_per_step
    model = check_crossing(optimizer, choices.model) if choices.cross_barrier else None
    if choices.shard:
        shares = shard_reducer(optimizer, names, options)
        shares.passes_per_step = passes
        _follow(shares, names, options, choices)
        twin: DistributedTwin = sharded(optimizer, names, shares, model)
        return twin
    with apart() if choices.asked.process_set is None else nullcontext():
        reducer = _reducer(names, options, choices)
        reducer.passes_per_step = passes
        if model is not None:
            return crossing(optimizer, reducer, model, names)
        return twin_of(optimizer, DistributedOptimizerMixin, Distribution(reducer), names)


def _reducer(names: ParameterNames, options: ReducerOptions, choices: Choices) -> GradientReducer:
    if choices.sufficient_factors:
        reducer = factor_reducer(names, options, choices.model, choices.sufficient_factors)
    else:
        reducer = GradientReducer(names, options)
    _follow(reducer, names, options, choices)
    return reducer


def _follow(reducer: Adaptable, names: ParameterNames, options: ReducerOptions, choices: Choices) -> None:
    options.rules.check_names(name for name, _ in names())
    if options.transform is None:
        reducer.codecs.take_rates(names.rates)
    follow(reducer, choices.tune)


def _rules(optimizer: object, compression: object, whole: bool, shares: bool) -> Rules:
    """What was asked for, else the setting: of gradients that go by themselves, not `whole` in another way.

    The setting is for the whole job, so it yields where gradients go to `shares` and its ways can't.
    """
    config = _runtime.settings()
    by_setting = compression is None and not whole and not isinstance(optimizer, OnebitAdam)
    if isinstance(optimizer, OnebitAdam):
        compression = optimizer.way(compression)
    elif by_setting:
        compression = config.compression
    plain = isinstance(optimizer, torch.optim.SGD | torch.optim.ASGD)
    rules = rules_of(compression, plain=plain, min_bytes=config.min_compress_bytes)
    return _for_shares(rules) if by_setting and shares else rules


def _for_shares(rules: Rules) -> Rules:
    runtime, fitting = _runtime.current(), rules.for_shares()
    if fitting.ways != rules.ways and not runtime.count("unfit for shares") and runtime.worker.rank == 0:
        logger.warning(
            "shard='optimizer': powersgd and rows of the setting compression=%r don't count, since neither factors nor"
            " rows have shares; these gradients travel raw",
            runtime.config.compression,
        )
    return fitting


def _scaling(op: Op, predivide: float) -> Scaling:
    if op not in (Op.AVERAGE, Op.SUM):
        raise InvalidArgumentError(f"gradients can't be reduced with op={op.name}; use Average or Sum")
    if predivide <= 0.0 or (predivide != 1.0 and op is not Op.AVERAGE):
        raise InvalidArgumentError(f"gradient_predivide_factor={predivide} must be positive, and needs op=Average")
    return Scaling(op, predivide)


def AsyncOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    *,
    consistency: Consistencies = "asp",
    damp: str | None = "inverse",
    **options: Any,
) -> Any:
    """`DistributedOptimizer` whose ranks never wait for each other; the older a gradient, the less it moves the
    weights (Zhang et al., "Staleness-aware Async-SGD", IJCAI 2016). `options`: more of DistributedOptimizer's."""
    return DistributedOptimizer(optimizer, named_parameters, consistency=consistency, damp=damp, **options)


def CrossBarrier(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | int | None = None,
    compression: object = None,
    backward_passes_per_step: int = 1,
    num_steps: int | None = None,
    **options: Any,
) -> Any:
    """BytePS's spelling of `DistributedOptimizer(optimizer, ..., cross_barrier=True, model=model)`, with its `options`.

    `num_steps`, here or in third place, is accepted and not needed: nothing has to be told when training ends.
    """
    del num_steps
    named = None if isinstance(named_parameters, int) else named_parameters
    return DistributedOptimizer(
        optimizer, named, compression, backward_passes_per_step, cross_barrier=True, model=model, **options
    )
