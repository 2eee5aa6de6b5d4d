"""Bytes between ranks with a proof that a rank of this epoch has sent them.

Links check what breaks by itself, not what somebody on the way changes: so whatever is to become Python objects again
carries HMAC-SHA256 under a key of the epoch, made from the job's secret, over the call, who sends, and the bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass

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
