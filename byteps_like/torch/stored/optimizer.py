"""DistributedOptimizer with a consistency: servers keep the weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.arrays import Array
from byteps_like.store.combining.combining import check_weight
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.registry import policy_of, text_of
from byteps_like.store.saving.checkpoint import Taken
from byteps_like.store.saving.manifest import Manifest
from byteps_like.store.saving.saved import SavedContent
from byteps_like.store.updates.plain import Add
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.optimizer.outsider import OutsiderMixin
from byteps_like.torch.optimizer.parameter_names import ParameterNames
from byteps_like.torch.optimizer.twin import DistributedTwin, twin_of
from byteps_like.torch.stored.deltas import DeltaPushes
from byteps_like.torch.stored.gradients import GradientPushes
from byteps_like.torch.stored.layers import FactorLayers
from byteps_like.torch.stored.pushes import Contributed, Pushes
from byteps_like.torch.stored.rules import server_update
from byteps_like.torch.stored.terms import StoredTerms
from byteps_like.torch.stored.trials import ConsistencyTrials
from byteps_like.torch.stored.weights import KeptWeights

Closure = Callable[[], Any]


class StoredOptimizerMixin(DistributedTwin):
    """The methods of an optimizer whose weights servers keep. See optimizer.distributed.DistributedOptimizerMixin."""

    _distribution: Pushes

    route = "server"
    route_why = "servers keep the weights"
    tuned = None

    def step(self, closure: Closure | None = None) -> Any:
        """Contributes this rank's step, and blocks until the consistency lets it have the weights, which then land.

        `closure` is called once, before it; its loss is this rank's own, and returned. Raises the job's error, and
        InvalidArgumentError if a gradient was changed after it had gone to servers.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._distribution.step(super().step)
        return loss

    def block(self, weight: float | None = None) -> None:
        """Ends a block of the mini-batch, one backward of several in a step. Where servers have enough of other ranks,
        and are about to go on without this one, its blocks so far go to them now, and the rest with the step.

        `weight`: what the block counts of this rank's `weight`; None: its part of as many blocks as there are backward
        passes in a step. Never blocks. Call it after each backward; what has been sent is no longer in `.grad`. Raises
        InvalidArgumentError for a weight that makes no sense, and with apply="worker"; and the job's error.
        """
        self._distribution.block(weight)

    @property
    def weight(self) -> float:
        """What this rank's contributions count beside others: samples or tokens, say. Set it before backward."""
        return self._distribution.weight

    @weight.setter
    def weight(self, weight: float) -> None:
        check_weight(weight)
        self._distribution.weight = weight

    @property
    def consistency(self) -> str:
        """The text of the one in force."""
        return text_of(self._distribution.policy)

    @property
    def contributed(self) -> Contributed:
        """This rank's contributions so far: how many, how many were left out, and how old they were. Never blocks."""
        return self._distribution.contributed()

    @property
    def version(self) -> int:
        """Of the weights that landed last, as servers count: that of the parameter that has had the fewest updates."""
        return self._distribution.version()

    def pull(self) -> None:
        """Lands the weights that servers have now, to test or save them, as the consistency lets this rank have them.
        Blocks; raises the job's error."""
        self._distribution.pull()

    def change_consistency(self, consistency: Policy | str) -> None:
        """From here on another consistency holds, for contributions that wait, too. All ranks call it, between two
        steps; blocks until all have. If several were being tried, none is any more. Raises InvalidArgumentError for
        one that can't be, and within a step."""
        self._distribution.check_between_steps()
        self._distribution.change(policy_of(consistency, _runtime.current().worker.size))

    def checkpoint(self, path: str | os.PathLike[str]) -> int:
        """Writes the weights that servers keep, and the state of their updates, to a directory; the version. All
        ranks call it, between two steps. What ranks keep is not in it: gradients, and the state of an optimizer that
        they apply, which `state_dict()` has. See Store.checkpoint."""
        self._distribution.check_between_steps()
        return self._distribution.checkpoint(Path(path))

    def taken(self) -> Taken:
        """This rank's share of a checkpoint, in its memory. All ranks call it, between two steps. See Store.taken."""
        self._distribution.check_between_steps()
        return self._distribution.taken()

    def leave(self, leaving: Iterable[int] = ()) -> Taken:
        """What goes on in the next world of an elastic job. All ranks call it, between two steps. See Store.leave."""
        self._distribution.check_between_steps()
        return self._distribution.leave(leaving)

    def reopen(self) -> None:
        """Has servers of the next world of an elastic job keep the weights. See Store.reopen."""
        self._distribution.reopen()

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """Makes the weights and the state of their updates those of the world before, and lands them. All ranks
        call it, between two steps. See Store.take_over."""
        self._distribution.check_between_steps()
        self._distribution.take_over(manifest, contents)

    def residuals(self) -> dict[str, Array]:
        """By parameter, what a codec has left out of this rank's contributions. See Store.residuals."""
        return self._distribution.residuals()

    def owe(self, name: str, residual: Array) -> None:
        """Makes that what is left out of a parameter's contributions; see Store.owe."""
        self._distribution.owe(name, residual)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Gives servers a checkpoint of the same parameters, from any number of ranks and servers, and lands the
        weights. All ranks call it, between two steps. See Store.restore."""
        self._distribution.check_between_steps()
        self._distribution.restore(Path(path))

    def finish(self) -> None:
        """Training is over on this rank: lands the weights that all ranks have made, every contribution counted.

        All ranks call it; blocks until they have. Whoever is still training doesn't wait for this rank any more, so
        ranks may make different numbers of steps. To go on afterwards, `change_consistency`. Raises the job's error,
        and InvalidArgumentError within a step.
        """
        self._distribution.check_between_steps()
        self._distribution.finish()
        _runtime.current().worker.barrier()
        self.pull()

    def synchronize(self) -> None:
        """Does nothing where ranks apply gradients, which stay this rank's own, to be clipped or not before `step()`.
        Raises InvalidArgumentError where servers do."""
        self._distribution.check_unsent("synchronize()")

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """As `synchronize`."""
        self._distribution.check_unsent("skip_synchronize()")
        yield

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler asks. Raises InvalidArgumentError where servers would get scaled gradients."""
        self._distribution.check_unsent("GradScaler")
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the plain optimizer's. What servers have been given stays so."""
        self._distribution.restart()
        super().zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the plain optimizer's; all ranks must add the same group."""
        super().add_param_group(param_group)
        self._distribution.refresh()

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Gradients go to servers by the `passes`-th backward after a step. Call it between steps."""
        self._distribution.check_between_steps()
        super().set_backward_passes_per_step(passes)
        self._distribution.passes_per_step = passes

    def compression_report(self) -> list[Any]:
        """Empty."""
        return []

    def close(self) -> None:
        """Removes all hooks: nothing of these parameters goes to servers during backward. Idempotent."""
        self._distribution.close()


class AloneMixin(OutsiderMixin):
    """Where there is nobody else, and no server: every consistency is the plain optimizer's."""

    route_why = "this rank is alone, and there is no server"
    weight = 1.0
    consistency = ""
    contributed = Contributed()
    version = 0

    def pull(self) -> None:
        """Does nothing."""

    def finish(self) -> None:
        """Does nothing."""

    def change_consistency(self, consistency: Policy | str) -> None:
        """Nothing changes. Raises InvalidArgumentError for a consistency that can't be."""
        policy_of(consistency, 1)


