"""How a sparse tensor is summed with the fewest bytes: by what the round before has shown, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from byteps_like.torch.sparse_rows import Rows

RETURN = 0.75
"""Of the bytes of a dense sum: entries travel again once they are so few. Until then a dense one stays dense."""


class Way(Enum):
    """What travels."""

    TWO_HOPS = "two hops"
    """Each entry to the rank that sums it, and the sums to all."""
    GATHERED = "gathered"
    """All entries to all ranks."""
    DENSE = "dense"
    """All zeros, too."""


@dataclass(frozen=True)
class Seen:
    """A round that has ended: how many entries all ranks together had, and their union. After dense ones an estimate
    for `entries`, on the safe side."""

    entries: int
    union: int
    way: Way


def choose(rows: Rows, ranks: int, seen: Seen | None) -> Way:
    """The way of the next round of a tensor like `rows`; `seen`: its last one.

    Of n ranks with e entries together and u in the union, each one sends and gets (n-1)/n times: e/n + u entries by two
    hops, e gathered, twice the tensor dense. Parallax (Kim et al., EuroSys 2019, section 3.1) chooses between the first
    and the last.
    """
    if ranks == 1:
        return Way.GATHERED
    if seen is None:
        return Way.TWO_HOPS if ranks > 2 else Way.GATHERED
    gathered = seen.entries <= seen.entries / ranks + seen.union
    entries = seen.entries if gathered else seen.entries / ranks + seen.union
    dense = 2 * rows.places * rows.width * rows.values.element_size()
    if entries * rows.nbytes > dense * (RETURN if seen.way is Way.DENSE else 1.0):
        return Way.DENSE
    return Way.GATHERED if gathered else Way.TWO_HOPS
