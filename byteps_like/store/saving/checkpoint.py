"""Saves what servers keep to a directory, and restores it: by all ranks together, each its share."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from byteps_like.errors import BytePSLikeError, CorruptError, InvalidArgumentError, MismatchError
from byteps_like.store.saving.keys import SavedKey, SavedStore
from byteps_like.store.saving.manifest import (
    Manifest,
    SavedPartWriter,
    SavedPiece,
    SavedTensor,
    read_index,
    read_manifest,
    read_piece,
    remove_others,
    told,
    write_index,
    write_manifest,
)
from byteps_like.store.saving.reading import KeyContent, read_rows, read_values
from byteps_like.store.saving.recut import overlapping, state_copies, value_copy
from byteps_like.wire.saving import (
    MAX_SAVED,
    SavedPart,
    encode_clear,
    encode_commit,
    encode_write,
    encode_write_rows,
)
from byteps_like.worker.keeping import SavingRequest
from byteps_like.worker.tables import BUCKET_SHIFT, TableShards

ReadPiece = Callable[[SavedPiece], memoryview]
_PART = "part-"
_OF_FUNCTION = "update function"
"""In the terms of a tensor whose state has whatever form its users gave it."""


def save(store: SavedStore, folder: Path) -> int:
    """Writes a checkpoint; its version. Blocks until it is whole on the disk. See Store.checkpoint."""
    token = _begin(store, folder)
    index = f"{_PART}{token}-{store.worker.rank:05}.json"
    part: SavedPartWriter | None = None
    try:
        error: BytePSLikeError | None = None
        try:
            part = SavedPartWriter(folder, index.replace(".json", ".bin"))
            write_index(folder, index, _write_share(store, part))
        except BytePSLikeError as failed:
            error = failed
        store.agree("end a checkpoint", error)
        return _conclude(store, folder, token)
    except BaseException:
        if part is not None:
            part.drop()
        (folder / index).unlink(missing_ok=True)
        raise


def _begin(store: SavedStore, folder: Path) -> str:
    """What names the parts of this one."""
    error: BytePSLikeError | None = None
    try:
        with told(folder):
            folder.mkdir(parents=True, exist_ok=True)
        other = _name_in(folder)
        if other not in (None, store.name):
            error = InvalidArgumentError(f"{folder} has a checkpoint of {other!r}: give {store.name!r} another one")
    except BytePSLikeError as failed:
        error = failed
    return store.agree(f"save to {folder}", error, note=secrets.token_hex(6))[0]


def _name_in(folder: Path) -> str | None:
    """Of the store whose checkpoint is there; None: there is none, or nobody can use it."""
    try:
        return read_manifest(folder).name
    except CorruptError:
        return None


def _write_share(store: SavedStore, part: SavedPartWriter) -> dict[str, list[SavedPiece]]:
    pieces: dict[str, list[SavedPiece]] = {}
    dense = [one for one in store.own if not store.tensors[one.tensor].saved.is_table]
    tables = [one for one in store.own if store.tensors[one.tensor].saved.is_table]
    for found in read_values(store, dense):
        pieces.setdefault(found.key.tensor, []).append(_written(part, found))
    by_shard: dict[SavedKey, list[SavedPiece]] = {one: [] for one in tables}
    for rows in read_rows(store, tables):
        if isinstance(rows, SavedKey):
            by_shard[rows].clear()
        else:
            by_shard[rows.key].append(_written(part, rows, rows=True))
    for one, some in by_shard.items():
        pieces.setdefault(one.tensor, []).extend(some)
    part.close()
    return pieces


def _written(part: SavedPartWriter, found: KeyContent, *, rows: bool = False) -> SavedPiece:
    at, crc = part.write(found.chunks)
    head, length = found.head, sum(len(one) for one in found.chunks)
    where = (0, length, 0) if rows else (found.key.offset, found.key.nbytes, head.state_bytes)
    return SavedPiece(part.file, at, *where, head.version, head.clocks, crc, head.waiting)


def _conclude(store: SavedStore, folder: Path, token: str) -> int:
    """Rank 0 writes the manifest; the version."""
    error: BytePSLikeError | None = None
    version = 0
    if store.worker.rank == 0:
        try:
            version = _write_manifest(store, folder, token)
        except BytePSLikeError as failed:
            error = failed
    return int(store.agree("have a checkpoint", error, note=str(version))[0])


def _write_manifest(store: SavedStore, folder: Path, token: str) -> int:
    pieces: dict[str, list[SavedPiece]] = {}
    for rank in range(store.worker.size):
        for name, some in read_index(folder, f"{_PART}{token}-{rank:05}.json").items():
            pieces.setdefault(name, []).extend(some)
    tensors = {
        name: replace(one.saved, pieces=tuple(sorted(pieces.get(name, []), key=lambda piece: piece.offset)))
        for name, one in store.tensors.items()
    }
    version = min((piece.version for some in pieces.values() for piece in some), default=0)
    manifest = Manifest(store.name, version, store.worker.size, tensors)
    write_manifest(folder, manifest)
    remove_others(folder, manifest.files(), _PART)
    return version


def restore(store: SavedStore, folder: Path) -> None:
    """Puts a checkpoint on the servers. See Store.restore."""
    try:
        manifest = read_manifest(folder)
        check(store, manifest, str(folder))
    except BytePSLikeError as error:
        store.agree(f"restore {folder}", error)
        raise
    put(store, manifest, lambda piece: read_piece(folder, piece), f"restore {folder}")


def put(store: SavedStore, manifest: Manifest, read: ReadPiece, what: str) -> None:
    """Gives the servers what was saved: nothing is changed there before all ranks have read and verified theirs."""
    store.ask([one.asks(encode_clear(one.key)) for one in store.own])
    store.agree(what)
    error: BytePSLikeError | None = None
    try:
        _bring(store, manifest, read)
    except BytePSLikeError as failed:
        error = failed
    store.agree("have restored", error)
    store.ask([one.asks(encode_commit(one.key, _version(manifest, one))) for one in store.own])
    store.agree("go on")
    for one in store.keys:
        store.tensors[one.tensor].versions.restored(one.number, _version(manifest, one))


def check(store: SavedStore, manifest: Manifest, where: str) -> None:
    """Raises MismatchError where the checkpoint is of something else."""
    here = {name: one.saved for name, one in store.tensors.items()}
    for name in dict.fromkeys([*here, *manifest.tensors]):
        texts = [_text(some.get(name)) for some in (manifest.tensors, here)]
        if texts[0] != texts[1]:
            raise MismatchError(
                f"{where} has {name!r} as {texts[0]}, but {store.name!r} of this job as {texts[1]}", key=name
            )


def _text(one: SavedTensor | None) -> str:
    if one is None:
        return "nothing"
    kind = "rows" if one.is_table else "a value"
    return f"{kind} of shape {list(one.shape)}, {one.dtype}, {one.terms}"


def _version(manifest: Manifest, key: SavedKey) -> int:
    """The greatest of what it gets: none of its rows, and no step, is of a later one."""
    saved = manifest.tensors[key.tensor]
    pieces = saved.pieces
    if not saved.is_table:
        pieces = tuple(pieces[one] for one in overlapping(pieces, key.offset, key.nbytes, key.tensor))
    return max((piece.version for piece in pieces), default=0)


def _bring(store: SavedStore, manifest: Manifest, read: ReadPiece) -> None:
    dense = [one for one in store.own if not store.tensors[one.tensor].saved.is_table]
    heads = store.heads(dense)
    for one in dense:
        store.ask(_writes(one, manifest.tensors[one.tensor], heads[one.key].state_bytes, read))
    for name, saved in manifest.tensors.items():
        if saved.is_table:
            for piece in saved.pieces[store.worker.rank :: store.worker.size]:
                store.ask(_row_writes(store, name, read(piece)))


def _writes(one: SavedKey, saved: SavedTensor, state_bytes: int, read: ReadPiece) -> list[SavingRequest]:
    """What makes a key's content of pieces."""
    requests = []
    for number in overlapping(saved.pieces, one.offset, one.nbytes, one.tensor):
        piece = saved.pieces[number]
        data = read(piece)
        value, state = data[: piece.nbytes], data[piece.nbytes :]
        copies = [(SavedPart.VALUE, value, value_copy(piece, one.offset, one.nbytes))]
        copies += [
            (SavedPart.STATE, state, copy)
            for copy in state_copies(
                piece, one.offset, one.nbytes, state_bytes, one.tensor, has_form=_OF_FUNCTION not in saved.terms
            )
        ]
        for part, source, copy in copies:
            for at in range(0, copy.nbytes, MAX_SAVED):
                chosen = source[copy.source + at : copy.source + min(at + MAX_SAVED, copy.nbytes)]
                requests.append(one.asks(encode_write(one.key, part, copy.target + at, chosen)))
    return requests


def _row_writes(store: SavedStore, name: str, rows: memoryview) -> list[SavingRequest]:
    """Brings rows to the shards where they belong by now."""
    table = store.tensors[name]
    keys = [one for one in store.keys if one.tensor == name]
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
            one.asks(encode_write_rows(one.key, chosen[at : at + step].tobytes())) for at in range(0, len(chosen), step)
        ]
    return requests