def stored(
    optimizer: torch.optim.Optimizer,
    names: ParameterNames,
    terms: StoredTerms,
    op: Op,
    passes: int,
    layers: FactorLayers,
) -> DistributedTwin:
    """The twin of `optimizer` whose weights servers keep. Raises InvalidArgumentError for terms that can't be."""
    runtime = _runtime.current()
    first, *_ = terms.consistencies
    policies = [policy_of(one, runtime.worker.size) for one in terms.consistencies]
    if runtime.route.name == "none":
        return twin_of(optimizer, AloneMixin, None, names)
    if runtime.route.name != "server":
        raise InvalidArgumentError(
            f"rank {runtime.worker.rank}: consistency={first!r} needs servers, which keep the weights, and"
            " this job has none; start some (byteps-like run -s 1)",
            rank=runtime.worker.rank,
            operation="DistributedOptimizer",
        )
    store = {"consistency": policies[0], "combine": _combine(op), **terms.store}
    pushes: Pushes
    if _by_servers(optimizer, terms.apply, layers):
        weights = KeptWeights(names, _updates_of(optimizer), store, layers.__contains__)
        pushes = GradientPushes(weights, terms.periods, names.rates, policies[0], layers)
    else:
        pushes = DeltaPushes(KeptWeights(names, lambda _: Add(), store), terms.periods)
    pushes.passes_per_step = passes
    if len(policies) > 1:
        pushes.followers.append(ConsistencyTrials(pushes, policies, terms.tune))
    return twin_of(optimizer, StoredOptimizerMixin, pushes, names)


def _combine(op: Op) -> str:
    if op not in (Op.AVERAGE, Op.SUM):
        raise InvalidArgumentError(f"steps can't be combined with op={op.name}; use Average or Sum")
    return "mean" if op is Op.AVERAGE else "sum"


def _by_servers(optimizer: torch.optim.Optimizer, apply: str, layers: FactorLayers) -> bool:
    if apply == "worker" and not layers:
        return False
    able = all(server_update(type(optimizer), group) is not None for group in optimizer.param_groups)
    if layers and (apply == "worker" or not able):
        raise InvalidArgumentError(
            "sufficient_factors: servers multiply the factors of gradients, and must apply them, too; they have SGD"
            f" (without dampening), Adam and AdamW (without amsgrad) and Adagrad. With this {type(optimizer).__name__},"
            " apply='worker' or BYTEPS_ENABLE_ASYNC leave it out"
        )
    if apply == "server" and not able:
        raise InvalidArgumentError(
            f"apply='server': servers have no update like this {type(optimizer).__name__}; they have SGD (without"
            " dampening), Adam and AdamW (without amsgrad) and Adagrad. Leave it out, or pass apply='worker'"
        )
    return able


def _updates_of(optimizer: torch.optim.Optimizer) -> Callable[[torch.Tensor], ValueUpdate]:
    kind, attributes = type(optimizer), optimizer.__dict__  # the optimizer itself would be kept alive

    def update_of(parameter: torch.Tensor) -> ValueUpdate:
        for group in attributes["param_groups"]:
            if any(one is parameter for one in group["params"]):
                found = server_update(kind, group)
                if found is None:
                    raise InvalidArgumentError(f"servers have no update like {kind.__name__} with this group's options")
                return found
        raise InvalidArgumentError("the parameter is in no group")

    return update_of
