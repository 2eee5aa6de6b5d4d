"""A tensor of a store on this rank: its versions, and how contributions to it are sent, and it is read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from byteps_like.compression.codec import Draw, Floats
from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.store.arrays import Array
from byteps_like.store.filters.encoder import Encoder, FactorPair, PartOf, Pushed
from byteps_like.store.memory.holding import held
from byteps_like.store.versions import Versions
from byteps_like.wire.note import Note
from byteps_like.worker.keeping import KeepHandle, KeptTensor, PayloadAt, RangeHandle, TakesPayloads

Read = Callable[[], None]


class OpenTensor(Versions):
    """One that is open. Thread-safe, as versions are."""

    def __init__(self, kept: KeptTensor, encoder: Encoder) -> None:
        super().__init__(kept.declared.spec.name, len(kept.declared.partitions))
        self.kept, self.encoder = kept, encoder
        self._of_values = encoder.payloads.of_values
        self._pushed = itertools.count()
        """Contributions that were filtered."""

    def slices(self) -> tuple[slice, ...]:
        """Of each partition, which elements it has, in C order."""
        size = self.kept.declared.spec.dtype.itemsize
        return tuple(
            slice(one.offset // size, (one.offset + one.nbytes) // size) for one in self.kept.declared.partitions
        )

    def taken(self, value: Any) -> Pushed:
        """What is pushed, as it can be sent. Raises InvalidArgumentError for what doesn't fit."""
        return self.encoder.taken(value, self.kept.declared.spec)

    def push(self, pushed: Pushed, parts: range, note: Note, priority: int | None, rank: int) -> KeepHandle:
        """Contributes these partitions, through the filters. Never blocks."""
        if not self.encoder.payloads:
            assert not isinstance(pushed, FactorPair)  # since it was taken
            handle = self.kept.push(pushed.ctypes.data, note, parts=parts, priority=priority)
            held.hold(handle, pushed)
            return handle
        assert isinstance(self.kept, TakesPayloads)  # as all that servers keep
        number, slices = next(self._pushed) % (1 << 32), self.slices()
        partitions = self.kept.declared.partitions
        made = [
            self.encoder.encode(PartOf(part, slices[part]), pushed, Draw(partitions[part].key, number, rank), note.lr)
            for part in parts
        ]
        at = [PayloadAt(part, one.ctypes.data, one.nbytes) for part, one in zip(parts, made, strict=True)]
        handle = self.kept.push_filtered(at, note, priority=priority)
        held.hold(handle, made)
        return handle

    def residual(self) -> Floats:
        """What a codec has left out so far, in C order."""
        rests = [self.encoder.rest(PartOf(*part)) for part in enumerate(self.slices())]
        return np.concatenate(rests) if rests else np.zeros(0, np.float32)

    def owe(self, residual: Floats) -> None:
        """That much is left out, instead."""
        for number, elements in enumerate(self.slices()):
            self.encoder.owe(PartOf(number, elements), residual[elements])

    def read(self, out: Array, parts: range, least: int, priority: int | None, rank: int) -> tuple[KeepHandle, Read]:
        """Reads these partitions, of version `least` or newer, through the filters. Never blocks. When it is done, call
        the second: `out`, contiguous, has the value then. Raises CorruptError for what can't be one."""
        if not self._of_values:
            handle = self.kept.pull(out.ctypes.data, parts=parts, least=least, priority=priority)
            held.hold(handle, out)
            return handle, lambda: None
        assert isinstance(self.kept, TakesPayloads)
        reads = self.kept.pull_filtered(parts=parts, least=least, priority=priority)
        return reads, lambda: self._decode(reads, out.reshape(-1), parts, rank)

    def _decode(self, reads: RangeHandle, flat: Array, parts: range, rank: int) -> None:
        slices = self.slices()
        for part, payload in zip(parts, reads.ranges(), strict=True):
            own = slices[part]
            try:
                flat[own] = self._of_values.decode(payload, own.stop - own.start)
            except CorruptError as error:
                name = self.kept.declared.spec.name
                raise CorruptError(
                    f"rank {rank}: a server's answer to a pull of {name!r}: {error}", rank=rank, operation="pull",
                    key=name,
                ) from None  # fmt: skip

    @property
    def filters(self) -> str:
        """As servers are told."""
        return self.encoder.payloads.text

    def parts(self, part: int | range | None) -> range:
        """Which partitions are meant. Raises InvalidArgumentError for one that there isn't."""
        count = len(self.kept.declared.partitions)
        chosen = range(count) if part is None else part if isinstance(part, range) else range(part, part + 1)
        if chosen and not 0 <= min(chosen) <= max(chosen) < count:
            raise InvalidArgumentError(
                f"part={part!r} of {self.kept.declared.spec.name!r}, which has partitions 0 to {count - 1}"
            )
        return chosen if chosen.step > 0 else chosen[::-1]
