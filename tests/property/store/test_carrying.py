"""What ranks carry into another world: each has a share, those who leave have none, and none may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from typing_extensions import override

from byteps_like.errors import PeerLostError
from byteps_like.store.saving.carrying import CarriedShare, joined
from byteps_like.store.saving.checkpoint import leave
from byteps_like.store.saving.manifest import Manifest, SavedTensor
from byteps_like.store.saving.recut import cut_from, overlap
from byteps_like.store.saving.saved import ReadPiece, Saved, SavedContent, Void
from byteps_like.wire.saving import SavedPart

TERMS = "combine sum, update momentum"


class Held(Saved):
    """A float32 tensor with a state as large, in partitions of so many elements, on one rank of some that are there."""

    def __init__(self, ends: list[int], rank: int, there: tuple[int, ...]) -> None:
        self.name, self.rank, self.ranks, self._ends, self._there = "w", rank, 1 + max(there), ends, there

    @property
    @override
    def tensors(self) -> Mapping[str, SavedTensor]:
        return {"w": SavedTensor("float32", (self._ends[-1],), TERMS)}

    @override
    def meet(self, word: str) -> dict[int, str]:
        return dict.fromkeys(self._there, word)

    @override
    def contents(self, *, every: bool) -> Iterator[SavedContent | Void]:
        value = np.arange(self._ends[-1], dtype=np.float32)
        parts = list(zip([0, *self._ends], self._ends, strict=False))
        for number, (begin, end) in enumerate(parts) if every else self.share(list(enumerate(parts))):
            data = (4 * begin, 4 * (end - begin), 4 * (end - begin))
            stale = SavedContent("w", number, *data, number, (), 0, [b"x" * data[1] * 2])
            yield from (stale, Void(number))
            chunks = [value[begin:end].tobytes(), (value[begin:end] + 1000).tobytes()]
            yield SavedContent("w", number, *data, number + 1, (), 0, chunks)

    @override
    def clear(self) -> None:
        raise NotImplementedError

    @override
    def bring(self, manifest: Manifest, read: ReadPiece) -> None:
        raise NotImplementedError

    @override
    def left(self) -> Iterator[SavedContent | Void]:
        return self.contents(every=False)

    @override
    def lost(self, contents: Sequence[SavedContent]) -> str:
        return ""

    @override
    def bring_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        raise NotImplementedError

    @override
    def commit(self, manifest: Manifest) -> None:
        raise NotImplementedError

    @override
    def give_up(self) -> None:
        raise NotImplementedError

    @override
    def settle(self, manifest: Manifest) -> None:
        raise NotImplementedError


ENDS = st.sets(st.integers(1, 30), min_size=1).map(sorted)
RANKS = st.sets(st.integers(0, 5), min_size=1).map(sorted).map(tuple)


@given(ENDS, ENDS, RANKS, st.sets(st.integers(0, 5)))
def test_shares_of_those_who_stay_make_any_other_cut(before, after, there, leaving):
    assume(set(there) - leaving)
    before[-1] = after[-1] = max(before[-1], after[-1])
    shares = {rank: leave(Held(before, rank, there), leaving) for rank in there}
    stay = [rank for rank in there if rank not in leaving]
    assert all(not shares[rank].contents for rank in there if rank in leaving)
    manifest = joined([CarriedShare.of(shares[rank]) for rank in stay])
    assert len(manifest.tensors["w"].pieces) == len(before) and manifest.version == 1
    value, state = np.zeros(after[-1], np.float32), np.zeros(after[-1], np.float32)
    for begin, end in zip([0, *after], after, strict=False):
        place = 4 * begin, 4 * (end - begin), 4 * (end - begin)
        parts = {SavedPart.VALUE: value[begin:end].view(np.uint8), SavedPart.STATE: state[begin:end].view(np.uint8)}
        for rank in stay:
            for one in shares[rank].contents:
                if overlap(one, *place[:2]):
                    for part, at, data in cut_from(one, memoryview(b"".join(one.chunks)), place, "w", TERMS):
                        parts[part][at : at + len(data)] = data
    assert value.tolist() == list(range(after[-1]))
    assert state.tolist() == [1000 + one for one in range(after[-1])]


def test_a_share_that_is_missing_is_named():
    shares = [CarriedShare.of(leave(Held([4, 8, 12], rank, (0, 1, 2)))) for rank in range(3)]
    with pytest.raises(PeerLostError, match="'w' aren't whole any more: rank 0, 2 of the world before"):
        joined(shares[1:2])


def test_a_rank_that_had_nothing_may_be_missing():
    """Of two partitions on three ranks."""
    shares = [CarriedShare.of(leave(Held([4, 8], rank, (0, 1, 2)))) for rank in range(3)]
    assert len(joined(shares[:2]).tensors["w"].pieces) == 2
    with pytest.raises(PeerLostError, match="rank 1 of the world before is gone"):
        joined([shares[0], shares[2]])
