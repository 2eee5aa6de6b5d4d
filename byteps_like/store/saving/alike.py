"""What every rank holds alike, without servers: one rank saves it, and all restore it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate

import numpy as np
from typing_extensions import override

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.dtypes import DType
from byteps_like.store.saving.manifest import Manifest, SavedPiece, SavedTensor
from byteps_like.store.saving.recut import cut_for, newest
from byteps_like.store.saving.saved import ReadPiece, Saved, SavedContent, Void
from byteps_like.store.updates.update import Values
from byteps_like.wire.saving import MAX_WORD, SavedPart


@dataclass
class HeldAlike:
    """A value of one dimension, and the state of its update."""

    value: Values
    state: Values
    version: int = 0


class SavedAlike(Saved):
    """Named values. `terms`: how they are updated."""

    def __init__(self, name: str, group: Group, held: Mapping[str, HeldAlike], terms: str) -> None:
        self.name, self.rank, self.ranks = name, group.rank, group.size
        self._group, self._held, self._terms = group, held, terms
        self._brought: dict[str, HeldAlike] = {}

    @property
    @override
    def tensors(self) -> Mapping[str, SavedTensor]:
        return {
            name: SavedTensor(one.value.dtype.name, one.value.shape, self._terms) for name, one in self._held.items()
        }

    @override
    def meet(self, word: str) -> dict[int, str]:
        own, every = np.zeros(MAX_WORD, np.uint8), np.zeros((self.ranks, MAX_WORD), np.uint8)
        said = word.encode()[:MAX_WORD]
        own[: len(said)] = np.frombuffer(said, np.uint8)
        self._group.all_gather(
            own.ctypes.data, every.ctypes.data, [MAX_WORD] * self.ranks, DType.UINT8,
            CallOptions(traffic=Traffic.CONTROL),
        ).wait()  # fmt: skip
        return {rank: one.tobytes().rstrip(b"\0").decode(errors="ignore") for rank, one in enumerate(every)}

    @override
    def contents(self, *, every: bool) -> Iterator[SavedContent | Void]:
        if not every and not self.share([self.name]):
            return
        for number, (name, one) in enumerate(self._held.items()):
            chunks = [bytes(_bytes(one.value)), bytes(_bytes(one.state))]  # training may go on while they are written
            sizes = (one.value.nbytes, one.state.nbytes)
            yield SavedContent(name, number, 0, *sizes, one.version, (one.version,) * self.ranks, 0, chunks)

    @override
    def left(self) -> Iterator[SavedContent | Void]:
        return self.contents(every=False)

    @override
    def clear(self) -> None:
        self._brought.clear()

    @override
    def bring(self, manifest: Manifest, read: ReadPiece) -> None:
        for name in self._held:
            self._bring(name, manifest.tensors[name], read)

    def _bring(self, name: str, saved: SavedTensor, read: ReadPiece) -> None:
        one = self._held[name]
        brought = HeldAlike(np.empty_like(one.value), np.empty_like(one.state))
        places = {SavedPart.VALUE: _bytes(brought.value), SavedPart.STATE: _bytes(brought.state)}
        for part, at, data in cut_for((0, one.value.nbytes, one.state.nbytes), saved, name, read):
            places[part][at : at + len(data)] = data
        brought.version = newest(saved.pieces, 0, one.value.nbytes, name)
        self._brought[name] = brought

    @override
    def lost(self, contents: Sequence[SavedContent]) -> str:
        return ""

    @override
    def bring_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """All ranks get everything."""
        for name, saved in manifest.tensors.items():
            data = self._gathered(b"".join(chunk for one in contents if one.tensor == name for chunk in one.chunks))
            begins = accumulate((one.length for one in saved.pieces), initial=0)
            placed = tuple(replace(one, at=at) for one, at in zip(saved.pieces, begins, strict=False))
            self._bring(name, replace(saved, pieces=placed), partial(_read, data))

    def _gathered(self, own: bytes) -> memoryview:
        """What all ranks have, one behind the other."""
        sizes, options = np.zeros(self.ranks, np.int64), CallOptions(traffic=Traffic.CONTROL)
        size = np.array([len(own)])
        ones = [1] * self.ranks
        self._group.all_gather(size.ctypes.data, sizes.ctypes.data, ones, DType.INT64, options).wait()
        source, every = np.frombuffer(own, np.uint8), np.empty(sizes.sum(), np.uint8)
        counts = sizes.tolist()
        self._group.all_gather(source.ctypes.data, every.ctypes.data, counts, DType.UINT8, options).wait()
        return every.data

    @override
    def commit(self, manifest: Manifest) -> None:
        for name, brought in self._brought.items():
            one = self._held[name]
            np.copyto(one.value, brought.value)
            one.state, one.version = brought.state, brought.version

    @override
    def give_up(self) -> None:
        self._brought.clear()

    @override
    def settle(self, manifest: Manifest) -> None:
        self._brought.clear()


def _read(data: memoryview, piece: SavedPiece) -> memoryview:
    return data[piece.at : piece.at + piece.length]


def _bytes(array: Values) -> memoryview:
    """All of a contiguous one, in place."""
    return array.reshape(-1).view(np.uint8).data
