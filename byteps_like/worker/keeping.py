"""What a worker does with values that servers keep: the seam between `byteps_like.store` and the runtime.

Plain addresses, sizes and texts, as in `worker.api`; no torch and no NumPy here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, runtime_checkable

from byteps_like.dtypes import DType
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.wire.note import Applied, Note, decode_note, encode_note
from byteps_like.worker.api import Declared


@dataclass(frozen=True)
class KeepSpec:
    """How servers keep a tensor: what all ranks give alike for all of its keys. The texts are canonical ones."""

    policy: str
    combine: str
    update: str
    width: int = 1
    """Elements of a row, which no partition may split: of what has a state, or a version, per row."""
    root: int | None = None
    """The rank that gives the first value; None: it begins as zeros."""
    filters: str = ""
    """What contributions go through, as canonical texts with a space between each two; "": nothing."""
    replicas: int = 1
    """Servers that have the value, as far as there are so many."""

    @property
    def text(self) -> str:
        """As servers are told, and compare."""
        copied = f"\nreplicas {self.replicas}" if self.replicas > 1 else ""
        filtered = f"\nfilters {self.filters}" if self.filters else ""
        return f"policy {self.policy}\ncombine {self.combine}\nupdate {self.update}{copied}{filtered}"

    def is_variant_of(self, other: KeepSpec) -> bool:
        """Whether all but the policy is the same."""
        return replace(self, policy=other.policy) == other


class Outcome(NamedTuple):
    """Of one partition: what became of a contribution to it, or what was read of it."""

    applied: Applied
    """COUNTED of what was read."""
    version: int
    """That the contribution is part of, or that was read."""
    contributors: tuple[int, ...] = ()
    """The ranks whose contributions are in that, ascending; none: this one alone, if it was counted."""


class KeepHandle(Protocol):
    """A contribution or a read in flight. A contribution that is late, or not finite, is no error: it is done."""

    def done(self) -> bool:
        """True once it has ended, well or not; never blocks."""

    def wait(self, timeout: float | None = None) -> None:
        """Blocks until it has ended. Raises the job's error, DeadlineError after `timeout` seconds."""

    def outcomes(self) -> Sequence[Outcome]:
        """Of each partition, in their order. Call it once the operation is done."""


class RangeHandle(KeepHandle, Protocol):
    """A read in flight of what only servers know the length of."""

    def ranges(self) -> Sequence[bytes]:
        """Of a range: of each shard its ids, 8 bytes each, ascending, then their rows. Of filtered rows, or partitions
        of values: what filters have made of them, in the order in which they were asked for. Call it once the operation
        is done."""


class CallHandle(KeepHandle, Protocol):
    """A call in flight."""

    def answers(self) -> Sequence[bytes]:
        """What has come of it at each shard that was asked (wire.call). Call it once the operation is done."""


@dataclass(frozen=True)
class SavingRequest:
    """Asks a shard to save or restore what it keeps."""

    declared: Declared
    part: int
    """Of it, the partition that leads to the shard."""
    payload: bytes
    """As wire.saving writes it."""
    behind: Sequence[int] = ()
    """A cut: the keys behind this rank's contributions to which it goes."""


class PayloadAt(NamedTuple):
    """What filters have made of a partition, at least one byte, and where it is."""

    part: int
    address: int
    nbytes: int


class KeptTensor(Protocol):
    """A tensor that servers keep, open on this rank. Thread-safe. What is called here first is first for each key: a
    read sees all that this rank has contributed before."""

    @property
    def declared(self) -> Declared:
        """Its name and its partitions."""

    def change(self, spec: KeepSpec) -> KeepHandle:
        """Asks for a spec whose policy alone is another. Never blocks. Done once all ranks have asked for it: then it
        is in force, for what is under way, too. Raises MismatchError for a spec that differs in more."""

    def push(self, address: int, note: Note, *, parts: range | None = None, priority: int | None = None) -> KeepHandle:
        """Contributes the tensor at `address`; with `parts`, only those partitions of it. Never blocks. Done when all
        servers have said what became of it; its memory must stay as it is until then."""

    def tick(self, note: Note, *, parts: range | None = None, priority: int | None = None) -> KeepHandle:
        """Contributes nothing: the clock of this rank goes by, and nobody waits for what it might have brought. No
        version is made of it alone but where all had to come. As `push` otherwise."""

    def cut_off(self) -> Sequence[int]:
        """Partitions of which servers have enough without this rank's next contribution: a version is about to be made.
        What of it is finished may be sent as a block. Never blocks."""

    def pull(
        self, address: int, *, parts: range | None = None, least: int = 0, priority: int | None = None
    ) -> KeepHandle:
        """Reads the value to `address`, of version `least` or newer, once the policy lets this rank. Never blocks. One
        version of each partition, but perhaps not the same of two."""


