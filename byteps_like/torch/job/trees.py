"""Trees of plain values and tensors, as a text and the tensors in it, or as bytes."""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cloudpickle
import torch

from byteps_like.errors import CorruptError, InvalidArgumentError
from byteps_like.wire.crc32c import Buffer

_HEAD = struct.Struct("<Q")


def packed(tree: Any) -> list[Buffer]:
    """Its bytes; tensors of the CPU are not copied. Raises InvalidArgumentError for objects of other types."""
    text, tensors = flatten(tree, objects=False)
    return [_HEAD.pack(len(text)), text, *map(_bytes, tensors)]


def unpacked(data: memoryview) -> Any:
    """The same again. Raises CorruptError for what `packed` has not written."""
    try:
        (length,) = _HEAD.unpack_from(data)
        tree, tensors = unflatten(bytes(data[_HEAD.size : _HEAD.size + length]), objects=False)
    except (struct.error, ValueError, AttributeError, TypeError) as error:
        raise CorruptError(f"what a rank has saved of its own makes no sense: {error}") from None
    at = _HEAD.size + length
    for tensor in tensors:
        place = _bytes(tensor)
        if at + len(place) > len(data):
            raise CorruptError("what a rank has saved of its own ends within a tensor")
        place[:] = data[at : at + len(place)]
        at += len(place)
    return tree


def tensors_of(tree: Any) -> Iterator[torch.Tensor]:
    """The dense tensors in it."""
    return (tensor for _, tensor in places_of(tree))


def places_of(tree: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The dense tensors in it, in the order of `flatten`, with their places: "model.0.weight"."""
    if isinstance(tree, Mapping):
        items: Iterable[tuple[Any, Any]] = tree.items()
    elif type(tree) in (list, tuple):
        items = enumerate(tree)
    else:
        if isinstance(tree, torch.Tensor) and tree.layout is torch.strided:
            yield path, tree
        return
    for key, item in items:
        yield from places_of(item, f"{path}.{key}" if path else str(key))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Its bytes, row by row, on its device: in its memory if it is contiguous, else a copy."""
    # Not by reshape: a tensor with at most one element is contiguous with any strides, and keeps them there.
    return tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def flatten(tree: Any, *, objects: bool = True) -> tuple[bytes, list[torch.Tensor]]:
    """Dicts, lists, tuples, numbers, strings and None as JSON, and the dense tensors in them, which it gives places.

    What is none of these is pickled into it, such as an object that an optimizer of one's own keeps; without `objects`
    InvalidArgumentError is raised instead.
    """
    tensors: list[torch.Tensor] = []
    return json.dumps(_plain(tree, tensors, objects)).encode(), tensors


def unflatten(text: bytes, *, objects: bool = True) -> tuple[Any, list[torch.Tensor]]:
    """The tree, which has tensors on the CPU to be filled: these, in the order of `flatten`. Without `objects` nothing
    is unpickled: raises CorruptError for what has been pickled."""
    tensors: list[torch.Tensor] = []
    return _tree(json.loads(text), tensors, objects), tensors


def _plain(value: Any, tensors: list[torch.Tensor], objects: bool) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is dict:
        return {
            "dict": [[_plain(key, tensors, objects), _plain(item, tensors, objects)] for key, item in value.items()]
        }
    if type(value) in (list, tuple):
        return {type(value).__name__: [_plain(item, tensors, objects) for item in value]}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        tensors.append(value)
        return {"tensor": [str(value.dtype).removeprefix("torch."), *value.shape]}
    if not objects:
        raise InvalidArgumentError(
            f"a {type(value).__name__} can't be saved: only dense tensors, numbers, strings, and containers of these"
        )
    return {"pickle": b64encode(cloudpickle.dumps(value)).decode()}


def _tree(value: Any, tensors: list[torch.Tensor], objects: bool) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, held),) = value.items()
    if kind == "dict":
        return {_tree(key, tensors, objects): _tree(item, tensors, objects) for key, item in held}
    if kind == "tensor":
        tensors.append(_empty(held))
        return tensors[-1]
    if kind == "pickle":
        if not objects:
            raise CorruptError("there is a pickled object where none belongs")
        return cloudpickle.loads(b64decode(held))
    items = [_tree(item, tensors, objects) for item in held]
    return tuple(items) if kind == "tuple" else items


def _empty(described: Sequence[Any]) -> torch.Tensor:
    return torch.empty(described[1:], dtype=getattr(torch, described[0]), device="cpu")


def _bytes(tensor: torch.Tensor) -> memoryview:
    return bytes_of(tensor.to("cpu")).numpy().data
