"""The secret's file, its derived keys, and every reason for which a proof is refused."""

import logging
import stat
from pathlib import Path

import pytest

from byteps_like.config import Config
from byteps_like.control import secret
from byteps_like.control.proof import WINDOW, Keys, Verifier
from byteps_like.errors import ConfigError, RefusedError

SECRET = b"0123456789abcdef0123456789abcdef"


def test_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    text = secret.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.load(Config(secret_file=str(path))) == text.encode()
    assert secret.load(Config(secret_file=str(path), secret="beats the file, 1234")) == b"beats the file, 1234"
    with pytest.raises(FileExistsError):
        secret.create(path)
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        secret.load(Config(secret_file=str(path)))
    assert "chmod 600" in caplog.text


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (Config(), "BYTEPS_LIKE_SECRET_FILE"),
        (Config(secret="short"), "5 characters, fewer than 16"),
        (Config(secret_file="/nonexistent/secret"), "can't read"),
    ],
)
def test_no_usable_secret(config: Config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        secret.load(config)


def test_derived_keys_differ_by_purpose_and_secret() -> None:
    keys = {secret.derive(key, purpose) for key in (SECRET, SECRET + b"x") for purpose in ("curve", "control request")}
    assert len(keys) == 4
    assert {len(key) for key in keys} == {32}


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_a_proof_is_good_once_and_the_answer_is_bound_to_it(clock: Clock) -> None:
    keys, verifier = Keys.of(SECRET), Verifier("job", SECRET, clock=clock)
    proof, nonce = keys.sign("job", "Join", b"body", clock.now)
    assert verifier.check("job", "Join", proof, b"body") == nonce
    with pytest.raises(RefusedError, match="replay"):
        verifier.check("job", "Join", proof, b"body")
    answer = verifier.keys.answered("Join", nonce, b"reply")
    assert keys.check_answer(answer, "Join", nonce, b"reply")
    assert not keys.check_answer(answer, "Join", nonce, b"other")
    assert not keys.check_answer(answer, "Leave", nonce, b"reply")
    assert not keys.check_answer(Keys.of(b"x" * 32).answered("Join", nonce, b"reply"), "Join", nonce, b"reply")
    assert not keys.check_answer(None, "Join", nonce, b"reply")


@pytest.mark.parametrize(
    ("job", "method", "body", "key", "age", "message"),
    [
        ("other", "Join", b"body", SECRET, 0, "this is job 'job', the caller is of job 'other'"),
        ("job", "Leave", b"body", SECRET, 0, "wrong secret"),
        ("job", "Join", b"b0dy", SECRET, 0, "wrong secret"),
        ("job", "Join", b"body", b"y" * 32, 0, "wrong secret"),
        ("job", "Join", b"body", SECRET, WINDOW + 5, "clock is -65 s off"),
        ("job", "Join", b"body", SECRET, -WINDOW - 5, r"clock is \+65 s off"),
    ],
)
def test_refused(clock: Clock, job: str, method: str, body: bytes, key: bytes, age: float, message: str) -> None:
    proof, _ = Keys.of(key).sign(job, "Join", b"body", clock.now - age)
    with pytest.raises(RefusedError, match=message):
        Verifier("job", SECRET, clock=clock).check(job, method, proof, body)


def test_malformed_proofs_and_versions(clock: Clock) -> None:
    verifier = Verifier("job", SECRET, clock=clock)
    proof, _ = Keys.of(SECRET).sign("job", "Join", b"", clock.now)
    for broken in (None, b"", proof[:-1], proof + b"x"):
        with pytest.raises(RefusedError, match="no proof"):
            verifier.check("job", "Join", broken, b"")
    with pytest.raises(RefusedError, match="version 2"):
        verifier.check("job", "Join", b"\x02" + proof[1:], b"")


def test_a_nonce_is_remembered_as_long_as_its_proof_is_fresh(clock: Clock) -> None:
    keys, verifier = Keys.of(SECRET), Verifier("job", SECRET, clock=clock)
    proof, _ = keys.sign("job", "Join", b"", clock.now + WINDOW)  # the caller's clock is ahead
    verifier.check("job", "Join", proof, b"")
    for _step in range(4):
        clock.now += WINDOW / 2
        verifier.check("job", "Other", keys.sign("job", "Other", b"", clock.now)[0], b"")
        with pytest.raises(RefusedError, match="replay"):
            verifier.check("job", "Join", proof, b"")
    clock.now += WINDOW
    with pytest.raises(RefusedError, match="clock"):
        verifier.check("job", "Join", proof, b"")
