"""What is saved of a store: its keys on servers, whose they are, and requests to their shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from byteps_like.store.saving.manifest import SavedTensor
from byteps_like.store.saving.saved import Saved
from byteps_like.store.versions import Versions
from byteps_like.wire.saving import MAX_WORD, KeyHead, decode_heads, decode_words, encode_cut, encode_heads, heads_most
from byteps_like.worker.api import Declared, Worker
from byteps_like.worker.keeping import Keeps, SavingRequest
from byteps_like.worker.tables import TableShards

_MOST_KEYS = 1 << 16
"""Of a cut, in one request."""


@dataclass(frozen=True, eq=False)
class SavedKey:
    """A partition of a tensor, or a shard of a table."""

    tensor: str
    declared: Declared
    part: int
    number: int
    """Of the partitions of its tensor, or of the shards of its table."""

    @property
    def key(self) -> int:
        """Its name on servers."""
        return self.declared.partitions[self.part].key

    @property
    def place(self) -> tuple[int, int]:
        """Its server and shard."""
        one = self.declared.partitions[self.part]
        return one.server, one.shard

    @property
    def offset(self) -> int:
        """Of a dense value, in its tensor, in bytes."""
        return self.declared.partitions[self.part].offset

    @property
    def nbytes(self) -> int:
        """Of a dense value."""
        return self.declared.partitions[self.part].nbytes

    def asks(self, payload: bytes) -> SavingRequest:
        """A request about it."""
        return SavingRequest(self.declared, self.part, payload)


@dataclass(frozen=True)
class Savable:
    """A tensor, or a table, that is open."""

    declared: Declared
    saved: SavedTensor
    """As the manifest describes it, without pieces."""
    versions: Versions

    @cached_property
    def parts(self) -> Sequence[int]:
        """Partitions that lead to its keys."""
        return TableShards(self.declared).firsts if self.saved.is_table else range(len(self.declared.partitions))


@dataclass(frozen=True)
class SavedStore:
    """All that a Store or a KV keeps, on this rank."""

    name: str
    worker: Worker
    keeper: Keeps
    tensors: Mapping[str, Savable] = field(default_factory=dict)
    after_restore: Sequence[Callable[[Saved], None]] = ()
    """What all ranks do when it was restored."""

    @cached_property
    def keys(self) -> list[SavedKey]:
        """All of them; neighbours lie on different shards, where they can."""
        turns: dict[tuple[int, int], int] = defaultdict(int)
        placed: list[tuple[int, int, SavedKey]] = []
        for name, one in self.tensors.items():
            for number, part in enumerate(one.parts):
                key = SavedKey(name, one.declared, part, number)
                placed.append((turns[key.place], len(placed), key))
                turns[key.place] += 1
        return [key for _, _, key in sorted(placed)]

    def ask(self, requests: Sequence[SavingRequest]) -> list[bytes]:
        """The answers. Blocks. Raises the typed error of one that failed."""
        if not requests:
            return []
        handle = self.keeper.ask(requests)
        handle.wait()
        return list(handle.answers())

    def heads(self, keys: Sequence[SavedKey]) -> dict[int, KeyHead]:
        """By key."""
        groups = self.groups(keys)
        answers = self.ask([some[0].asks(encode_heads([one.key for one in some])) for some in groups])
        return {
            one.key: head
            for some, answer in zip(groups, answers, strict=True)
            for one, head in zip(some, decode_heads(answer), strict=True)
        }

    def groups(self, keys: Sequence[SavedKey]) -> list[list[SavedKey]]:
        """Those that one request may ask about: of one shard."""
        most = heads_most(self.worker.size)
        return [some[at : at + most] for some in _by_place(keys) for at in range(0, len(some), most)]

    def meet(self, word: str) -> dict[int, str]:
        """Blocks until all ranks that are left have come, each behind its contributions so far; what each has said, by
        rank. Raises MismatchError where ranks have different keys."""
        if not self.keys:
            self.worker.barrier()
            return {self.worker.rank: word}
        said = word.encode()[:MAX_WORD]
        requests = [
            SavingRequest(some[0].declared, some[0].part, encode_cut(numbers, said), numbers)
            for some, numbers in self._cuts()
        ]
        words = decode_words(self.ask(requests)[0])
        return {rank: one.decode(errors="ignore") for rank, one in enumerate(words) if one is not None}

    def _cuts(self) -> Iterator[tuple[list[SavedKey], list[int]]]:
        """By shard, its keys, in an order that is that of all ranks."""
        for some in _by_place(self.keys):
            for at in range(0, len(some), _MOST_KEYS):
                chosen = some[at : at + _MOST_KEYS]
                yield chosen, [one.key for one in chosen]


def _by_place(keys: Sequence[SavedKey]) -> list[list[SavedKey]]:
    found: dict[tuple[int, int], list[SavedKey]] = {}
    for one in keys:
        found.setdefault(one.place, []).append(one)
    return list(found.values())
