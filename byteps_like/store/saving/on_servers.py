"""What servers keep, saved and restored: each rank reads, and brings, an equal share of the keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from typing_extensions import override

from byteps_like.store.saving.aside import left_aside, lost, take_aside
from byteps_like.store.saving.keys import SavedKey, SavedStore
from byteps_like.store.saving.manifest import Manifest, SavedTensor
from byteps_like.store.saving.reading import read_rows, read_values
from byteps_like.store.saving.recut import cut_for, cut_from, newest, overlap
from byteps_like.store.saving.saved import ReadPiece, Saved, SavedContent, Void
from byteps_like.wire.saving import (
    MAX_SAVED,
    SavedPart,
    encode_clear,
    encode_commit,
    encode_give_up,
    encode_write,
    encode_write_rows,
)
from byteps_like.worker.keeping import SavingRequest
from byteps_like.worker.tables import BUCKET_SHIFT, TableShards


class SavedOnServers(Saved):
    """A Store, several as one, or a KV."""

    def __init__(self, store: SavedStore) -> None:
        self.name, self.rank, self.ranks = store.name, store.worker.rank, store.worker.size
        self._store = store

    @property
    @override
    def tensors(self) -> Mapping[str, SavedTensor]:
        return {name: one.saved for name, one in self._store.tensors.items()}

    @override
    def meet(self, word: str) -> dict[int, str]:
        return self._store.meet(word)

    @override
    def contents(self, *, every: bool) -> Iterator[SavedContent | Void]:
        keys = self._store.keys if every else self._own
        yield from read_values(self._store, self._of(keys, tables=False))
        yield from read_rows(self._store, self._of(keys, tables=True))

    @override
    def left(self) -> Iterator[SavedContent | Void]:
        lasting = self._store.keeper.lasting
        return self.contents(every=False) if lasting is None else left_aside(self._store, lasting)

    @override
    def clear(self) -> None:
        self._store.ask([one.asks(encode_clear(one.key)) for one in self._own])

    @override
    def bring(self, manifest: Manifest, read: ReadPiece) -> None:
        dense = self._of(self._own, tables=False)
        heads = self._store.heads(dense)
        for one in dense:
            place, saved = (one.offset, one.nbytes, heads[one.key].state_bytes), manifest.tensors[one.tensor]
            self._store.ask(_writes(one, cut_for(place, saved, one.tensor, read)))
        for name, saved in manifest.tensors.items():
            if saved.is_table:
                for piece in self.share(saved.pieces):
                    self._store.ask(self._row_writes(name, read(piece)))

    @override
    def lost(self, contents: Sequence[SavedContent]) -> str:
        return lost(contents, self._store.keeper.lasting)

    @override
    def bring_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        if any(one.aside is not None for one in contents):
            take_aside(self._store, self._own, manifest, contents)
        else:
            self._hand_over(manifest, contents)

    def _hand_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None:
        """What this rank has in its memory."""
        heads = self._store.heads(self._of(self._store.keys, tables=False))
        for one in contents:
            data, saved = memoryview(b"".join(one.chunks)), manifest.tensors[one.tensor]
            if saved.is_table:
                self._store.ask(self._row_writes(one.tensor, data))
                continue
            for key in self._store.keys:
                if key.tensor == one.tensor and overlap(one, key.offset, key.nbytes):
                    place = key.offset, key.nbytes, heads[key.key].state_bytes
                    self._store.ask(_writes(key, cut_from(one, data, place, one.tensor, saved.terms)))

    @override
    def commit(self, manifest: Manifest) -> None:
        self._store.ask([one.asks(encode_commit(one.key, _version(manifest, one))) for one in self._own])

    @override
    def give_up(self) -> None:
        self._store.ask([one.asks(encode_give_up(one.key)) for one in self._own])

    @override
    def settle(self, manifest: Manifest) -> None:
        for one in self._store.keys:
            self._store.tensors[one.tensor].versions.restored(one.number, _version(manifest, one))
        for call in self._store.after_restore:
            call(self)

    @property
    def _own(self) -> list[SavedKey]:
        """This rank's share."""
        return list(self.share(self._store.keys))

    def _of(self, keys: list[SavedKey], *, tables: bool) -> list[SavedKey]:
        return [one for one in keys if self._store.tensors[one.tensor].saved.is_table == tables]

    def _row_writes(self, name: str, rows: memoryview) -> list[SavingRequest]:
        """Brings rows to the shards where they belong by now."""
        table = self._store.tensors[name]
        keys = [one for one in self._store.keys if one.tensor == name]
        if not len(rows):
            return []
        size = table.saved.row_bytes
        records = np.frombuffer(rows, np.uint8).reshape(-1, size)
        ids = records[:, :8].copy().view("<u8").ravel()
        owners = np.asarray(TableShards(table.declared).owners)[ids >> np.uint64(BUCKET_SHIFT)]
        step = max(1, MAX_SAVED // size)
        requests: list[SavingRequest] = []
        for one in keys:
            chosen = records[owners == one.number]
            requests += [
                one.asks(encode_write_rows(one.key, chosen[at : at + step].tobytes()))
                for at in range(0, len(chosen), step)
            ]
        return requests


def _version(manifest: Manifest, key: SavedKey) -> int:
    """The greatest of what it gets: none of its rows, and no step, is of a later one."""
    saved = manifest.tensors[key.tensor]
    if saved.is_table:
        return max((piece.version for piece in saved.pieces), default=0)
    return newest(saved.pieces, key.offset, key.nbytes, key.tensor)


def _writes(one: SavedKey, cut: Iterable[tuple[SavedPart, int, memoryview]]) -> list[SavingRequest]:
    """What makes a key's content of this."""
    return [
        one.asks(encode_write(one.key, part, target + at, data[at : at + MAX_SAVED]))
        for part, target, data in cut
        for at in range(0, len(data), MAX_SAVED)
    ]
