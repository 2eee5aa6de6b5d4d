"""The parameters of an optimizer in stores, one for each update that some of them need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from pathlib import Path
from typing import Any

import torch

from byteps_like.store.arrays import Array
from byteps_like.store.future import Future
from byteps_like.store.policies.policy import Policy
from byteps_like.store.saving.carrying import hand_over
from byteps_like.store.saving.checkpoint import Taken, leave, restore, save, take
from byteps_like.store.saving.manifest import Manifest
from byteps_like.store.saving.saved import Saved, SavedContent
from byteps_like.store.store import Store, saved_together
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.torch.gradients.parts import Named
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.stored.layers import FactorPair, factors_combined
from byteps_like.worker.keeping import KeepHandle

UpdateOf = Callable[[torch.Tensor], ValueUpdate]


class _Kind(Enum):
    """How contributions to a parameter travel."""

    WHOLE = auto()
    ENCODED = auto()
    FACTORS = auto()


@dataclass
class _Read:
    """A value on its way to `memory`."""

    future: Future
    memory: torch.Tensor


@dataclass
class KeptWeights:
    """Opened when first used, with what rank 0 then has. All ranks use the same parameters in the same order.

    `store`: further arguments of every Store. `has_factors`: whose gradients come as two factors.
    """

    named: Callable[[], list[Named]]
    update_of: UpdateOf
    store: Mapping[str, Any]
    has_factors: Callable[[torch.Tensor], bool] = lambda _: False
    _stores: dict[int, Store] = field(default_factory=dict, init=False)
    """By the parameter's id."""
    _names: dict[int, str] = field(default_factory=dict, init=False)
    _memory: dict[int, torch.Tensor] = field(default_factory=dict, init=False)
    """Where its value lands, before it becomes the parameter's."""
    _reads: dict[int, _Read] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        runtime = _runtime.current()
        self._worker, self._least_encoded = runtime.worker, runtime.config.min_compress_bytes
        self._number = runtime.count("weights")
        self._label = f"weights.{self._number}"

    @property
    def policy(self) -> Policy:
        """The one in force."""
        found: Policy = self.store["consistency"]
        return found

    def open(self) -> None:
        """Has servers keep all that are trained. Blocks where one is new; raises as Store."""
        fresh = [(name, p) for name, p in self.named() if p.requires_grad and id(p) not in self._stores]
        alike: dict[tuple[ValueUpdate, _Kind], dict[str, torch.Tensor]] = {}
        for name, parameter in fresh:
            alike.setdefault((self.update_of(parameter), self._kind(parameter)), {})[name] = parameter
            self._names[id(parameter)] = name
        for (update, kind), parameters in alike.items():
            kept = {name: parameter.detach() for name, parameter in parameters.items()}
            label = f"{self._label}.{len(set(self._stores.values()))}"
            store = Store(label, kept, update=update, together=False, worker=self._worker, **self._terms_of(kind))
            self._stores.update({id(parameter): store for parameter in parameters.values()})

    def _kind(self, parameter: torch.Tensor) -> _Kind:
        if self.has_factors(parameter):
            return _Kind.FACTORS
        return _Kind.ENCODED if self._is_encoded(parameter) else _Kind.WHOLE

    def _terms_of(self, kind: _Kind) -> Mapping[str, Any]:
        if kind is _Kind.ENCODED:
            return self.store
        whole = {**self.store, "codec": "", "feedback": None}
        return {**whole, "combine": factors_combined(whole["combine"])} if kind is _Kind.FACTORS else whole

    def _is_encoded(self, parameter: torch.Tensor) -> bool:
        """Where there is a codec: not biases and norms, nor what is small, as in synchronous training."""
        return bool(self.store.get("codec")) and parameter.dim() > 1 and 4 * parameter.numel() >= self._least_encoded

    def change(self, policy: Policy) -> None:
        """Has another policy hold, from here on. Blocks until all ranks have called it; raises as Store.change."""
        self.open()
        self._wait_for(lambda store: store.start_change(policy))
        self.store = {**self.store, "consistency": policy}

    def settle(self) -> None:
        """Blocks until all ranks have called it; nobody's servers wait for those who have. What has been contributed
        counts then, if it can, and each contribution counts at once until another policy holds."""
        self.open()
        self._wait_for(Store.start_finish)

    def finish(self) -> None:
        """This rank contributes no more. Blocks until that is so of all; raises as Store.finish."""
        self.settle()
        for store in dict.fromkeys(self._stores.values()):
            store.exchange_above()

    def checkpoint(self, folder: Path) -> int:
        """Writes what servers keep of them; the version. See Store.checkpoint."""
        self.open()
        if not (every := list(dict.fromkeys(self._stores.values()))):
            return 0
        with saved_together(self._label, every) as saved:
            return save(saved, folder)

    def taken(self) -> Taken:
        """This rank's share of a checkpoint. See Store.taken."""
        return self._of_all(take)

    def leave(self, leaving: Iterable[int]) -> Taken:
        """What goes on in the next world. See Store.leave."""
        return self._of_all(partial(leave, leaving=leaving))

    def _of_all(self, take_from: Callable[[Saved], Taken]) -> Taken:
        self.open()
        if not (every := list(dict.fromkeys(self._stores.values()))):
            return Taken(self._label, self._worker.rank, tuple(range(self._worker.size)), {}, (), ())
        with saved_together(self._label, every) as saved:
            return take_from(saved)

    def reopen(self) -> None:
        """In the next world: see Store.reopen. What was on its way has ended with the one before."""
        self._reads.clear()
        runtime = _runtime.current()
        runtime.counted("weights", self._number)
        self._worker = runtime.worker
        for store in dict.fromkeys(self._stores.values()):
            store.reopen(self._worker)

    def take_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """See Store.take_over."""
        self.open()
        if every := list(dict.fromkeys(self._stores.values())):
            with saved_together(self._label, every) as saved:
                hand_over(saved, manifest, contents)

    def residuals(self) -> dict[str, Array]:
        """By parameter, what a codec has left out so far. See Store.residuals."""
        return {name: one for store in dict.fromkeys(self._stores.values()) for name, one in store.residuals().items()}

    def owe(self, name: str, residual: Array) -> None:
        """Makes that what is left out of a parameter's; see Store.owe. Nothing, where no such parameter is open."""
        for parameter, store in self._stores.items():
            if self._names[parameter] == name:
                store.owe(name, residual)

    def restore(self, folder: Path) -> None:
        """The same back; nothing has landed then. See Store.restore."""
        self.open()
        for read in self._reads.values():
            read.future.wait()
        self._reads.clear()
        if every := list(dict.fromkeys(self._stores.values())):
            with saved_together(self._label, every) as saved:
                restore(saved, folder)

    def _wait_for(self, start: Callable[[Store], list[KeepHandle]]) -> None:
        """Of all stores at once, since ranks that wait for one must not keep others waiting for the next."""
        for handle in [handle for store in dict.fromkeys(self._stores.values()) for handle in start(store)]:
            handle.wait()

    def name(self, parameter: torch.Tensor) -> str:
        """What it is called."""
        return self._names[id(parameter)]

    def push(self, parameter: torch.Tensor, value: torch.Tensor | FactorPair, **push: Any) -> Future:
        """Contributes `value`, which must stay as it is, to a parameter that is open. `push`: as Store.push has it."""
        return self._stores[id(parameter)].push(self.name(parameter), value, **push)

    def cut_off(self, parameter: torch.Tensor) -> tuple[int, ...]:
        """See Store.cut_off; of a parameter that is not open, none."""
        store = self._stores.get(id(parameter))
        return () if store is None else store.cut_off(self.name(parameter))

    def slices(self, parameter: torch.Tensor) -> tuple[slice, ...]:
        """Of each partition of a parameter that is open, which elements it has."""
        return self._stores[id(parameter)].slices(self.name(parameter))

    def start_read(self, parameter: torch.Tensor) -> None:
        """Asks for its value, unless that has been done; `finish_read` has it."""
        key = id(parameter)
        if key in self._reads:
            return
        memory = self._memory.get(key)
        if memory is None:
            dtype = torch.float64 if parameter.dtype is torch.float64 else torch.float32
            memory = self._memory[key] = torch.empty(parameter.shape, dtype=dtype, device="cpu")
        self._reads[key] = _Read(self._stores[key].pull(self.name(parameter), memory), memory)

    def finish_read(self, parameter: torch.Tensor) -> torch.Tensor:
        """Blocks until the policy lets this rank have it. It is there until the next read. Raises as Future.wait."""
        self.start_read(parameter)
        read = self._reads.pop(id(parameter))
        read.future.wait()
        return read.memory

    def version(self) -> int:
        """Of what was read last: the oldest."""
        return min((min(store.versions(self._names[key]), default=0) for key, store in self._stores.items()), default=0)
