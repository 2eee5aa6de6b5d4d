"""What all ranks save and restore together, whoever keeps it: the seam between a checkpoint's files and its content."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from byteps_like.errors import BytePSLikeError, MismatchError, PeerLostError, from_code
from byteps_like.store.saving.manifest import Manifest, SavedPiece, SavedTensor
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.saving import MAX_WORD
from byteps_like.worker.keeping import ShardName

One = TypeVar("One")

ReadPiece = Callable[[SavedPiece], memoryview]
"""The bytes of a piece, verified."""


@dataclass(frozen=True)
class Aside:
    """What a key of a world keeps, as the next one finds it."""

    shard: ShardName
    copy: ShardName | None
    """Another shard that has it."""
    epoch: int
    """Of its world."""
    buckets: bytes = b""
    """Of a table: those whose rows it has, a bit each."""


@dataclass(frozen=True)
class SavedContent:
    """A range of a tensor, or some rows of a table, as they are kept."""

    tensor: str
    source: int
    """Who keeps it, for `Void`."""
    offset: int
    """Of the value in its tensor, in bytes; 0 of a table."""
    nbytes: int
    """Of the value; of a table: of rows."""
    state_bytes: int
    """Behind the value; of a table: in each row."""
    version: int
    clocks: tuple[int, ...]
    """By rank, how many of its contributions were applied, or late."""
    waiting: int
    """Contributions that are in no version yet."""
    chunks: Sequence[Buffer]
    """The value, then the state; or rows. None of what was set aside."""
    aside: Aside | None = None
    """Where it is, if it was set aside for the next world."""


@dataclass(frozen=True)
class Void:
    """What came of `source` so far is of an older version: it comes again."""

    source: int


def valid(contents: Iterable[SavedContent | Void]) -> list[SavedContent]:
    """What is left of them."""
    found: dict[int, list[SavedContent]] = {}
    for one in contents:
        if isinstance(one, Void):
            found.pop(one.source, None)
        else:
            found.setdefault(one.source, []).append(one)
    return [one for some in found.values() for one in some]


class Saved(ABC):
    """As this rank sees it. `meet`, and what calls it, all ranks call together."""

    name: str
    rank: int
    ranks: int
    present: tuple[int, ...] = ()
    """Ranks that came to the first meeting: they do it all among them."""
    leaving: frozenset[int] = frozenset()
    """Those of which nothing can be had later: they save nothing."""

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, SavedTensor]:
        """As a manifest describes them, without pieces."""

    @property
    def turn(self) -> int:
        """This rank's place among those present: the first decides."""
        return self.present.index(self.rank)

    @property
    def carriers(self) -> tuple[int, ...]:
        """Those that save something, each its share."""
        return tuple(rank for rank in self.present if rank not in self.leaving)

    def share(self, items: Sequence[One]) -> Sequence[One]:
        """This rank's of them."""
        carriers = self.carriers
        return items[carriers.index(self.rank) :: len(carriers)] if self.rank in carriers else ()

    @abstractmethod
    def meet(self, word: str) -> dict[int, str]:
        """Blocks until all ranks that are left have come, each behind its contributions so far; what each has said, by
        rank, ascending."""

    @abstractmethod
    def contents(self, *, every: bool) -> Iterator[SavedContent | Void]:
        """What this rank saves, its share; `every`: all of it."""

    @abstractmethod
    def left(self) -> Iterator[SavedContent | Void]:
        """What this rank takes into the next world: its share, or where all of it was set aside."""

    @abstractmethod
    def clear(self) -> None:
        """A restoration begins: what another one has brought is dropped."""

    @abstractmethod
    def bring(self, manifest: Manifest, read: ReadPiece) -> None:
        """Reads, and hands over, this rank's share of what is to be kept: nothing is changed by that."""

    @abstractmethod
    def lost(self, contents: Sequence[SavedContent]) -> str:
        """Who is gone that had some of them; "": nobody. All ranks find the same."""

    @abstractmethod
    def bring_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """The same of what a world before has left: `contents`, in this rank's memory, or set aside."""

    @abstractmethod
    def commit(self, manifest: Manifest) -> None:
        """What was brought is what is kept from here on."""

    @abstractmethod
    def give_up(self) -> None:
        """The restoration has failed: what was brought, and not yet committed, is dropped."""

    @abstractmethod
    def settle(self, manifest: Manifest) -> None:
        """All ranks have committed."""

    def agree(self, what: str, error: BytePSLikeError | None = None, *, note: str = "") -> list[str]:
        """Meets with the others; a note of each that is present. Raises this rank's `error`, or that of another,
        MismatchError unless all have come to do `what`, and PeerLostError where one is gone that had a share."""
        return list(self._agree(what, error, note, with_all=True).values())

    def conclude(self, what: str, error: BytePSLikeError | None = None, *, note: str = "") -> dict[int, str]:
        """The same for the last time, by rank: whoever is gone by now has done its share."""
        return self._agree(what, error, note, with_all=False)

    def _agree(self, what: str, error: BytePSLikeError | None, note: str, *, with_all: bool) -> dict[int, str]:
        words = self.meet(f"!{int(error.code)}\n{error}" if error is not None else f"{note}\n{what}")
        if error is not None:
            raise error
        if with_all:
            self._check_present(tuple(words))
        for rank, word in words.items():
            first, _, rest = word.partition("\n")
            if first.startswith("!"):
                raise from_code(int(first[1:]), f"rank {rank}: {rest}", rank=rank)
            if not what.startswith(rest) or (rest != what and len(word.encode()) < MAX_WORD - 4):
                raise MismatchError(
                    f"{self.name!r}: the ranks disagree: rank {self.rank} wants to {what}; rank {rank} to {rest}",
                    rank=self.rank,
                )
        return {rank: word.partition("\n")[0] for rank, word in words.items()}

    def _check_present(self, here: tuple[int, ...]) -> None:
        self.present = self.present or here
        gone = [str(rank) for rank in self.present if rank not in here]
        if gone:
            raise PeerLostError(
                f"rank {self.rank}: rank {', '.join(gone)} is gone, and with it its share of {self.name!r}: try again",
                rank=self.rank,
                operation="checkpoint",
            )
