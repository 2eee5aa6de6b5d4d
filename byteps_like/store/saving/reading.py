"""What keys keep, as it comes from servers: of each one version, with the state of its update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from byteps_like.errors import StalledError
from byteps_like.store.saving.keys import SavedKey, SavedStore
from byteps_like.store.saving.saved import SavedContent, Void
from byteps_like.wire.crc32c import Buffer
from byteps_like.wire.saving import (
    MAX_SAVED,
    KeyHead,
    SavedPart,
    decode_read,
    decode_rows,
    encode_read,
    encode_rows,
)
from byteps_like.worker.keeping import SavingRequest

_BATCH = 32 << 20
"""Bytes that are asked for at once, and of a piece of a table."""
_TRIES = 100


def read_values(store: SavedStore, keys: Sequence[SavedKey]) -> Iterator[SavedContent]:
    """Of dense keys. Contributions that wait may still become part of a version meanwhile: then it is read again."""
    wanted = list(keys)
    for _ in range(_TRIES):
        heads = store.heads(wanted)
        moved: list[SavedKey] = []
        for batch in _batches(wanted, heads):
            for found in _read(store, batch, heads):
                if isinstance(found, SavedKey):
                    moved.append(found)
                else:
                    yield found
        if not moved:
            return
        wanted = moved
    raise _restless(store)


def _batches(keys: Sequence[SavedKey], heads: dict[int, KeyHead]) -> Iterator[list[SavedKey]]:
    batch: list[SavedKey] = []
    size = 0
    for one in keys:
        size += one.nbytes + heads[one.key].state_bytes
        batch.append(one)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _read(store: SavedStore, keys: Sequence[SavedKey], heads: dict[int, KeyHead]) -> Iterator[SavedContent | SavedKey]:
    """The key itself, where it has another version by now."""
    requests = [_requests(one, heads[one.key]) for one in keys]
    answers = iter(store.ask([one for some in requests for one in some]))
    for one, some in zip(keys, requests, strict=True):
        head = heads[one.key]
        found = [decode_read(next(answers)) for _ in some]
        if {version for version, _ in found} == {head.version}:
            yield _content(one, head, [data for _, data in found])
        else:
            yield one


def _content(one: SavedKey, head: KeyHead, chunks: Sequence[Buffer], *, rows: bool = False) -> SavedContent:
    where = (0, sum(len(chunk) for chunk in chunks), 0) if rows else (one.offset, one.nbytes, head.state_bytes)
    return SavedContent(one.tensor, one.key, *where, head.version, head.clocks, head.waiting, chunks)


def _requests(one: SavedKey, head: KeyHead) -> list[SavingRequest]:
    return [
        one.asks(encode_read(one.key, part, at, min(MAX_SAVED, total - at)))
        for part, total in ((SavedPart.VALUE, one.nbytes), (SavedPart.STATE, head.state_bytes))
        for at in range(0, total, MAX_SAVED)
    ]


@dataclass
class _Rows:
    """Of one shard of a table, so far."""

    key: SavedKey
    head: KeyHead
    place: int = 0
    ended: bool = False
    size: int = 0
    pages: list[Buffer] = field(default_factory=list)


def read_rows(store: SavedStore, keys: Sequence[SavedKey]) -> Iterator[SavedContent | Void]:
    """Of tables, piece by piece. What came of a key is void where it has another version by now."""
    heads = store.heads(keys)
    going = [_Rows(one, heads[one.key]) for one in keys]
    tries = 0
    while going:
        answers = store.ask([one.key.asks(encode_rows(one.key.key, one.place)) for one in going])
        for one, answer in zip(going, answers, strict=True):
            version, one.place, rows = decode_rows(answer)
            if version != one.head.version:
                if (tries := tries + 1) > _TRIES:
                    raise _restless(store)
                yield Void(one.key.key)
                one.head, one.place, one.size, one.pages = store.heads([one.key])[one.key.key], 0, 0, []
                continue
            one.pages.append(rows)
            one.size += len(rows)
            one.ended = one.place == 0
            if one.size >= _BATCH or one.ended:
                yield _content(one.key, one.head, one.pages, rows=True)
                one.size, one.pages = 0, []
        going = [one for one in going if not one.ended]


def _restless(store: SavedStore) -> StalledError:
    return StalledError(f"{store.name!r} had a new version each of {_TRIES} times that it was to be saved")
