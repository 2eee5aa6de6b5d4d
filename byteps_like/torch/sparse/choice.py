"""How a sparse tensor is summed soonest: by what the round before has shown, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from byteps_like.compression.sparse.blocksparse import BlockSparse
from byteps_like.compression.sparse.coo import Coo
from byteps_like.torch.sparse.rows import WIDE_ROWS, Form, Rows
from byteps_like.worker.cards import Cards, alike

RETURN = 0.75
"""Of the time of a dense sum: entries travel again once they take so little. Until then a dense one stays dense."""

RowCodec = BlockSparse | Coo

WIDEST_BLOCK = 1 << 20
"""Elements of the codec's largest block."""


class SparseMethod(Enum):
    """What travels. Of ways that take as long the first one is taken."""

    GATHERED = "gathered"
    """All entries to all ranks."""
    TWO_HOPS = "two hops"
    """Each entry to the rank that sums it, and the sums to all."""
    SERVERS = "servers"
    """Each entry to the server that sums it, and the sums to all (see shadow)."""
    DENSE = "dense"
    """All zeros, too."""


WORTH = 0.9
"""Of the time of other ways: servers and a dense copy are taken when they take so little. Then they are kept while
they take less."""


@dataclass(frozen=True)
class Seen:
    """A round that has ended: how many entries all ranks together had, and their union. After dense ones an estimate
    for `entries`, on the safe side. `form`: what they were entries of (Rows.form). `generation`: how often all ranks
    had joined by then (see join)."""

    entries: int
    union: int
    way: SparseMethod
    generation: int = 0
    form: Form | None = None


def choose(rows: Rows, ranks: int, seen: Seen | None, cards: Cards | None = None) -> SparseMethod:
    """The way of the next round of a tensor like `rows`; `seen`: its last one.

    `cards`: those of a job whose servers may be asked; None: entries travel among ranks that are all alike. Of n ranks
    with a entries each and u in the union, a rank sends and gets (n-1)/n (a + u) entries by two hops, (n-1) a gathered;
    it sends servers a and gets u, as the tensor itself, or twice (n-1)/n of that by ranks, when dense. What counts is
    the card that is busy longest; of servers, too, what the detour through a dense copy takes. Parallax (Kim et al.,
    EuroSys 2019, section 3.1) chooses between servers for what is sparse and all-reduce for what isn't.
    """
    if ranks == 1:
        return SparseMethod.GATHERED
    if seen is None:
        return SparseMethod.TWO_HOPS if ranks > 2 else SparseMethod.GATHERED
    seconds = times(rows, ranks, seen, cards)
    if seen.way is not SparseMethod.SERVERS and SparseMethod.SERVERS in seconds:
        seconds[SparseMethod.SERVERS] /= WORTH
    if seen.way is SparseMethod.DENSE:
        seconds[SparseMethod.DENSE] *= RETURN
    return min(seconds, key=lambda way: seconds[way])


def times(rows: Rows, ranks: int, seen: Seen, cards: Cards | None = None) -> dict[SparseMethod, float]:
    """Seconds of a round like the last one, by way; those that can't be taken aren't there."""
    known = cards or alike(ranks)
    own, union, dense = seen.entries / ranks, seen.union, rows.places * rows.width * rows.values.element_size()
    found = {
        SparseMethod.GATHERED: known.gathered(own * rows.nbytes),
        SparseMethod.TWO_HOPS: known.by_ranks(own * rows.nbytes, union * rows.nbytes),
    }
    codec = codec_for(rows, seen)
    back = payload(rows, union, codec)
    if known.has_servers and _fits(rows) and back < dense:
        found[SparseMethod.SERVERS] = known.by_servers(payload(rows, own, codec), back) + detour(rows)
    if dense:  # else it would not show which entries there are
        found[SparseMethod.DENSE] = (known.by_servers if known.has_servers else known.by_ranks)(dense, dense)
    return found


def detour(rows: Rows) -> float:
    """Seconds in which a dense copy of the tensor is encoded, decoded to and looked through, as measured on one core of
    an AMD EPYC (Zen 4): 0.2 ns per byte; 0.5 where rows are narrow."""
    return rows.places * rows.width * 4 * (2e-10 if rows.width >= WIDE_ROWS else 5e-10)


def codec_for(rows: Rows, seen: Seen) -> RowCodec:
    """What rows travel as to servers: a bit for each that there may be, or an index for each element that comes."""
    codecs: list[RowCodec] = [BlockSparse(block=min(max(rows.width, 1), WIDEST_BLOCK)), Coo()]
    return min(codecs, key=lambda codec: payload(rows, seen.union, codec))


def payload(rows: Rows, count: float, codec: RowCodec) -> float:
    """Bytes of so many entries, beside the headers of partitions: as all elements where that is less."""
    values = 4 * rows.width * count
    whole = 4.0 * rows.width * rows.places
    if isinstance(codec, Coo):
        return min(2 * values, whole)
    return whole if count > codec.dense * rows.places else rows.places / 8 + values


def _fits(rows: Rows) -> bool:
    """Codecs take float32."""
    return rows.values.dtype is torch.float32 and rows.width * rows.places > 0
