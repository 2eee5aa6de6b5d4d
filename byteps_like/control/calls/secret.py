"""The job's secret: where it is kept, and the keys that are made from it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
import stat
from pathlib import Path

from byteps_like.config import Config
from byteps_like.errors import ConfigError

log = logging.getLogger(__name__)

SHORTEST = 32
"""Bytes of the shortest secret that is taken, here as in the native core."""


def new() -> str:
    """A fresh secret: 256 random bits as hexadecimal text."""
    return secrets.token_hex(32)


def create(path: str | Path) -> str:
    """Writes a fresh secret to a new file that only its owner may read, and returns it. Raises FileExistsError."""
    text = new()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text + "\n")
    return text


def load(config: Config) -> bytes:
    """The secret that `config` gives or points to. Raises ConfigError if there is none, or a guessable one."""
    text = (config.secret or _read(config.secret_file)).strip().encode()
    if len(text) < SHORTEST:
        raise ConfigError(
            f"the job's secret has {len(text)} bytes, fewer than {SHORTEST};"
            f" make one with `python -c 'import secrets; print(secrets.token_hex(32))'`"
        )
    return text


def has_secret(config: Config) -> bool:
    """Whether this process was given the secret of its job."""
    return bool(config.secret or config.secret_file)


def require_secret(config: Config) -> None:
    """Raises ConfigError for tls='on' without a secret: ranks would find it in torch's store, which is in the clear."""
    if config.tls == "on" and not has_secret(config):
        raise ConfigError(
            "tls='on' needs the job's secret on every rank, for torch's store passes it on in the clear: set"
            " BYTEPS_LIKE_SECRET_FILE"
        )


def derive(secret: bytes, purpose: str) -> bytes:
    """32 bytes for one purpose, such as "control request"; what is made for one tells nothing of another."""
    return hmac.digest(secret, b"byteps_like v1 " + purpose.encode(), hashlib.sha256)


def seal_key(secret: bytes, incarnation: bytes, epoch: int) -> bytes:
    """What the ranks of one epoch prove to each other with who has sent bytes that become objects again."""
    return derive(secret, f"objects {incarnation.hex()} {epoch}")


def _read(path: str) -> str:
    if not path:
        raise ConfigError("the job has no secret: set BYTEPS_LIKE_SECRET_FILE or BYTEPS_LIKE_SECRET on every member")
    try:
        mode = Path(path).stat().st_mode
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the job's secret: {error}") from error
    if stat.S_IMODE(mode) & 0o077:
        log.warning("secret file %s is open to other users (mode %o); chmod 600 it", path, stat.S_IMODE(mode))
    return text
