"""What a rank saves of its own beside the common weights: a tree of plain values and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from byteps_like.errors import InvalidArgumentError, MismatchError

Position = dict[str, Any]
"""LowComm._position."""


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
