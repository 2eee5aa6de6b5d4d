"""Proof, per call, that both ends know the job's secret, and that the call was made once and for this very process.

Whoever is called (the scheduler, a server's admin service) draws an *incarnation* when it starts, and numbers the
*sessions* of its callers. A request names both, counts the caller's calls, and says how long its body is and what its
SHA-256 is; the HMAC over all that, and over job, addressee, service and method, is checked before the body is read. A
caller that doesn't know the incarnation yet, or whose session is forgotten, is told by a signed challenge, and makes
its call again. So a call can't be forged, changed, or sent again, neither to another method, job or process nor to the
same one after a restart, and no clock matters. Answers are signed under another key, over the request's proof and the
term of who answers, so a false scheduler can't answer, nor an old one as the new. Nothing is encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from collections import OrderedDict
from dataclasses import dataclass, field, replace

from byteps_like.control.calls.secret import derive
from byteps_like.control.types import INCARNATION_BYTES
from byteps_like.errors import RefusedError

VERSION = 2

SESSIONS = 1 << 16
"""Sessions remembered; whoever was silent for longest is forgotten first, and given a new session when it calls."""

DISORDER = 256
"""Calls of one session by which a later one may overtake an earlier one; one that comes later still is challenged."""

_HEADER = struct.Struct(">B16sQQ16sI32s")
_CHALLENGE = struct.Struct(">16sQ")
_MAC = 32
_Digest = hashlib.sha256


def _mac(key: bytes, *parts: bytes) -> bytes:
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, framed, _Digest)


@dataclass(frozen=True)
class Purpose:
    """What a call is for: the job, whom it addresses ("scheduler", "server 10.0.0.2:4711"), and the method."""

    job: str
    addressee: str
    service: str
    method: str

    def parts(self) -> tuple[bytes, ...]:
        """What goes into the MAC."""
        return tuple(part.encode() for part in (self.job, self.addressee, self.service, self.method))


@dataclass(frozen=True)
class Addressee:
    """Which call of which session of which process; the first call of all, which knows none, is of session 0."""

    incarnation: bytes = bytes(INCARNATION_BYTES)
    session: int = 0
    number: int = 0


@dataclass(frozen=True)
class Keys:
    """Both directions' keys; kept apart, so that an answer is never good as a request."""

    request: bytes
    answer: bytes

    @classmethod
    def of(cls, secret: bytes) -> Keys:
        """The keys of the job with this secret."""
        return cls(derive(secret, "control request"), derive(secret, "control answer"))

    def sign(self, purpose: Purpose, place: Addressee, body: bytes) -> bytes:
        """The proof of a request."""
        header = _HEADER.pack(
            VERSION, place.incarnation, place.session, place.number, os.urandom(16), len(body), _Digest(body).digest()
        )
        return header + _mac(self.request, *purpose.parts(), header)

    def answered(self, proof: bytes, kind: str, body: bytes, term: int = 0) -> bytes:
        """Proof of the answer to the request with this proof; `kind` tells answers, errors and challenges apart."""
        return _mac(self.answer, proof, kind.encode(), _Digest(body).digest(), term.to_bytes(8, "big"))

    def check_answer(self, answer: bytes | None, proof: bytes, kind: str, body: bytes, term: int = 0) -> bool:
        """True if whoever answered knows the secret and answered this very request in this term."""
        return answer is not None and hmac.compare_digest(answer, self.answered(proof, kind, body, term))