@runtime_checkable
class TakesPayloads(Protocol):
    """A KeptTensor that may have filters."""

    def push_filtered(self, payloads: Sequence[PayloadAt], note: Note, *, priority: int | None = None) -> KeepHandle:
        """As KeptTensor.push, of what filters have made of some partitions."""

    def pull_filtered(self, *, parts: range, least: int = 0, priority: int | None = None) -> RangeHandle:
        """As KeptTensor.pull, of a tensor whose values are read through filters: to the handle, as servers have made
        it."""


ShardName = tuple[tuple[str, ...], int]
"""A shard in all worlds of a job: the addresses of its server, and its number there."""


@runtime_checkable
class Keeps(Protocol):
    """A worker whose servers can keep values."""

    def keep(self, declared: Declared, spec: KeepSpec, initial: int = 0) -> KeptTensor:
        """Opens a declared tensor of float32, float64 or int64, on all ranks. `initial`: on `spec.root`, the address of
        the first value, unless servers have one already; not used after the call. Blocks until each key has a value.

        Raises MismatchError (naming both ranks and both texts) where ranks give different specs: one that has opened
        the tensor by then hears of it in a later call. InvalidArgumentError for a spec that servers refuse, a tensor of
        another dtype, and on the root where a value is wanted and none given.
        """

    def call(self, tensors: Sequence[Declared], text: bytes) -> CallHandle:
        """Has servers run a function on kept tensors that lie together (`check_together`), at each shard once, after
        what this rank has contributed to them before. `text`: as wire.call writes it. Never blocks."""

    def ask(self, requests: Sequence[SavingRequest]) -> CallHandle:
        """Asks shards about what is saved, each one thing after the other. `answers` are by request. Never blocks."""

    @property
    def lasting(self) -> Lasting | None:
        """Those who keep values, if they can set them aside for the next world."""

    def let_go(self) -> None:
        """Has these drop all that was set aside in worlds before. One rank calls it; blocks until it is so."""


@dataclass(frozen=True)
class Lasting:
    """Servers that may be in the next world, too."""

    epoch: int
    """This world's."""
    shards: tuple[ShardName, ...]
    """All of them, as servers number them here."""


def check_together(tensors: Sequence[Declared]) -> None:
    """Raises InvalidArgumentError for none, and for tensors that are not cut alike, of one type, on the same shards."""
    if not tensors:
        raise InvalidArgumentError("a function is called on one tensor at least")
    first, *others = tensors
    for other in others:
        if other.spec.dtype is not first.spec.dtype or _places(other) != _places(first):
            raise InvalidArgumentError(
                f"{first.spec.name!r} and {other.spec.name!r} don't lie together on servers: functions run on tensors"
                " of one store, of one shape and dtype (and not with together=False)"
            )


def _places(declared: Declared) -> list[tuple[int, int, int, int]]:
    return [(part.offset, part.nbytes, part.server, part.shard) for part in declared.partitions]


_KEPT = (DType.FLOAT32, DType.FLOAT64, DType.INT64)


def check_keep(declared: Declared, spec: KeepSpec, size: int) -> None:
    """Raises InvalidArgumentError for a tensor that no server can keep so, in a world of `size`."""
    name, dtype = declared.spec.name, declared.spec.dtype
    if dtype not in _KEPT:
        known = ", ".join(one.name.lower() for one in _KEPT)
        raise InvalidArgumentError(f"{name!r} is of {dtype.name.lower()}: servers keep values of {known}")
    if spec.root is not None and not 0 <= spec.root < size:
        raise InvalidArgumentError(f"the first value of {name!r} from rank {spec.root} in a world of {size}")
    row = spec.width * dtype.itemsize
    for number, part in enumerate(declared.partitions):
        if row < 1 or part.nbytes % row:
            raise InvalidArgumentError(
                f"{name!r} (partition {number}) of {part.nbytes} bytes has no whole rows of {spec.width} elements:"
                " declare it with partition_bytes that are a multiple of a row's"
            )


def check_note(declared: Declared, note: Note) -> bytes:
    """The note as it travels. Raises InvalidArgumentError for one that can't go with a contribution."""
    try:
        written = encode_note(note)
        decode_note(written)
    except (struct.error, OverflowError, CorruptError) as error:
        raise InvalidArgumentError(
            f"a contribution to {declared.spec.name!r} can't be sent with {note}: {error}"
        ) from None
    return written
