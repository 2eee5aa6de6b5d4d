"""What servers keep, in the memory of each rank: a dict of plain values and arrays, for whoever saves it elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from byteps_like.errors import BytePSLikeError, InvalidArgumentError
from byteps_like.store.saving.checkpoint import check, put
from byteps_like.store.saving.manifest import Manifest, SavedPiece, SavedTensor
from byteps_like.store.saving.saved import Saved, SavedContent, valid

State = dict[str, Any]


def gather(saved: Saved) -> State:
    """All of it, of one cut, on every rank. See Store.state_dict."""
    saved.agree("gather the state")
    error: BytePSLikeError | None = None
    found: list[SavedContent] = []
    try:
        found = valid(saved.contents(every=True))
    except BytePSLikeError as failed:
        error = failed
    saved.agree("have the state", error)
    tensors = {
        name: _tensor(one, [content for content in found if content.tensor == name])
        for name, one in saved.tensors.items()
    }
    version = min((content.version for content in found), default=0)
    return {"name": saved.name, "version": version, "ranks": saved.ranks, "tensors": tensors}


def scatter(saved: Saved, state: Mapping[str, Any], take_own: Callable[[], None] = lambda: None) -> None:
    """Puts it in place, each rank its share. See Store.load_state_dict. `take_own`: as of `checkpoint.put`."""
    try:
        manifest, data = _manifest(state)
        check(saved, manifest, "the state")
    except BytePSLikeError as error:
        saved.agree("load a state", error)
        raise
    put(saved, manifest, lambda piece: data[piece.file, piece.at], "load a state", take_own)


def _tensor(saved: SavedTensor, contents: Sequence[SavedContent]) -> State:
    value = None if saved.is_table else np.empty(saved.shape, saved.dtype)
    flat = None if value is None else value.reshape(-1).view(np.uint8)
    pieces = []
    for content in contents:
        data = np.frombuffer(b"".join(content.chunks), np.uint8)
        if flat is not None:
            flat[content.offset : content.offset + content.nbytes] = data[: content.nbytes]
            where = {"offset": content.offset, "nbytes": content.nbytes, "state": data[content.nbytes :].copy()}
        else:
            where = {"offset": 0, "nbytes": len(data), "rows": data}
        pieces.append({**where, "version": content.version, "clocks": list(content.clocks)})
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