class CallerSession:
    """The caller's side: signs each call once. Not thread-safe: it lives on one event loop."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._place = Addressee()

    def sign(self, purpose: Purpose, body: bytes) -> bytes:
        """The proof of the next call."""
        self._place = replace(self._place, number=self._place.number + 1)
        return self._keys.sign(purpose, self._place, body)

    def take(self, challenge: bytes | None, proof: bytes) -> bool:
        """True if `challenge` answers the call of this proof: from now on calls are made in the session it gives."""
        if challenge is None or len(challenge) != _CHALLENGE.size + _MAC:
            return False
        told = challenge[: _CHALLENGE.size]
        if not self._keys.check_answer(challenge[_CHALLENGE.size :], proof, "challenge", told):
            return False
        self._place = Addressee(*_CHALLENGE.unpack(told))
        return True


class ChallengedError(Exception):
    """A caller knows the secret, but not this process, or not its session any more: the call has to be made again."""

    def __init__(self, challenge: bytes) -> None:
        super().__init__("the call was not made for this process: it has to be signed for the session given with this")
        self.challenge = challenge


@dataclass
class _Window:
    """Which numbers of one session have come: the newest, and a bit for each of those before it."""

    newest: int = 0
    seen: int = 0

    def is_past(self, number: int) -> bool:
        """True if nothing is known any more of whether `number` has come."""
        return number <= self.newest - DISORDER

    def take(self, number: int) -> bool:
        """True if `number`, which is not past, comes for the first time."""
        ahead = number - self.newest
        if ahead > 0:
            self.seen = (self.seen << min(ahead, DISORDER) | 1) & (1 << DISORDER) - 1
            self.newest = number
            return True
        mark = 1 << -ahead
        fresh = not self.seen & mark
        self.seen |= mark
        return fresh


@dataclass(frozen=True)
class Admitted:
    """A request whose header was right; its body has yet to come."""

    proof: bytes
    length: int
    digest: bytes

    def check_body(self, body: bytes) -> None:
        """Raises RefusedError if this isn't the body that was signed."""
        if len(body) != self.length or not hmac.compare_digest(_Digest(body).digest(), self.digest):
            raise RefusedError("the request was changed on its way: it is not what its caller signed")


@dataclass
class Verifier:
    """Checks requests of a job's members and operators to one process. Not thread-safe: it lives on one event loop."""

    job: str
    secret: bytes = field(repr=False)
    addressee: str
    incarnation: bytes = field(default_factory=lambda: os.urandom(INCARNATION_BYTES))
    most_sessions: int = SESSIONS

    def __post_init__(self) -> None:
        self.keys = Keys.of(self.secret)
        self._sessions: OrderedDict[int, _Window] = OrderedDict()
        self._given = 0
        self._forgotten = 0
        """No session up to this one begins any more."""

    def admit(self, purpose: Purpose, proof: bytes | None) -> Admitted:
        """The request, by its header alone.

        Raises RefusedError with the reason (job, addressee, version, secret or replay), ChallengedError for a caller
        that has to make its call again.
        """
        if purpose.job != self.job:
            raise RefusedError(
                f"this is job {self.job!r}, the caller is of job {purpose.job!r}; check address and port"
            )
        if proof and proof[0] != VERSION:
            raise RefusedError(f"the caller speaks version {proof[0]} of the control protocol, this side {VERSION}")
        if proof is None or len(proof) != _HEADER.size + _MAC:
            raise RefusedError("the call carries no proof of the job's secret")
        if purpose.addressee != self.addressee:
            raise RefusedError(f"this is the {self.addressee}, the caller means the {purpose.addressee}")
        header = proof[: _HEADER.size]
        if not hmac.compare_digest(proof[_HEADER.size :], _mac(self.keys.request, *purpose.parts(), header)):
            raise RefusedError("wrong secret: the caller does not know the secret of this job")
        _, incarnation, session, number, _, length, digest = _HEADER.unpack(header)
        window = self._window(session) if incarnation == self.incarnation else None
        if window is None or window.is_past(number):
            raise ChallengedError(self._challenge(proof))
        if not window.take(number):
            raise RefusedError("replay: this call was made before")
        return Admitted(proof, length, digest)

    def _window(self, session: int) -> _Window | None:
        window = self._sessions.get(session)
        if window is not None:
            self._sessions.move_to_end(session)
            return window
        if not self._forgotten < session <= self._given:
            return None
        window = self._sessions[session] = _Window()
        if len(self._sessions) > self.most_sessions:
            oldest, _ = self._sessions.popitem(last=False)
            self._forgotten = max(self._forgotten, oldest)
        return window

    def _challenge(self, proof: bytes) -> bytes:
        # Nothing is remembered of it before its first call: challenges may be asked for in any number.
        self._given += 1
        told = _CHALLENGE.pack(self.incarnation, self._given)
        return told + self.keys.answered(proof, "challenge", told)
