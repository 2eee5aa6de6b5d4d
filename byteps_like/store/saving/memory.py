"""What servers keep, in the memory of each rank: a dict of plain values and arrays, for whoever saves it elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from byteps_like.errors import BytePSLikeError, InvalidArgumentError
from byteps_like.store.saving.checkpoint import check, put
from byteps_like.store.saving.keys import SavedKey, SavedStore
from byteps_like.store.saving.manifest import Manifest, SavedPiece, SavedTensor
from byteps_like.store.saving.reading import KeyContent, read_rows, read_values

State = dict[str, Any]


def gather(store: SavedStore) -> State:
    """All of it, of one cut, on every rank. See Store.state_dict."""
    store.agree("gather the state")
    error: BytePSLikeError | None = None
    found: dict[SavedKey, list[KeyContent]] = {}
    try:
        found = _read(store)
    except BytePSLikeError as failed:
        error = failed
    store.agree("have the state", error)
    tensors = {name: _tensor(store, name, found) for name in store.tensors}
    versions = [content.head.version for some in found.values() for content in some]
    return {"name": store.name, "version": min(versions, default=0), "ranks": store.worker.size, "tensors": tensors}


def scatter(store: SavedStore, state: Mapping[str, Any]) -> None:
    """Puts it on the servers, each rank its share. See Store.load_state_dict."""
    try:
        manifest, data = _manifest(state)
        check(store, manifest, "the state")
    except BytePSLikeError as error:
        store.agree("load a state", error)
        raise
    put(store, manifest, lambda piece: data[piece.file, piece.at], "load a state")


def _read(store: SavedStore) -> dict[SavedKey, list[KeyContent]]:
    is_table = {name: one.saved.is_table for name, one in store.tensors.items()}
    found: dict[SavedKey, list[KeyContent]] = {one: [] for one in store.keys}
    for content in read_values(store, [one for one in store.keys if not is_table[one.tensor]]):
        found[content.key].append(content)
    for rows in read_rows(store, [one for one in store.keys if is_table[one.tensor]]):
        if isinstance(rows, SavedKey):
            found[rows].clear()
        else:
            found[rows.key].append(rows)
    return found


def _tensor(store: SavedStore, name: str, found: Mapping[SavedKey, list[KeyContent]]) -> State:
    saved = store.tensors[name].saved
    contents = [content for key, some in found.items() if key.tensor == name for content in some]
    value = None if saved.is_table else np.empty(saved.shape, saved.dtype)
    flat = None if value is None else value.reshape(-1).view(np.uint8)
    pieces = []
    for content in contents:
        key, data = content.key, np.frombuffer(b"".join(content.chunks), np.uint8)
        if flat is not None:
            flat[key.offset : key.offset + key.nbytes] = data[: key.nbytes]
            where = {"offset": key.offset, "nbytes": key.nbytes, "state": data[key.nbytes :].copy()}
        else:
            where = {"offset": 0, "nbytes": len(data), "rows": data}
        pieces.append({**where, "version": content.head.version, "clocks": list(content.head.clocks)})
    described = {entry: kept for entry, kept in asdict(saved).items() if entry != "pieces"}
    return {**described, "value": value, "pieces": pieces}


def _manifest(state: Mapping[str, Any]) -> tuple[Manifest, dict[tuple[str, int], memoryview]]:
    """And the bytes of each piece, by the tensor's name and the piece's number."""
    tensors: dict[str, SavedTensor] = {}
    data: dict[tuple[str, int], memoryview] = {}
    try:
        for name, one in state["tensors"].items():
            pieces = []
            for number, piece in enumerate(one["pieces"]):
                content = _bytes(one, piece)
                data[name, number] = memoryview(content)
                state_bytes = len(content) - piece["nbytes"]
                pieces.append(SavedPiece(name, number, piece["offset"], piece["nbytes"], state_bytes, piece["version"],
                                         tuple(piece["clocks"]), 0))  # fmt: skip
            described = (one["dtype"], tuple(one["shape"]), one["terms"], one["is_table"], one["row_bytes"])
            tensors[name] = SavedTensor(*described, tuple(pieces))
        return Manifest(state["name"], state["version"], state["ranks"], tensors), data
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"this is no state_dict() of a store: {error!r}") from None


def _bytes(tensor: Mapping[str, Any], piece: Mapping[str, Any]) -> bytes:
    if tensor["is_table"]:
        return np.asarray(piece["rows"], np.uint8).tobytes()
    value = np.ascontiguousarray(tensor["value"]).reshape(-1).view(np.uint8)
    own = value[piece["offset"] : piece["offset"] + piece["nbytes"]]
    return own.tobytes() + np.asarray(piece["state"], np.uint8).tobytes()
