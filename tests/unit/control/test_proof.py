"""Proofs of calls: what is admitted once, every reason for which one is refused, and what a replayer gets."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps_like.control.calls.proof import DISORDER, Addressee, CallerSession, ChallengedError, Keys, Purpose, Verifier
from byteps_like.errors import RefusedError

SECRET = b"0123456789abcdef0123456789abcdef"
DRAIN = Purpose("job", "server 10.0.0.1:1", "byteps_like.v1.ServerAdmin", "Drain")
BODY = b"body"


def verifier(**changes: object) -> Verifier:
    return Verifier(**({"job": "job", "secret": SECRET, "addressee": DRAIN.addressee} | changes))  # type: ignore[arg-type]


def caller(secret: bytes = SECRET) -> CallerSession:
    return CallerSession(Keys.of(secret))


def introduce(session: CallerSession, to: Verifier) -> None:
    """The caller's first call, which is answered by a challenge."""
    proof = session.sign(DRAIN, b"")
    with pytest.raises(ChallengedError) as caught:
        to.admit(DRAIN, proof)
    assert session.take(caught.value.challenge, proof)


def test_a_call_is_admitted_once_and_its_answer_is_bound_to_it() -> None:
    session, server = caller(), verifier()
    introduce(session, server)
    proof = session.sign(DRAIN, BODY)
    admitted = server.admit(DRAIN, proof)
    admitted.check_body(BODY)
    for changed in (b"b0dy", b"", BODY + b"x"):
        with pytest.raises(RefusedError, match="changed on its way"):
            admitted.check_body(changed)
    with pytest.raises(RefusedError, match="replay"):
        server.admit(DRAIN, proof)
    keys = Keys.of(SECRET)
    answer = keys.answered(proof, "answer", b"reply")
    assert keys.check_answer(answer, proof, "answer", b"reply")
    assert not keys.check_answer(answer, proof, "answer", b"other")
    assert not keys.check_answer(answer, proof, "error", b"reply")
    assert not keys.check_answer(answer, session.sign(DRAIN, BODY), "answer", b"reply")
    assert not keys.check_answer(Keys.of(b"x" * 32).answered(proof, "answer", b"reply"), proof, "answer", b"reply")
    assert not keys.check_answer(None, proof, "answer", b"reply")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job": "other"}, "this is job 'job', the caller is of job 'other'"),
        ({"addressee": "server 10.0.0.2:1"}, "this is the server 10.0.0.1:1, the caller means the server 10.0.0.2:1"),
        ({"service": "byteps_like.v1.Scheduler"}, "wrong secret"),
        ({"method": "Stats"}, "wrong secret"),
    ],
)
def test_a_call_for_something_else(changes: dict[str, str], message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        verifier().admit(replace(DRAIN, **changes), caller().sign(DRAIN, BODY))


def test_wrong_secrets_malformed_proofs_and_versions() -> None:
    server, proof = verifier(), caller().sign(DRAIN, BODY)
    for broken in (None, b"", proof[:-1], proof + b"x"):
        with pytest.raises(RefusedError, match="no proof"):
            server.admit(DRAIN, broken)
    with pytest.raises(RefusedError, match="version 1"):
        server.admit(DRAIN, b"\x01" + proof[1:57])
    with pytest.raises(RefusedError, match="wrong secret"):
        server.admit(DRAIN, caller(b"y" * 32).sign(DRAIN, BODY))
    for place in range(1, len(proof)):
        changed = bytearray(proof)
        changed[place] ^= 1
        with pytest.raises(RefusedError, match="wrong secret"):
            server.admit(DRAIN, bytes(changed))


def test_a_call_recorded_anywhere_is_good_nowhere_else_and_never_again() -> None:
    first, session = verifier(), caller()
    introduce(session, first)
    recorded = session.sign(DRAIN, BODY)
    first.admit(DRAIN, recorded)
    for other in (verifier(), verifier(incarnation=bytes(16))):  # another server, the same one after a restart
        introduce(caller(), other)
        with pytest.raises(ChallengedError):
            other.admit(DRAIN, recorded)


def test_a_challenge_is_believed_of_whoever_knows_the_secret_only() -> None:
    session, server = caller(), verifier()
    proof = session.sign(DRAIN, b"")
    with pytest.raises(ChallengedError) as caught:
        server.admit(DRAIN, proof)
    challenge = caught.value.challenge
    assert not session.take(None, proof)
    assert not session.take(challenge[:-1], proof)
    assert not session.take(bytes(56), proof)
    assert not session.take(challenge, session.sign(DRAIN, b""))  # it answers another call
    assert session.take(challenge, proof)


def test_strangers_and_challenges_leave_nothing_behind() -> None:
    server = verifier(most_sessions=4)
    for _ in range(100):
        with pytest.raises(ChallengedError):
            server.admit(DRAIN, caller().sign(DRAIN, b""))
        with pytest.raises(RefusedError):
            server.admit(DRAIN, caller(b"y" * 32).sign(DRAIN, b""))
    assert not server._sessions


def test_a_forgotten_session_is_not_taken_up_again() -> None:
    server = verifier(most_sessions=4)
    session = caller()
    introduce(session, server)
    recorded = session.sign(DRAIN, BODY)
    server.admit(DRAIN, recorded)
    for _ in range(5):
        other = caller()
        introduce(other, server)
        server.admit(DRAIN, other.sign(DRAIN, b""))
    assert len(server._sessions) == 4
    with pytest.raises(ChallengedError):
        server.admit(DRAIN, recorded)
    introduce(session, server)
    server.admit(DRAIN, session.sign(DRAIN, BODY))


@given(st.integers(0, 2**32), st.integers(1, 4 * DISORDER))
def test_any_order_and_any_repetition(seed: int, count: int) -> None:
    """Each call is admitted at most once; always, unless more than DISORDER later ones came before it."""
    rng = random.Random(seed)
    server = verifier(incarnation=b"i" * 16)
    keys = Keys.of(SECRET)
    server._given = 1
    admitted: set[int] = set()
    newest = 0
    for _ in range(min(count, 200)):
        number = rng.randint(1, count)
        proof = keys.sign(DRAIN, Addressee(b"i" * 16, 1, number), BODY)
        try:
            server.admit(DRAIN, proof)
        except RefusedError:
            assert number in admitted
        except ChallengedError:
            assert number <= newest - DISORDER
        else:
            assert number not in admitted
            admitted.add(number)
            newest = max(newest, number)


def test_numbers_may_leap() -> None:
    server, keys = verifier(incarnation=b"i" * 16), Keys.of(SECRET)
    server._given = 1
    for number in (1, 2**63, 2**64 - 1):
        server.admit(DRAIN, keys.sign(DRAIN, Addressee(b"i" * 16, 1, number), BODY))
    with pytest.raises(ChallengedError):
        server.admit(DRAIN, keys.sign(DRAIN, Addressee(b"i" * 16, 1, 1), BODY))
