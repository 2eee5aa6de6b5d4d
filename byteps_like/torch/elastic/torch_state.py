"""The state of PyTorch training: models, optimizers and samplers, each kept in its own way, and plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from byteps_like.errors import InvalidArgumentError, MismatchError
from byteps_like.store.arrays import Array
from byteps_like.torch.ddp.module import DistributedDataParallel
from byteps_like.torch.elastic.cuts.content import CutContent, KeptOnServers, LeavesOut, Owns
from byteps_like.torch.elastic.cuts.residuals import codec_state
from byteps_like.torch.elastic.sampler import ElasticSampler
from byteps_like.torch.elastic.state import ObjectState
from byteps_like.torch.elastic.synchronizing import synchronize_optimizer, synchronize_parameters
from byteps_like.torch.reduction.feedback_state import MEMORY, with_residuals

Value = TypeVar("Value")


@dataclass(frozen=True)
class HandlerCut:
    """What a handler has saved: trees of plain values and tensors."""

    common: Any
    """The same on all ranks; other objects in it are pickled."""
    own: Any = None
    """This rank's own, without other objects."""


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

    def cut(self) -> HandlerCut:
        """What was saved last, to be written to disk: nobody changes it afterwards."""
        raise InvalidArgumentError(f"{type(self).__name__} has no cut(), with which the state could go to disk")

    def resume(self, common: Any, owns: Owns) -> None:  # noqa: ARG002 - for those that define it
        """Takes, and saves, what a cut has."""
        raise InvalidArgumentError(f"{type(self).__name__} has no resume(), with which the state could come from disk")


class ModelStateHandler(StateHandler[torch.nn.Module]):
    """Parameters and buffers."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self._saved: dict[str, Any] = {}
        self._is_lent = False
        self.save()

    def save(self) -> None:
        """See StateHandler. The memory of the last time is used again, unless a cut has it."""
        if self._is_lent:
            self._saved, self._is_lent = {}, False
        saved = self._saved
        for name, now in self.value.state_dict().items():
            kept = saved.get(name)
            if isinstance(now, torch.Tensor) and isinstance(kept, torch.Tensor) and _alike(now, kept):
                kept.copy_(now)
            else:
                saved[name] = now.detach().clone() if isinstance(now, torch.Tensor) else deepcopy(now)

    @property
    def saved(self) -> Mapping[str, Any]:
        """What was saved last: a tree that the next save changes."""
        return self._saved

    def restore(self) -> None:
        """See StateHandler."""
        self.value.load_state_dict(self._saved)

    def sync(self) -> None:
        """See StateHandler. Only tensors that differ from rank 0's on some rank are sent."""
        synchronize_parameters(self.value.state_dict())
        self.save()

    def cut(self) -> HandlerCut:
        """See StateHandler. The next save takes other memory."""
        saved, self._saved = self._saved, dict(self._saved)
        self._is_lent = True
        own = self.value.codec_state() if isinstance(self.value, DistributedDataParallel) else None
        return HandlerCut(saved, own or None)

    def resume(self, common: Any, owns: Owns) -> None:
        """See StateHandler."""
        self.value.load_state_dict(common)
        if isinstance(self.value, DistributedDataParallel):
            self.value.load_codec_state(codec_state(owns))
        self.save()


