"""Adam whose momentum travels in one bit per element, once its variance has settled. Tang et al., ICML 2021."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from byteps_like.compression.codec import Codec, Trait
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.policy import Compress

if TYPE_CHECKING:
    from byteps_like.torch.gradients.arena import Arena
    from byteps_like.torch.gradients.slot import Slot


class OnebitAdam(torch.optim.Optimizer):
    """1-bit Adam (Tang et al., ICML 2021): Adam that sends compressed momenta, for use with DistributedOptimizer.

        optimizer = bps.OnebitAdam(model.parameters(), lr=1e-3, freeze_step=2000)
        optimizer = bps.DistributedOptimizer(optimizer, model.named_parameters())

    Plain Adam divides by a variance, so error feedback harms it. 1-bit Adam therefore has two phases. For `freeze_step`
    steps, typically 15 to 25 % of the training, it is Adam on averaged, uncompressed gradients. After that the variance
    is frozen, and each rank's momentum, b1 m + (1 - b1) g, is averaged through `codec` with error feedback; the result
    is the new m of all ranks. Servers that encode sums again keep feedback, too. Parameters that compression skips
    (such as those of one dimension) keep sending uncompressed gradients; their variance is frozen as well.

    params, lr, betas, eps: as in torch.optim.Adam.
    weight_decay: as in torch.optim.AdamW.
    freeze_step: number of steps of the first phase, from 1; the same on all ranks.
    codec: a codec of byteps_like.compression or its text.

    In the second phase `p.grad` holds the momentum after `synchronize()`, so clip gradients before it. A loss scaler
    must not change its scale then; bfloat16 needs none. Raises InvalidArgumentError for values out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        freeze_step: int = 1000,
        codec: str | Codec = "onebit",
    ) -> None:
        if not (0.0 <= betas[0] < 1.0 and 0.0 <= betas[1] < 1.0 and freeze_step >= 1):
            raise InvalidArgumentError(f"OnebitAdam: betas={betas} must be in [0, 1), freeze_step={freeze_step} from 1")
        self._codec = codec_of(codec) if isinstance(codec, str) else codec
        self._freeze_step = freeze_step
        self._averaged: set[int] = set()
        """Ids of parameters whose `p.grad` is, or will be, a momentum."""
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def way(self, compression: object = None) -> Compress:
        """How gradients, later momenta, travel. Raises InvalidArgumentError if `compression` says otherwise."""
        if compression is not None:
            raise InvalidArgumentError("OnebitAdam has a codec of its own: OnebitAdam(codec=...), no compression=")
        two_way = self._codec.trait is Trait.REENCODE
        return Compress(self._codec, feedback=True, two_way=two_way, warmup=((self._freeze_step, None),))

    def to_momentum(self, arena: Arena, slot: Slot) -> None:
        """Makes this rank's momentum of a gradient that is about to be sent, if momenta travel by now."""
        parameter = slot.parameter
        if not arena.is_coded:
            self._averaged.discard(id(parameter))
            return
        beta = next(group["betas"][0] for group in self.param_groups if _has(group, parameter))
        slot.region.mul_(1.0 - beta)
        if parameter in self.state:
            slot.region.add_(self.state[parameter]["exp_avg"], alpha=beta)
        self._averaged.add(id(parameter))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. `closure` is called once, before it."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
                # Not of all: across the barrier a step updates only what has landed.
                self._averaged.discard(id(parameter))
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        grad, (beta1, beta2), state = parameter.grad, group["betas"], self.state[parameter]
        if not state:
            state.update(step=0, settled=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        averaged = id(parameter) in self._averaged
        if averaged:
            state["exp_avg"].copy_(grad)
        else:
            state["exp_avg"].lerp_(grad, 1.0 - beta1)
        if not averaged and state["step"] <= self._freeze_step:
            state["exp_avg_sq"].mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
            state["settled"] += 1
        deviation = (state["exp_avg_sq"] / (1.0 - beta2 ** state["settled"])).sqrt_().add_(group["eps"])
        rate = float(group["lr"])
        parameter.mul_(1.0 - rate * group["weight_decay"])
        parameter.addcdiv_(state["exp_avg"], deviation, value=-rate / (1.0 - beta1 ** state["step"]))


def _has(group: dict[str, Any], parameter: torch.Tensor) -> bool:
    return any(known is parameter for known in group["params"])
