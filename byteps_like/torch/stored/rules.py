"""What a torch optimizer does to a parameter, as an update that servers know."""

from __future__ import annotations

from typing import Any

import torch

from byteps_like.store.updates.adagrad import Adagrad
from byteps_like.store.updates.adam import Adam, AdamW
from byteps_like.store.updates.sgd import Momentum, Nesterov, Sgd
from byteps_like.store.updates.update import ValueUpdate

Group = dict[str, Any]


def server_update(kind: type[torch.optim.Optimizer], group: Group) -> ValueUpdate | None:
    """The update that does on a server what an optimizer `kind` does to parameters of `group`; None: servers have none.

    Of SGD, Adam, AdamW and Adagrad themselves: what a subclass does isn't known.
    """
    if group.get("maximize"):
        return None
    rule = _RULES.get(kind)
    return None if rule is None else rule(group)


def _sgd(group: Group) -> ValueUpdate | None:
    lr, decay, momentum = float(group["lr"]), float(group["weight_decay"]), float(group["momentum"])
    if not momentum:
        return Sgd(lr=lr, weight_decay=decay)
    if group["dampening"]:
        return None
    kind = Nesterov if group["nesterov"] else Momentum
    return kind(lr=lr, momentum=momentum, weight_decay=decay)


def _adam(group: Group) -> ValueUpdate | None:
    if group["amsgrad"]:
        return None
    beta1, beta2 = group["betas"]
    kind = AdamW if group.get("decoupled_weight_decay") else Adam
    return kind(float(group["lr"]), float(beta1), float(beta2), group["eps"], group["weight_decay"])


def _adamw(group: Group) -> ValueUpdate | None:
    return _adam({**group, "decoupled_weight_decay": True})


def _adagrad(group: Group) -> ValueUpdate | None:
    return Adagrad(
        lr=float(group["lr"]),
        lr_decay=group["lr_decay"],
        weight_decay=group["weight_decay"],
        initial=group["initial_accumulator_value"],
        eps=group["eps"],
    )


_RULES = {
    torch.optim.SGD: _sgd,
    torch.optim.Adam: _adam,
    torch.optim.AdamW: _adamw,
    torch.optim.Adagrad: _adagrad,
}
