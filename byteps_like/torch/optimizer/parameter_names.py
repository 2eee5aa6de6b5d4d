"""Which parameters an optimizer has now, and what to call them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.gradients.parts import Named


class ParameterNames:
    """Lists the (name, parameter) pairs of an optimizer, as they are at the time of the call.

    `attributes` is the optimizer's `__dict__`: the optimizer itself would be kept alive by it. Without a name given
    by the user a parameter is called after its place, `group0.parameter3`.
    """

    def __init__(self, attributes: dict[str, Any], named: Sequence[Named] | None) -> None:
        self._attributes = attributes
        self._ids: list[int] = []
        self._listed: list[Named] = []
        self._names = {} if named is None else _checked(named)
        if named is not None:
            self._check_complete()

    def __call__(self) -> list[Named]:
        """The pairs, in the order of the groups: the same list as before while these are the same."""
        ids: list[int] = []
        for group in self._attributes["param_groups"]:
            ids += (len(group["params"]), *map(id, group["params"]))
        if ids != self._ids:
            self._ids, self._listed = ids, self._pairs()
        return self._listed

    def _pairs(self) -> list[Named]:
        return [
            (self._names.get(id(parameter), f"group{number}.parameter{place}"), parameter)
            for number, group in enumerate(self._attributes["param_groups"])
            for place, parameter in enumerate(group["params"])
        ]

    def by_parameter(self) -> dict[torch.Tensor, str]:
        """The names by parameter, as Horovod has them: without one from the user `allreduce.noname.0.3`."""
        return {
            parameter: self._names.get(id(parameter), f"allreduce.noname.{number}.{place}")
            for number, group in enumerate(self._attributes["param_groups"])
            for place, parameter in enumerate(group["params"])
        }

    def rates(self) -> dict[int, float]:
        """The learning rate of each parameter, by its id; 1 where a group has none."""
        groups = self._attributes["param_groups"]
        return {id(parameter): float(group.get("lr", 1.0)) for group in groups for parameter in group["params"]}

    def _check_complete(self) -> None:
        missing = sum(id(parameter) not in self._names for _, parameter in self())
        if missing:
            raise InvalidArgumentError(
                f"named_parameters has no name for {missing} of the optimizer's parameters; pass the"
                " named_parameters() of the model that the optimizer trains"
            )


def _checked(named: Sequence[Named]) -> dict[int, str]:
    if any(not (isinstance(item, tuple) and len(item) == 2) for item in named):
        raise InvalidArgumentError("named_parameters must be pairs of name and parameter, as model.named_parameters()")
    names: dict[str, torch.Tensor] = {}
    for name, parameter in named:
        if names.setdefault(name, parameter) is not parameter:
            raise InvalidArgumentError(f"named_parameters has {name!r} twice; names must be unique")
    return {id(parameter): name for name, parameter in reversed(names.items())}