class OptimizerStateHandler(StateHandler[torch.optim.Optimizer]):
    """Its state and hyper-parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(optimizer)
        self.save()

    def save(self) -> None:
        """See StateHandler."""
        self._saved = deepcopy(self.value.state_dict())

    @property
    def saved(self) -> Mapping[str, Any]:
        """What was saved last, but for what codecs of this rank remember: a tree."""
        return {name: one for name, one in self._saved.items() if name != MEMORY}

    def restore(self) -> None:
        """See StateHandler."""
        self.value.load_state_dict(deepcopy(self._saved))

    def sync(self) -> None:
        """See StateHandler. Sends as for models. What codecs of this rank have left out stays its own."""
        own = self.value.state_dict().get(MEMORY) if MEMORY in self._saved else None
        synchronize_optimizer(self.value)
        if own:
            self.value.load_state_dict(with_residuals(self.value.state_dict(), own))
        self.save()

    def cut(self) -> HandlerCut:
        """See StateHandler. What codecs remember is this rank's own."""
        return HandlerCut(self.saved, self._saved.get(MEMORY))

    def resume(self, common: Any, owns: Owns) -> None:
        """See StateHandler. What codecs of ranks that there are no longer have left out is added to rank 0's."""
        memory = codec_state(owns)
        self.value.load_state_dict(common if memory is None else {**common, MEMORY: memory})
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

    def cut(self) -> HandlerCut:
        """See StateHandler. Has what this rank knows: at a commit, what all have processed."""
        processed = torch.from_numpy(np.packbits(self._saved.processed))
        return HandlerCut({"epoch": self._saved.epoch, "samples": len(self._saved.base), "processed": processed})

    def resume(self, common: Any, owns: Owns) -> None:  # noqa: ARG002 - of all ranks
        """See StateHandler. What is not processed is dealt out among the ranks that there are now."""
        own, theirs = len(self._saved.base), common["samples"]
        if own != theirs:
            raise MismatchError(f"the cut is of an ElasticSampler of {theirs} samples, and this one has {own}")
        self.value.go_on(common["epoch"], np.unpackbits(common["processed"].numpy(), count=own).astype(np.bool_))
        self.save()


class KeptHandler(StateHandler[KeptOnServers]):
    """What servers keep, and a world takes with it. Only cuts have it."""

    def save(self) -> None:
        """Does nothing."""

    def restore(self) -> None:
        """Does nothing: servers have it as it is."""

    def sync(self) -> None:
        """Does nothing: it is the same for all ranks."""

    def cut(self) -> HandlerCut:
        """See StateHandler. Servers' part is not here, but in State.kept_on_servers."""
        return HandlerCut(None)

    def resume(self, common: Any, owns: Owns) -> None:
        """Does nothing. See `cut`."""


_registry: list[tuple[type, Callable[[Any], StateHandler[Any]]]] = [
    (torch.nn.Module, ModelStateHandler),
    (torch.optim.Optimizer, OptimizerStateHandler),
    (ElasticSampler, SamplerStateHandler),
    (KeptOnServers, KeptHandler),
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

    def cut_content(self) -> CutContent:
        """See State."""
        plain, kept = super().cut_content(), self.kept_on_servers()
        cuts = {name: handler.cut() for name, handler in self._handlers.items()}
        values = {name: one.own for name, one in cuts.items() if one.own is not None}
        residuals = {name: _tensors(one.residuals()) for name, one in kept.items() if isinstance(one, LeavesOut)}
        own = {**plain.own, "values": values, "residuals": residuals}
        common = {**plain.common, **{name: one.common for name, one in cuts.items()}}
        return CutContent(common, own, {name: one.taken() for name, one in kept.items()})

    def resume_from_cut(self, common: Mapping[str, Any], owns: Owns) -> None:
        """See State. Raises MismatchError where the cut has not what handlers keep."""
        if missing := self._handlers.keys() - common.keys():
            raise MismatchError(f"the cut has nothing of {', '.join(map(repr, sorted(missing)))}, which this state has")
        for name, handler in self._handlers.items():
            handler.resume(common[name], owns.of(name))
        super().resume_from_cut(common, owns)

    def kept_on_servers(self) -> dict[str, KeptOnServers]:
        """See State."""
        values = {name: handler.value for name, handler in self._handlers.items()}
        return {name: value for name, value in values.items() if isinstance(value, KeptOnServers)}

    def _samplers(self) -> list[ElasticSampler]:
        return [handler.value for handler in self._handlers.values() if isinstance(handler, SamplerStateHandler)]

    def _progress(self) -> list[int]:
        return [sampler.progress for sampler in self._samplers()]

    def _hear_progress(self, ranks: list[list[int]]) -> None:
        for place, sampler in enumerate(self._samplers()):
            sampler.hear_progress([row[place] for row in ranks])


def handlers_of(state: TorchState) -> Mapping[str, StateHandler[Any]]:
    """What keeps models, optimizers and others that have one, by name."""
    return state._handlers


def _handler_of(value: Any) -> StateHandler[Any] | None:
    return next((make(value) for kind, make in _registry if isinstance(value, kind)), None)


def _tensors(arrays: Mapping[str, Array]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def _alike(now: torch.Tensor, kept: torch.Tensor) -> bool:
    return now.shape == kept.shape and now.dtype == kept.dtype and now.device == kept.device
