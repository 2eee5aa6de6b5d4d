"""Hooks of a model that wait for the parameters which are about to be used."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._compile import _disable_dynamo
from torch.utils.hooks import RemovableHandle

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.crossing.flight import StepInFlight
from byteps_like.torch.job import runtime as _runtime


class Guards:
    """Forward-pre-hooks on all modules of `model`: each waits for the module's own parameters, if they are in `flight`.

    A module in eval mode waits for all parameters below it, a state_dict() or load_state_dict() for everything.

    Some parameters are used without their module being called: nn.MultiheadAttention reads `out_proj.weight`. What has
    a gradient, though no module that holds it was called since the last step, is waited for by the nearest module
    around it that was; where there is none, by `step()` itself (`alone`).

    The hooks keep the flight alive, so a model that outlives its optimizer still gets its last update: they stay until
    that has been made. Modules are known by their ids, so that no cycle of references keeps a model.
    """

    def __init__(self, model: nn.Module, parameters: Iterable[torch.Tensor]) -> None:
        self.flight: StepInFlight | None = None
        self.alone: dict[int, torch.Tensor] = {}
        self._model = weakref.ref(model)
        self._called: set[int] = set()
        self._left = False  # by its optimizer
        self._asked_for_state = False
        self._crossed = False  # the last step left something in flight, and not all of it was waited for at once
        self._also: dict[int, dict[int, torch.Tensor]] = {}
        self._handles: dict[int, list[RemovableHandle]] = {}
        self.refresh(parameters)

    def refresh(self, parameters: Iterable[torch.Tensor]) -> None:
        """Looks at the model again, and at what the optimizer has: what is in no module is `alone`."""
        self._owners: dict[int, list[int]] = {}
        self._parents: dict[int, list[int]] = {}
        model = self._model()
        for module in () if model is None else model.modules():
            for parameter in module.parameters(recurse=False):
                self._owners.setdefault(id(parameter), []).append(id(module))
            for child in module.children():
                self._parents.setdefault(id(child), []).append(id(module))
            if id(module) not in self._handles:
                self._handles[id(module)] = list(self._hook(module))
        # Parameter -> the modules that wait for it: its owners, and who is known to read it.
        self._waiting = {key: set(modules) for key, modules in self._owners.items()}
        for reader, read in self._also.items():
            for key in read:
                self._waiting.setdefault(key, set()).add(reader)
        self.alone.update((id(item), item) for item in parameters if id(item) not in self._owners)

    def _hook(self, module: Any) -> Iterator[RemovableHandle]:
        yield module.register_forward_pre_hook(_Hook(self._enter), prepend=True)
        yield module.register_state_dict_pre_hook(_Hook(self._finish_for_state))
        # Its public name came with torch 2.5.
        yield module._register_load_state_dict_pre_hook(_Hook(self._finish_for_state), with_module=True)

    def leave(self) -> None:
        """The optimizer is gone: takes the hooks off the model once nothing is in flight."""
        self._left = True
        self._remove_if_left()

    def _remove_if_left(self) -> None:
        # torch goes through a module's hooks for its state as they are, through those of forward in a copy.
        if self._left and self.flight is None and not self._asked_for_state:
            self.remove()

    def remove(self) -> None:
        """Takes the hooks off the model. Idempotent."""
        for handles in self._handles.values():
            for handle in handles:
                handle.remove()
        self._handles.clear()

    def depart(self, flight: StepInFlight | None) -> None:
        """A step() has been made; `flight` is what it left behind."""
        self._called.clear()
        self.flight, self._crossed = flight, flight is not None
        self.wait_for(self.alone.values())

    def wait_for(self, parameters: Iterable[torch.Tensor]) -> None:
        """Blocks until `parameters` are updated. See StepInFlight.wait_for."""
        self._in_flight(lambda flight: flight.wait_for(parameters))

    def finish(self) -> None:
        """Blocks until all updates are made, whoever uses the parameters then. See StepInFlight.finish."""
        self._in_flight(StepInFlight.finish)
        self._crossed = False

    def land(self) -> None:
        """Blocks until all updates are made, and nothing is in flight. See StepInFlight.land."""
        self._in_flight(StepInFlight.land)

    def _in_flight(self, wait: Callable[[StepInFlight], None]) -> None:
        flight = self.flight
        if flight is None:
            return
        try:
            with _waiting():
                wait(flight)
        finally:
            if flight.over:
                self.flight = None

    def _enter(self, module: nn.Module) -> None:
        self._called.add(id(module))
        if self.flight is not None:
            self.wait_for(module.parameters(recurse=not module.training))
            if id(module) in self._also:
                self.wait_for(self._also[id(module)].values())
        self._remove_if_left()

    def _finish_for_state(self, _: nn.Module) -> None:
        self._asked_for_state = True
        try:
            self.finish()
        finally:
            self._asked_for_state = False

    def arrived(self, parameter: torch.Tensor) -> None:
        """Backward has made a gradient of `parameter`: somebody must have waited for it.

        Raises InvalidArgumentError if nobody did: it may have been used before it was updated, on this rank or another.
        """
        key = id(parameter)
        if key in self.alone or any(module in self._called for module in self._waiting.get(key, ())):
            return
        around = {module for owner in self._owners.get(key, ()) for module in self._called_around(owner)}
        for module in around:
            self._also.setdefault(module, {})[key] = parameter
        if around:
            self._waiting[key] = self._waiting[key] | around
        else:
            self.alone[key] = parameter
        if self._crossed:
            raise InvalidArgumentError(_STALE.format(name=self._name(parameter)))

    def _called_around(self, module: int) -> list[int]:
        """The nearest modules around `module` that were called since the last step."""
        ring, seen = [module], {module}
        while ring:
            ring = [parent for inner in ring for parent in self._parents.get(inner, ()) if parent not in seen]
            seen.update(ring)
            if called := [parent for parent in ring if parent in self._called]:
                return called
        return []

    def _name(self, parameter: torch.Tensor) -> str:
        model = self._model()
        named = () if model is None else model.named_parameters()
        return next((name for name, item in named if item is parameter), "a parameter")


def _waiting() -> AbstractContextManager[None]:
    """For what is within, this thread waits."""
    runtime = _runtime.if_installed()
    return nullcontext() if runtime is None else runtime.names.waits(None)


_STALE = (
    "cross_barrier=True: {name!r} was used before the update of the last step() was made, because forward() of the"
    " module that holds it was not called; call optimizer.synchronize() before you use it otherwise"
)


class _Hook:
    """A hook that copies and pickles of the model don't take along: they have no optimizer.

    In a compiled model it is a graph break.
    """

    def __init__(self, call: Callable[[nn.Module], None]) -> None:
        self._call = call

    @_disable_dynamo
    def __call__(self, module: nn.Module, *_: Any) -> None:
        self._call(module)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return _nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return _left_behind, ()


def _nothing(*_: Any) -> None:
    """In a copy of the model."""


def _left_behind() -> Callable[..., None]:
    return _nothing
