"""The secret's file and its derived keys."""

import logging
import stat
from pathlib import Path

import pytest

from byteps_like.config import Config
from byteps_like.control.calls import secret
from byteps_like.errors import ConfigError

SECRET = b"0123456789abcdef0123456789abcdef"


def test_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "secret"
    text = secret.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.load(Config(secret_file=str(path))) == text.encode()
    assert (
        secret.load(Config(secret_file=str(path), secret="beats the file, 0123456789abcdef"))
        == b"beats the file, 0123456789abcdef"
    )
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
        (Config(secret="short"), "5 bytes, fewer than 32"),
        (Config(secret="x" * 31), "31 bytes, fewer than 32"),
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
