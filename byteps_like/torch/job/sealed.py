"""Bytes between ranks with a proof that a rank of this epoch has sent them, and plain data in them.

Links check what breaks by itself, not what somebody on the way changes: so whatever is to become Python objects again
carries HMAC-SHA256 under a key of the epoch, made from the job's secret, over the call, who sends, and the bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch

from byteps_like.errors import CorruptError, InvalidArgumentError

MAC_BYTES = 32
_KEY_BYTES = 32


@dataclass(frozen=True)
class Seal:
    """What the bytes of one call are bound to: the world's key (worker.api.Worker), the kind of call, the process set,
    and how many such calls there were before."""

    key: bytes
    kind: str
    scope: int
    call: int

    def close(self, sender: int, data: bytes) -> bytes:
        """`data` of rank `sender` with its proof before it. Raises InvalidArgumentError for a worker without a key."""
        if len(self.key) != _KEY_BYTES:
            raise InvalidArgumentError("this worker has no key with which to authenticate objects")
        return self._mac(sender, data) + data

    def open(self, sender: int, sealed: bytes) -> bytes:
        """The bytes that rank `sender` has sealed. Raises CorruptError if it didn't, or not for this call."""
        proof, data = sealed[:MAC_BYTES], sealed[MAC_BYTES:]
        if len(self.key) != _KEY_BYTES or not hmac.compare_digest(proof, self._mac(sender, data)):
            raise CorruptError(
                f"{self.kind}: what came from rank {sender} is not what it has sent in this call: the bytes were"
                " changed on their way, or the ranks make their object calls in different orders",
                peer=f"worker {sender}",
                operation=self.kind,
            )
        return data

    def _mac(self, sender: int, data: bytes) -> bytes:
        head = struct.pack(">IIQQ", sender, self.scope, self.call, len(data)) + self.kind.encode()
        return hmac.digest(self.key, struct.pack(">I", len(head)) + head + data, hashlib.sha256)


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
