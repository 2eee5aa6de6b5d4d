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

    Hyper-parameters and other attributes are read from the plain optimizer for each step, so schedulers work. What a
    step changes of them (a counter of steps, say) is written back once a step, by `end`. Hooks aren't run.
    """

    def __init__(self, kind: type[torch.optim.Optimizer], attributes: dict[str, Any]) -> None:
        self.state: State = defaultdict(dict)
        self._kind, self._attributes = kind, attributes

    def begin(self) -> SliceStep:
        """A step, of which no slice is updated yet."""
        return SliceStep(self._kind, self._attributes, self.state)

    def end(self) -> None:
        """Once a step, whether its slices are updated or not: a step without any parameters says what a step changes
        beside them."""
        attributes = self._attributes
        ran = self.begin().run({number: [] for number in range(len(attributes["param_groups"]))}, defaultdict(dict))
        for group, after in zip(attributes["param_groups"], ran.param_groups, strict=True):
            group.update((key, value) for key, value in after.items() if key != "params")
        attributes.update((key, value) for key, value in ran.__dict__.items() if key not in _OWN)


class SliceStep:
    """One step of the slices, by hyper-parameters as they were when it began, whatever becomes of them meanwhile."""

    def __init__(self, kind: type[torch.optim.Optimizer], attributes: Mapping[str, Any], state: State) -> None:
        self._kind, self._step, self._state = kind, _unhooked(kind), state
        self._attributes = {key: value for key, value in attributes.items() if key not in _OWN}
        self._groups = [_captured(group) for group in attributes["param_groups"]]
        groups = enumerate(attributes["param_groups"])
        self._places = {parameter: number for number, group in groups for parameter in group["params"]}
        self.failure: Exception | None = None
        """What the optimizer has raised in `attempt`."""

    def attempt(self, call: Callable[..., None], *arguments: Any) -> None:
        """Makes a call that runs the optimizer, unless one has failed: the round has to go on, since other ranks wait
        for this one's shares. What fails is for `check` to raise."""
        if self.failure is None:
            try:
                call(*arguments)
            except Exception as error:  # noqa: BLE001 - raised by `check`
                error.add_note(_UNFINISHED)
                self.failure = error

    def check(self) -> None:
        """Raises what the optimizer has raised, once the round is over."""
        if self.failure is not None:
            raise self.failure

    def update(self, pairs: Iterable[Pair]) -> None:
        """Updates slices, of which those without gradients are left alone by the optimizer itself."""
        by_group: dict[int, list[torch.nn.Parameter]] = {}
        for parameter, piece in pairs:
            if parameter in self._places and piece.grad is not None:
                by_group.setdefault(self._places[parameter], []).append(piece)
        if by_group:
            self.run(by_group, self._state)

    def run(self, params: Mapping[int, list[torch.nn.Parameter]], state: State) -> torch.optim.Optimizer:
        """One run of the optimizer's own step() over slices by the numbers of their groups; returns what ran."""
        runner = object.__new__(self._kind)
        runner.__dict__ = self._attributes | {hook: OrderedDict() for hook in _HOOKS}
        runner.state = state  # type: ignore[assignment]
        runner.param_groups = [{**self._groups[number], "params": slices} for number, slices in params.items()]
        self._step(runner)
        return runner


_UNFINISHED = (
    "some of this rank's shares were not updated by this step, others were, and so was their state; parameters are the"
    " same on all ranks, which did not hear of it: go on from a checkpoint if that matters"
)


def _captured(group: Mapping[str, Any]) -> dict[str, Any]:
    """Without parameters. Learning rates may be tensors, which schedulers change in place."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) else value
        for key, value in group.items()
        if key != "params"
    }


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
            trial.begin().update(zip(parameters, parameters, strict=True))
            trial.end()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])
