"""Values in memory that all ranks of a host have mapped, without servers and without locks: what Hogwild keeps.

A push adds to the values in place, while others do the same. Every element is written as a whole, but of two ranks that
change the same one at the same moment the first may be undone; so nothing here is exactly once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from byteps_like.dtypes import DType
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.arrays import Array
from byteps_like.store.memory.mapped import common_memory
from byteps_like.store.updates.plain import Add
from byteps_like.store.updates.registry import update_of
from byteps_like.store.updates.sgd import Sgd
from byteps_like.store.updates.update import ValueUpdate, decayed, is_finite
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.api import Declared, Worker
from byteps_like.worker.keeping import (
    CallHandle,
    KeepHandle,
    KeepSpec,
    KeptTensor,
    Outcome,
    SavingRequest,
    check_keep,
    check_note,
)

_LINE = 64
"""Bytes of a cache line: counts of two ranks share none."""

_CHUNK = 1 << 15
"""Elements that are changed at once: what is computed for them stays in the processor's cache."""

_COMBINES = {"mean:age=none,damp=none": False, "sum:age=none,damp=none": True}
"""By text, whether a contribution's weight counts: of a mean of one it doesn't."""


@dataclass(frozen=True, eq=False)
class Over:
    """The handle of an operation that was over before its call returned."""

    found: Sequence[Outcome] = ()

    def done(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def outcomes(self) -> Sequence[Outcome]:
        """Of each partition."""
        return self.found


class UnlockedValues:
    """Keeps tensors for ranks of one host. See worker.keeping.Keeps."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def keep(self, declared: Declared, spec: KeepSpec, initial: int = 0) -> KeptTensor:
        """See Keeps. Raises InvalidArgumentError for updates that have a state, ways of combining that look at ages,
        and ranks on several hosts."""
        check_keep(declared, spec, self._worker.size)
        rule, weighs = _rule(declared, spec), _weighs(declared, spec)
        return UnlockedTensor(self._worker, declared, rule, weighs, initial)

    def call(self, tensors: Sequence[Declared], text: bytes) -> CallHandle:  # noqa: ARG002 - there is nobody to run it
        """Raises InvalidArgumentError."""
        raise InvalidArgumentError(
            f"no server has {tensors[0].spec.name!r} to run a function on: with hogwild, compute with Store.view()"
        )

    def ask(self, requests: Sequence[SavingRequest]) -> CallHandle:
        """Raises InvalidArgumentError."""
        raise InvalidArgumentError(
            f"no server has {requests[0].declared.spec.name!r} to save or restore: with hogwild, save Store.view()"
        )

    @property
    def lasting(self) -> None:
        """It is of one world."""

    def let_go(self) -> None:
        """Nothing is ever set aside."""


class UnlockedTensor:
    """One tensor. See worker.keeping.KeptTensor."""

    def __init__(self, worker: Worker, declared: Declared, rule: ValueUpdate, weighs: bool, initial: int) -> None:
        """`initial`: the address of the first value, 0 where this rank has none."""
        self._declared, self._rule, self._weighs, self._rank = declared, rule, weighs, worker.rank
        counts = -(-len(declared.partitions) * 8 // _LINE) * _LINE
        memory = common_memory(worker, f"{declared.spec.name}/memory", worker.size * counts + declared.spec.nbytes)
        self._pushes = np.frombuffer(memory, np.int64, worker.size * counts // 8).reshape(worker.size, -1)
        self._value = np.frombuffer(memory, _numpy_type(declared.spec.dtype), offset=worker.size * counts)
        if initial:
            self._value[:] = _array(initial, declared.spec.numel, self._value.dtype)
        worker.barrier()

    @property
    def declared(self) -> Declared:
        """See KeptTensor."""
        return self._declared

    @property
    def view(self) -> Array:
        """The value itself, of the tensor's shape: what is written to it is there for all ranks."""
        return self._value.reshape(self._declared.spec.shape)

    def change(self, spec: KeepSpec) -> KeepHandle:  # noqa: ARG002 - of two policies by which nobody waits
        """Nothing changes: nobody waits for anybody."""
        return Over()

    def push(
        self, address: int, note: Note, *, parts: range | None = None,
        priority: int | None = None,  # noqa: ARG002 - it is over when this returns
    ) -> KeepHandle:  # fmt: skip
        """See KeptTensor. It is over when this returns."""
        check_note(self._declared, note)
        given = _array(address, self._declared.spec.numel, self._value.dtype)
        return Over([self._pushed(part, given, note) for part in self._parts(parts)])

    def tick(
        self, note: Note, *, parts: range | None = None,  # noqa: ARG002 - nothing is made of it
        priority: int | None = None,  # noqa: ARG002 - it is over when this returns
    ) -> KeepHandle:  # fmt: skip
        """Nothing happens: nobody waits for anybody."""
        return Over([Outcome(Applied.COUNTED, self._version(part)) for part in self._parts(parts)])

    def cut_off(self) -> Sequence[int]:
        """None: nobody waits for anybody."""
        return ()

    def pull(
        self, address: int, *, parts: range | None = None, least: int = 0,
        priority: int | None = None,  # noqa: ARG002 - it is over when this returns
    ) -> KeepHandle:  # fmt: skip
        """See KeptTensor; but what others write meanwhile may be among it, or not, element by element. Raises
        InvalidArgumentError for a version that there isn't yet."""
        out = _array(address, self._declared.spec.numel, self._value.dtype)
        versions = [self._version(part) for part in self._parts(parts)]
        if min(versions, default=least) < least:
            raise InvalidArgumentError(
                f"version={least} of {self._declared.spec.name!r}, which has had {min(versions)} contributions: with"
                " hogwild nobody waits"
            )
        for part in self._parts(parts):
            out[self._slice(part)] = self._value[self._slice(part)]
        return Over([Outcome(Applied.COUNTED, version) for version in versions])

    def _pushed(self, part: int, given: Array, note: Note) -> Outcome:
        where = self._slice(part)
        if not is_finite(given[where]):
            return Outcome(Applied.NOT_FINITE, self._version(part))
        lr = self._rule.rate(None if np.isnan(note.lr) else note.lr)
        for begin in range(where.start, where.stop, _CHUNK):
            chunk = slice(begin, min(begin + _CHUNK, where.stop))
            value = self._value[chunk]
            np.add(value, self._delta(value, given[chunk], note.weight if self._weighs else 1.0, lr), out=value)
        self._pushes[self._rank, part] += 1  # nobody else writes to this one
        return Outcome(Applied.COUNTED, self._version(part))

    def _delta(self, value: Array, given: Array, weight: float, lr: float) -> Array:
        kind = value.dtype.type
        weighed: Array = given if weight == 1.0 else kind(weight) * given
        if isinstance(self._rule, Sgd):
            weighed = -kind(lr) * decayed(weighed, value, self._rule.weight_decay)
        return weighed

    def _version(self, part: int) -> int:
        return int(self._pushes[:, part].sum())

    def _parts(self, parts: range | None) -> range:
        return range(len(self._declared.partitions)) if parts is None else parts

    def _slice(self, part: int) -> slice:
        one, size = self._declared.partitions[part], self._value.itemsize
        return slice(one.offset // size, (one.offset + one.nbytes) // size)


def _rule(declared: Declared, spec: KeepSpec) -> ValueUpdate:
    rule = update_of(spec.update)
    if not isinstance(rule, Add | Sgd):
        raise InvalidArgumentError(
            f"{declared.spec.name!r}: hogwild has the updates add and sgd, not {rule.name}, which would need more than"
            " one write for an element"
        )
    return rule


def _weighs(declared: Declared, spec: KeepSpec) -> bool:
    if spec.combine not in _COMBINES:
        raise InvalidArgumentError(
            f"{declared.spec.name!r}: with hogwild contributions are added as they come: combine can be 'sum' or"
            f" 'mean', without age and damp, not {spec.combine!r}"
        )
    return _COMBINES[spec.combine]


def _array(address: int, count: int, dtype: np.dtype[np.generic]) -> Array:
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    array: Array = np.frombuffer(memoryview(memory), dtype)
    return array


def _numpy_type(dtype: DType) -> np.dtype[np.generic]:
    return np.dtype(dtype.name.lower())
