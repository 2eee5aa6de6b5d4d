"""DistributedOptimizer with shard="optimizer": each rank keeps the optimizer's state for its share of each chunk.

ZeRO's stages 1 and 2 (Rajbhandari et al., SC'20) by CoCoNet's fusion (Jangda et al., ASPLOS'22): reduce-scatter,
update of the share, all-gather, chunk by chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.crossing.optimizer import CrossBarrierMixin, crossing
from byteps_like.torch.optimizer.distributed import DistributedOptimizerMixin, Distribution, averaged
from byteps_like.torch.optimizer.parameter_names import ParameterNames
from byteps_like.torch.optimizer.twin import twin_of
from byteps_like.torch.reduction.options import ReducerOptions
from byteps_like.torch.sharded.reducer import ShardReducer
from byteps_like.torch.sharded.state import gathered, scattered, state_bytes
from byteps_like.torch.sharded.update import SliceOptimizer, check_elementwise


@dataclass(frozen=True)
class ShardMemory:
    """Bytes that this rank keeps. Without sharding, state and gradients would be those of all shares."""

    parameters: int
    gradients: int
    """Reduced gradients: this rank's share of each chunk."""
    state: int
    staging: int
    """Gradients on their way to the network, and free buffers for them; shares as they land, where they are cast."""
    remembered: int
    """What error feedback and momentum before a codec keep: of all gradients that this rank encodes, not of a share."""


class ShardedOptimizerMixin(DistributedOptimizerMixin):
    """The methods that differ from those of a DistributedOptimizer whose state is whole on every rank."""

    @property
    def _shares(self) -> ShardReducer:
        reducer: Any = self._distribution.reducer
        return reducer  # type: ignore[no-any-return]

    @torch.optim.Optimizer.profile_hook_step
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step with averaged gradients: each rank updates its share of each chunk, and hands it to the others.

        `closure` is called once, before it, and the mean of its loss over the ranks returned. Blocks until all
        parameters are new. Gradients are gone afterwards. Raises what `synchronize` raises, and what the plain
        optimizer's own step raises on this rank: its shares that were not updated by then go to the others as they are.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        step = self._shares.step()
        self._distribution.restart()
        if closure is not None:
            loss = averaged(loss, self._distribution)
        step.check()
        return loss

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clips the norm of all gradients as one vector, as torch.nn.utils.clip_grad_norm_; returns the norm.

        Call it between backward and `step()`, on all ranks. Blocks until all gradients are reduced, and for one
        all-reduce of one number; the updates then no longer overlap with the reduction.
        """
        if norm_type <= 0:
            raise InvalidArgumentError(f"norm_type={norm_type} must be positive, or inf")
        self.synchronize()
        norm = self._shares.norm(float(norm_type))
        factor = float(max_norm) / (norm + 1e-6)
        if factor < 1.0:
            self._shares.scale(factor)
        return torch.tensor(norm, device="cpu")

    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's state_dict, with the whole state on every rank: for any world size, or none.

        All ranks must call it. Blocks; on the wire: the bytes of the whole state.
        """
        own, plain = self._shares, self.state
        found = gathered(own.arenas, own.slices.state, own.exchange)
        ordered = (parameter for group in self.param_groups for parameter in group["params"])
        self.state = {parameter: found[parameter] for parameter in ordered if parameter in found}  # type: ignore[assignment]
        try:
            return super().state_dict()
        finally:
            self.state = plain

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a plain optimizer's state_dict and keeps this rank's share. Sends nothing."""
        super().load_state_dict(state_dict)
        self._keep_shares()

    def _keep_shares(self) -> None:
        own = self._shares
        own.slices.state.clear()
        own.slices.state.update(scattered(own.arenas, self.state))
        self.state.clear()

    def shard_memory(self) -> ShardMemory:
        """Bytes of what is kept on this rank."""
        arenas = self._shares.arenas
        return ShardMemory(
            parameters=sum(arena.data.nbytes for arena in arenas),
            gradients=sum(chunk.reduced.nbytes for arena in arenas for chunk in arena.chunks),
            state=state_bytes(self._shares.slices.state),
            staging=sum(arena.staging.nbytes + arena.landing_bytes for arena in arenas),
            remembered=sum(arena.coding.nbytes for arena in arenas if arena.coding is not None),
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """False: GradScaler then looks at the gradients, whose markers refuse it."""
        return False

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value


class ShardedCrossBarrierMixin(CrossBarrierMixin, ShardedOptimizerMixin):
    """Of a sharded optimizer whose step() doesn't wait: the next forward waits for all-gathers, layer by layer."""

    def _step_at_once(self) -> None:
        self._shares.step().check()

    def _advance(self) -> Callable[[list[torch.Tensor]], None]:
        """Nothing: shares are updated before they are gathered, by the hyper-parameters that step() has taken."""
        return _updated_already

    def shard_memory(self) -> ShardMemory:
        """As ShardedOptimizerMixin's, after the updates of the last step(). Blocks; raises as `synchronize`."""
        self._distribution.guards.finish()
        return super().shard_memory()


def _updated_already(parameters: list[torch.Tensor]) -> None:
    pass


def shard_reducer(
    optimizer: torch.optim.Optimizer, names: ParameterNames, options: ReducerOptions
) -> ShardReducer:  # fmt: skip
    """Reduces to shares what `optimizer` updates, and updates these. Its state stays where it is. Blocks for a round
    trip. Raises InvalidArgumentError."""
    check_elementwise(optimizer)
    slices = SliceOptimizer(type(optimizer), optimizer.__dict__)
    return ShardReducer(names, replace(options, route="allreduce", sparse_as_dense=True), slices)


def sharded(
    optimizer: torch.optim.Optimizer, names: ParameterNames, reducer: ShardReducer, model: torch.nn.Module | None
) -> Any:  # fmt: skip
    """The sharded twin of `optimizer`, which hands its state over: nothing that may be refused should follow. `model`:
    whose forward waits for its parameters in place of step(), if that is to be."""
    if model is None:
        twin: Any = twin_of(optimizer, ShardedOptimizerMixin, Distribution(reducer), names)
    else:
        twin = crossing(optimizer, reducer, model, names, ShardedCrossBarrierMixin)
    twin._keep_shares()
    return twin
