"""Proof, per call, that both ends know the job's secret.

A request carries job, time, a nonce and HMAC-SHA256 over (job, method, time, nonce, SHA-256 of the request); an answer
carries HMAC-SHA256, under another key, over (method, that nonce, SHA-256 of the answer). So a call can't be forged,
changed, sent to another method or job, or sent again, and a false scheduler can't answer. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass

from byteps_like.control.secret import derive
from byteps_like.errors import RefusedError

VERSION = 1
WINDOW = 60.0
"""Seconds by which the clocks of two members may differ; a nonce is remembered at least as long."""

_HEADER = struct.Struct(">Bd16s")
_MAC = 32
_Digest = hashlib.sha256


def _mac(key: bytes, *parts: bytes) -> bytes:
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, framed, _Digest)


@dataclass(frozen=True)
class Keys:
    """Both directions' keys; kept apart, so that an answer is never good as a request."""

    request: bytes
    answer: bytes

    @classmethod
    def of(cls, secret: bytes) -> Keys:
        """The keys of the job with this secret."""
        return cls(derive(secret, "control request"), derive(secret, "control answer"))

    def sign(self, job: str, method: str, body: bytes, now: float | None = None) -> tuple[bytes, bytes]:
        """(proof, nonce) for a request."""
        nonce = os.urandom(16)
        header = _HEADER.pack(VERSION, time.time() if now is None else now, nonce)
        return header + self._of_request(job, method, header, body), nonce

    def answered(self, method: str, nonce: bytes, body: bytes) -> bytes:
        """Proof for the answer to the request with this nonce."""
        return _mac(self.answer, method.encode(), nonce, _Digest(body).digest())

    def check_answer(self, proof: bytes | None, method: str, nonce: bytes, body: bytes) -> bool:
        """True if whoever answered knows the secret and answered this very request."""
        return proof is not None and hmac.compare_digest(proof, self.answered(method, nonce, body))

    def _of_request(self, job: str, method: str, header: bytes, body: bytes) -> bytes:
        return _mac(self.request, job.encode(), method.encode(), header, _Digest(body).digest())


class Verifier:
    """Checks requests, each nonce once. Not thread-safe: it lives on one event loop."""

    def __init__(self, job: str, secret: bytes, *, clock: Callable[[], float] = time.time) -> None:
        self.job = job
        self.keys = Keys.of(secret)
        self._clock = clock
        self._seen: tuple[set[bytes], set[bytes]] = (set(), set())
        self._turned = clock()

    def check(self, job: str, method: str, proof: bytes | None, body: bytes) -> bytes:
        """The request's nonce. Raises RefusedError with the reason: job, version, secret, clock or replay."""
        if job != self.job:
            raise RefusedError(f"this is job {self.job!r}, the caller is of job {job!r}; check address and port")
        if proof is None or len(proof) != _HEADER.size + _MAC:
            raise RefusedError("the call carries no proof of the job's secret")
        version, sent, nonce = _HEADER.unpack_from(proof)
        if version != VERSION:
            raise RefusedError(f"the caller speaks version {version} of the control protocol, this side {VERSION}")
        expected = self.keys._of_request(job, method, proof[: _HEADER.size], body)
        if not hmac.compare_digest(proof[_HEADER.size :], expected):
            raise RefusedError("wrong secret: the caller does not know the secret of this job")
        self._check_fresh(sent, nonce)
        return bytes(nonce)

    def _check_fresh(self, sent: float, nonce: bytes) -> None:
        now = self._clock()
        if not abs(now - sent) <= WINDOW:
            raise RefusedError(
                f"the caller's clock is {sent - now:+.0f} s off this one; at most {WINDOW:.0f} s are allowed"
            )
        if now - self._turned > 2 * WINDOW:
            # A proof stays valid from `sent - WINDOW` to `sent + WINDOW`; two generations cover that.
            self._seen, self._turned = (set(), self._seen[0]), now
        if nonce in self._seen[0] or nonce in self._seen[1]:
            raise RefusedError("replay: this call was made before")
        self._seen[0].add(nonce)
