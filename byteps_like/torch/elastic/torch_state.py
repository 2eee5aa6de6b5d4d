"""The state of PyTorch training: models, optimizers and samplers, each kept in its own way, and plain values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Generic, TypeVar

import torch

from byteps_like.torch.elastic.sampler import ElasticSampler
from byteps_like.torch.elastic.state import ObjectState
from byteps_like.torch.optimizer.broadcasts import broadcast_optimizer_state, broadcast_parameters

Value = TypeVar("Value")


class StateHandler(Generic[Value]):
    """How one value is kept. `value` may be replaced by another one of its kind."""

    def __init__(self, value: Value) -> None:
        self.value = value

    def save(self) -> None:
        """Keeps it in this process."""
        raise NotImplementedError

    def restore(self) -> None:
        """Makes it what was saved last."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes it that of rank 0, and saves it. All ranks call it."""
        raise NotImplementedError

    def set_value(self, value: Value) -> None:
        """Keeps `value` from now on."""
        self.value = value
        self.save()


class ModelStateHandler(StateHandler[torch.nn.Module]):
    """Parameters and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self._saved: dict[str, Any] = {}
        self.save()

    def save(self) -> None:
        """See StateHandler. The memory of the last time is used again."""
        saved = self._saved
        for name, now in self.value.state_dict().items():
            kept = saved.get(name)
            if isinstance(now, torch.Tensor) and isinstance(kept, torch.Tensor) and _alike(now, kept):
                kept.copy_(now)
            else:
                saved[name] = now.detach().clone() if isinstance(now, torch.Tensor) else deepcopy(now)

    def restore(self) -> None:
        """See StateHandler."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """See StateHandler."""
        broadcast_parameters(self.value.state_dict(), root_rank=0)
        self.save()


class OptimizerStateHandler(StateHandler[torch.optim.Optimizer]):
    """Its state and hyper-parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.save()

    def save(self) -> None:
        """See StateHandler."""
        self._saved = deepcopy(self.value.state_dict())

    def restore(self) -> None:
        """See StateHandler."""
        self.value.load_state_dict(deepcopy(self._saved))

    def sync(self) -> None:
        """See StateHandler."""
        broadcast_optimizer_state(self.value, root_rank=0)
        self.save()


class SamplerStateHandler(StateHandler[ElasticSampler]):
    """Which samples have been processed, by which rank."""

    def __init__(self, sampler: ElasticSampler) -> None:
        super().__init__(sampler)
        self.save()

    def save(self) -> None:
        """See StateHandler."""
        self._saved = self.value.snapshot()

    def restore(self) -> None:
        """See StateHandler."""
        self.value.go_back(self._saved)

    def sync(self) -> None:
        """See StateHandler. In a world in which ranks have begun, what any of them has processed counts."""
        self.value.sync()
        self.save()


_registry: list[tuple[type, Callable[[Any], StateHandler[Any]]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
]


def get_handler_registry() -> list[tuple[type, Callable[[Any], StateHandler[Any]]]]:
    """Types of values, and what makes the handler of one; the first that fits counts."""
    return list(_registry)


def set_handler_registry(registry: Sequence[tuple[type, Callable[[Any], StateHandler[Any]]]]) -> None:
    """Replaces what `get_handler_registry` returns, for states that are made from now on."""
    _registry[:] = registry


class TorchState(ObjectState):
    """A model, an optimizer, and whatever else is named, as attributes: `TorchState(model, optimizer, batch=0)`.

    Models, optimizers and ElasticSamplers, under any name, are kept by handlers; everything else is copied and must be
    picklable. An attribute may be assigned: what has a handler is replaced for good.
    """

    def __init__(self, model: Any = None, optimizer: Any = None, **values: Any) -> None:
        named = {"model": model, "optimizer": optimizer}
        values = {name: value for name, value in named.items() if value is not None} | values
        self._handlers: dict[str, StateHandler[Any]] = {}
        for name, value in values.items():
            if (handler := _handler_of(value)) is not None:
                self._handlers[name] = handler
        for name in named.keys() - values.keys():
            object.__setattr__(self, name, None)
        super().__init__(**{name: value for name, value in values.items() if name not in self._handlers})

    def __getattr__(self, name: str) -> Any:
        handlers = self.__dict__.get("_handlers", {})
        if name not in handlers:
            raise AttributeError(f"{type(self).__name__} has no {name!r}")
        return handlers[name].value

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handlers[name].set_value(value)
        else:
            object.__setattr__(self, name, value)

    def save(self) -> None:
        """See State."""
        for handler in self._handlers.values():
            handler.save()
        super().save()

    def restore(self) -> None:
        """See State."""
        for handler in self._handlers.values():
            handler.restore()
        super().restore()

    def sync(self) -> None:
        """See State."""
        for handler in self._handlers.values():
            handler.sync()
        super().sync()

    def _samplers(self) -> list[ElasticSampler]:
        return [handler.value for handler in self._handlers.values() if isinstance(handler, SamplerStateHandler)]

    def _progress(self) -> list[int]:
        return [sampler.progress for sampler in self._samplers()]

    def _hear_progress(self, ranks: list[list[int]]) -> None:
        for place, sampler in enumerate(self._samplers()):
            sampler.hear_progress([row[place] for row in ranks])


def _handler_of(value: Any) -> StateHandler[Any] | None:
    return next((make(value) for kind, make in _registry if isinstance(value, kind)), None)


def _alike(now: torch.Tensor, kept: torch.Tensor) -> bool:
    return now.shape == kept.shape and now.dtype == kept.dtype and now.device == kept.device
