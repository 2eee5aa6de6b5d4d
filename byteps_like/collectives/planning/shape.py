"""What a caller asks for, without where its memory is: what plans are made for and kept by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from byteps_like.collectives.api import Addresses
from byteps_like.collectives.planning import compile
from byteps_like.collectives.schedules.schedule import Kind
from byteps_like.dtypes import DType, Op


@dataclass(frozen=True, slots=True)
class CallShape:
    """Everything about a call but where its memory is. `counts` are elements: of the sections of its kind, and for an
    all-to-all of the parts that this rank sends, with `received` those it gets; `uniform`: all of all ranks are equal.
    """

    kind: Kind
    ranks: int
    counts: tuple[int, ...]
    dtype: DType
    op: Op | None = None
    root: int = 0
    in_place: bool = False
    received: tuple[int, ...] = ()
    uniform: bool = True

    @property
    def divisor(self) -> int:
        """What an average divides by: the number of ranks; else 1."""
        return self.ranks if self.op is Op.AVERAGE else 1

    @property
    def nbytes(self) -> int:
        """Bytes that selectors and people call the size of this call: of the longer of source and target."""
        return sum(self.counts) * self.dtype.itemsize

    def sections(self, rank: int) -> compile.Counts:
        """Elements of each section of the kind; for an uneven all-to-all, of those that this rank knows."""
        if self.kind is not Kind.ALL_TO_ALL:
            return self.counts
        if self.uniform:
            return self.counts[0]
        return compile.all_to_all_counts(rank, len(self.counts), self.counts, self.received)

    def describe(self, algorithm: str) -> str:
        """What must be equal on all ranks, in words; at most about 200 characters."""
        words = [self.kind.value, *([self.op.name.lower()] if self.op is not None else [])]
        words.append(f"{self.dtype.name.lower()}{self._extent()}")
        if self.kind in (Kind.BROADCAST, Kind.REDUCE, Kind.SCATTER, Kind.GATHER):
            words.append(f"root {self.root}")
        return f"{' '.join(words)}, {algorithm}"

    def _extent(self) -> str:
        if not self.uniform:
            return "[uneven]"
        if self.kind is Kind.ALL_TO_ALL:
            return f"[{self.counts[0]} each]"
        if len(self.counts) <= 8:
            return str(list(self.counts))
        digest = hashlib.blake2b(repr(self.counts).encode(), digest_size=4).hexdigest()
        return f"[{len(self.counts)} parts, {sum(self.counts)} elements, {digest}]"


def first_address(where: Addresses) -> int:
    """Where the first part lies; 0 for none."""
    return where if isinstance(where, int) else where[0] if where else 0
