"""The plain optimizer's own class, run over slices of parameters; and which classes may be run so."""

from __future__ import annotations

import itertools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError

State = dict[torch.Tensor, dict[str, Any]]
Pair = tuple[torch.Tensor, torch.nn.Parameter]
"""A parameter and a slice of it."""

REFUSED = {
    "LBFGS": "its directions and line searches take all parameters together",
    "Adafactor": "its second moments are sums over rows and columns of a whole matrix",
    "Muon": "it orthogonalizes whole matrices",
    "Shampoo": "its preconditioners take whole matrices",
    "SOAP": "its preconditioners take whole matrices",
    "LARS": "its step depends on the norms of a whole layer",
    "LAMB": "its step depends on the norms of a whole layer",
    "OnebitAdam": "each rank makes the next momentum of the whole last one",
    "SparseAdam": "it takes sparse gradients only, and shards are dense",
}
"""Optimizers by name (of the class or a base, in any case of letters), and why they can't be sharded."""

_HOOKS = (
    "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks",
)  # fmt: skip
_OWN = {"state", "param_groups", "step", *_HOOKS}
_SHAPE, _CUTS = (6, 11), (0, 7, 40, 66)  # of the trial: a matrix, and the flat slices that must do as it does


class SliceOptimizer:
    """Runs the class of a plain optimizer, whose `__dict__` is `attributes`, over slices of its parameters.

    Hyper-parameters and other attributes are read from the plain optimizer for each slice, so schedulers work.
    What a step changes of them (a counter of steps, say) is written back once a step, by `end`. Hooks aren't run.
    """

    def __init__(self, kind: type[torch.optim.Optimizer], attributes: dict[str, Any]) -> None:
        self.state: State = defaultdict(dict)
        self._kind, self._attributes = kind, attributes
        self._step = _unhooked(kind)
        self._groups: dict[torch.Tensor, int] = {}

    def begin(self) -> None:
        """Before the first slices of a step: looks up which parameter is in which group."""
        groups = enumerate(self._attributes["param_groups"])
        self._groups = {parameter: number for number, group in groups for parameter in group["params"]}

    def update(self, pairs: Iterable[Pair]) -> None:
        """One step of slices, of which those without gradients are left alone by the optimizer itself."""
        by_group: dict[int, list[torch.nn.Parameter]] = {}
        for parameter, piece in pairs:
            if parameter in self._groups and piece.grad is not None:
                by_group.setdefault(self._groups[parameter], []).append(piece)
        if by_group:
            self._run(by_group, self.state)

    def end(self) -> None:
        """After the last: a step without any parameters says what a step changes beside them."""
        attributes = self._attributes
        ran = self._run({number: [] for number in range(len(attributes["param_groups"]))}, defaultdict(dict))
        for group, after in zip(attributes["param_groups"], ran.param_groups, strict=True):
            group.update((key, value) for key, value in after.items() if key != "params")
        attributes.update((key, value) for key, value in ran.__dict__.items() if key not in _OWN)

    def _run(self, params: Mapping[int, list[torch.nn.Parameter]], state: State) -> torch.optim.Optimizer:
        runner = object.__new__(self._kind)
        groups = self._attributes["param_groups"]
        runner.__dict__ = {key: value for key, value in self._attributes.items() if key not in _OWN}
        runner.__dict__ |= {hook: OrderedDict() for hook in _HOOKS}
        runner.state = state  # type: ignore[assignment]
        runner.param_groups = [{**groups[number], "params": slices} for number, slices in params.items()]
        self._step(runner)
        return runner


def _unhooked(kind: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], Any]:
    step: Any = kind.step
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[no-any-return]


def check_elementwise(optimizer: torch.optim.Optimizer) -> None:
    """Raises InvalidArgumentError unless the optimizer treats every element of a parameter by itself.

    Some are known by name. Others are tried, with the hyper-parameters of each group: two steps of a small matrix
    must do what two steps of its slices do.
    """
    kind = type(optimizer)
    for base in kind.__mro__:
        for name, why in REFUSED.items():
            if base.__name__.lower() == name.lower():
                raise InvalidArgumentError(
                    f"shard='optimizer' needs an elementwise optimizer, and {kind.__name__} is none: {why}"
                )
    distinct = {repr({k: v for k, v in group.items() if k != "params"}): group for group in optimizer.param_groups}
    for group in distinct.values():
        _try(kind, optimizer.__dict__, group)


def _try(kind: type[torch.optim.Optimizer], attributes: dict[str, Any], group: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(7)
    values = [torch.randn(_SHAPE, generator=generator, dtype=torch.float64, device="cpu") for _ in range(3)]
    try:
        whole = _tried(kind, attributes, group, [[value.clone()] for value in values])
        cuts = list(itertools.pairwise(_CUTS))
        parts = [[value.flatten()[begin:end].clone() for begin, end in cuts] for value in values]
        sliced = _tried(kind, attributes, group, parts)
    except Exception as error:
        raise InvalidArgumentError(
            f"shard='optimizer' can't run {kind.__name__} over slices of parameters: {type(error).__name__}: {error}"
        ) from error
    if not torch.allclose(sliced, whole, rtol=1e-9, atol=1e-12):
        raise InvalidArgumentError(
            f"shard='optimizer' needs an elementwise optimizer, and {kind.__name__} is none: steps of a matrix and of"
            " its slices do not come to the same"
        )


def _tried(
    kind: type[torch.optim.Optimizer], attributes: dict[str, Any], group: dict[str, Any],
    values: list[list[torch.Tensor]],
) -> torch.Tensor:  # fmt: skip
    """Where a step for each of `values[1:]` leads from `values[0]`."""
    parameters = [torch.nn.Parameter(value) for value in values[0]]
    trial = SliceOptimizer(kind, {**attributes, "param_groups": [{**group, "params": parameters}]})
    with torch.no_grad():
        for gradients in values[1:]:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            trial.begin()
            trial.update(zip(parameters, parameters, strict=True))
            trial.end()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
