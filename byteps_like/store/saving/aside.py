"""What servers keep stays with them from one world of an elastic job to the next: ranks have it set aside as they leave
the one, and in the other each shard takes what belongs to it by then, from itself or from another one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from byteps_like.errors import PeerLostError
from byteps_like.store.saving.keys import SavedKey, SavedStore
from byteps_like.store.saving.manifest import Manifest
from byteps_like.store.saving.recut import copies_of, overlap
from byteps_like.store.saving.saved import Aside, SavedContent
from byteps_like.wire.saving import (
    MAX_SAVED,
    AsideKey,
    KeyHead,
    decode_set_aside,
    decode_take_rows,
    encode_clear,
    encode_set_aside,
    encode_take,
    encode_take_rows,
)
from byteps_like.worker.keeping import Lasting, SavingRequest, ShardName
from byteps_like.worker.tables import TableShards


def left_aside(store: SavedStore, lasting: Lasting) -> Iterator[SavedContent]:
    """Has servers set all of it aside; where it is."""
    groups = store.groups(store.keys)
    answers = store.ask([some[0].asks(encode_set_aside([one.key for one in some])) for some in groups])
    for some, answer in zip(groups, answers, strict=True):
        found = decode_set_aside(answer, len(some))
        for one, copy, head in zip(some, found.copies, found.heads, strict=True):
            other = None if copy is None else lasting.shards[copy]
            aside = Aside(lasting.shards[found.shard], other, lasting.epoch, _buckets_of(store, one))
            yield _content(one, head, aside)


def _content(one: SavedKey, head: KeyHead, aside: Aside) -> SavedContent:
    where = (0, 0, 0) if aside.buckets else (one.offset, one.nbytes, head.state_bytes)
    return SavedContent(one.tensor, one.key, *where, head.version, head.clocks, head.waiting, (), aside)


def _buckets_of(store: SavedStore, one: SavedKey) -> bytes:
    """Of a shard of a table, a bit for each bucket that it has."""
    tensor = store.tensors[one.tensor]
    if not tensor.saved.is_table:
        return b""
    return np.packbits(np.asarray(TableShards(tensor.declared).owners) == one.number, bitorder="little").tobytes()


def lost(contents: Sequence[SavedContent], lasting: Lasting | None) -> str:
    """What no server of this world has set aside; "": nothing."""
    here = () if lasting is None else lasting.shards
    for one in contents:
        if one.aside is not None and _holder(one.aside, here) is None:
            return f"the server at {one.aside.shard[0][0]}, which had a part of {one.tensor!r}, is gone"
    return ""


def _holder(aside: Aside, shards: Sequence[ShardName]) -> int | None:
    return next((shards.index(one) for one in (aside.shard, aside.copy) if one in shards), None)


def take_aside(store: SavedStore, keys: Sequence[SavedKey], manifest: Manifest, left: Sequence[SavedContent]) -> None:
    """Has `keys` take what belongs to them. Raises PeerLostError where somebody who has it is gone by now."""
    try:
        _take(store, keys, manifest, left)
    except PeerLostError:
        others = [_at_copy(one) for one in left]
        if others == list(left):
            raise
        store.ask([one.asks(encode_clear(one.key)) for one in keys])
        _take(store, keys, manifest, others)


def _at_copy(one: SavedContent) -> SavedContent:
    """The same, first looked for where it has a copy."""
    if one.aside is None or one.aside.copy is None:
        return one
    return replace(one, aside=replace(one.aside, shard=one.aside.copy, copy=one.aside.shard))


def _take(store: SavedStore, keys: Sequence[SavedKey], manifest: Manifest, left: Sequence[SavedContent]) -> None:
    lasting = store.keeper.lasting
    here = () if lasting is None else lasting.shards
    dense = [one for one in keys if not store.tensors[one.tensor].saved.is_table]
    heads = store.heads(dense)
    pieces = [(one, _name(one, here)) for one in left]
    store.ask([request for one in dense for request in _takes(one, heads[one.key], manifest, pieces)])
    tables = [one for one in keys if store.tensors[one.tensor].saved.is_table]
    _take_rows(store, [(one, _buckets_of(store, one), name) for one in tables
                       for name in _with_rows_for(store, one, pieces)])  # fmt: skip


def _name(one: SavedContent, shards: Sequence[ShardName]) -> AsideKey:
    assert one.aside is not None
    shard = _holder(one.aside, shards)
    if shard is None:
        raise PeerLostError(lost([one], None), operation="carry")
    return AsideKey(shard, one.aside.epoch, one.source, one.version)


Pieces = Sequence[tuple[SavedContent, AsideKey]]


def _takes(one: SavedKey, head: KeyHead, manifest: Manifest, pieces: Pieces) -> Iterator[SavingRequest]:
    """What makes a key's value and state of pieces of its tensor."""
    for piece, name in pieces:
        if piece.tensor != one.tensor or not overlap(piece, one.offset, one.nbytes):
            continue
        place = one.offset, one.nbytes, head.state_bytes
        for part, copy in copies_of(piece, place, one.tensor, manifest.tensors[one.tensor].terms):
            for at in range(0, copy.nbytes, MAX_SAVED):
                length = min(MAX_SAVED, copy.nbytes - at)
                yield one.asks(encode_take(one.key, part, copy.target + at, name, copy.source + at, length))


def _with_rows_for(store: SavedStore, one: SavedKey, pieces: Pieces) -> Iterator[AsideKey]:
    """Those with rows for a shard of a table."""
    own = np.frombuffer(_buckets_of(store, one), np.uint8)
    for piece, name in pieces:
        if piece.tensor == one.tensor and piece.aside is not None:
            had = np.frombuffer(piece.aside.buckets, np.uint8)
            if (own & had).any():
                yield name


def _take_rows(store: SavedStore, wanted: Sequence[tuple[SavedKey, bytes, AsideKey]]) -> None:
    """Page by page, all of them at once."""
    places: Mapping[int, int] = dict.fromkeys(range(len(wanted)), 0)
    while places:
        asked = [(wanted[number], place) for number, place in places.items()]
        answers = store.ask(
            [one.asks(encode_take_rows(one.key, name, place, buckets)) for (one, buckets, name), place in asked]
        )
        after = zip(places, map(decode_take_rows, answers), strict=True)
        places = {number: place for number, place in after if place}
