"""What a rank saves of its own beside the common weights, as bytes: a tree of plain values, and the tensors in it."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import torch

from byteps_like.errors import CorruptError, InvalidArgumentError, MismatchError
from byteps_like.torch.job.sealed import flatten, unflatten
from byteps_like.wire.crc32c import Buffer

_HEAD = struct.Struct("<Q")

Position = dict[str, Any]
"""LowComm._position."""


def packed(position: Position) -> list[Buffer]:
    """Its bytes; tensors of the CPU are not copied. Raises InvalidArgumentError for objects of other types."""
    text, tensors = flatten(position, objects=False)
    return [_HEAD.pack(len(text)), text, *map(_bytes, tensors)]


def unpacked(data: memoryview) -> Position:
    """The same again. Raises CorruptError for what `packed` has not written."""
    try:
        (length,) = _HEAD.unpack_from(data)
        position, tensors = unflatten(bytes(data[_HEAD.size : _HEAD.size + length]), objects=False)
    except (struct.error, ValueError, AttributeError, TypeError) as error:
        raise CorruptError(f"what a rank has saved of its own makes no sense: {error}") from None
    at = _HEAD.size + length
    for tensor in tensors:
        place = _bytes(tensor)
        if at + len(place) > len(data):
            raise CorruptError("what a rank has saved of its own ends within a tensor")
        place[:] = data[at : at + len(place)]
        at += len(place)
    return dict(position)


def check_position(found: Position, own: Position) -> None:
    """Raises MismatchError where a rank has saved what this one can't take, InvalidArgumentError where it makes no
    sense."""
    try:
        differences = [
            ("number of fragments", len(found["fragments"]), len(own["fragments"])),
            ("codec", found["rounds"]["codec"], own["rounds"]["codec"]),
            ("inner optimizer", found["inner"]["kind"], own["inner"]["kind"]),
            ("parameters of the inner optimizer, by group", _sizes(found), _sizes(own)),
        ]
    except (KeyError, TypeError) as error:
        raise InvalidArgumentError(f"this is no state_dict() of a LowComm: {error!r}") from None
    for what, theirs, ours in differences:
        if theirs != ours:
            raise MismatchError(f"the checkpoint is of a LowComm with another {what}: {theirs!r}; here it is {ours!r}")


def _sizes(position: Mapping[str, Any]) -> list[int]:
    return [len(group["params"]) for group in position["inner"]["state"]["param_groups"]]


def _bytes(tensor: torch.Tensor) -> memoryview:
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
