"""Where an etcd is, and how to get in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from byteps_like.config import split_address
from byteps_like.errors import ConfigError

PORT = 2379
"""Of etcd's clients."""
PREFIX = "byteps_like"
"""Of all keys, where the address has none."""
_FILES = ("ca", "cert", "key", "password_file")
_SCHEMES = {"etcd": False, "etcds": True}


@dataclass(frozen=True)
class Location:
    """An etcd and a place in it."""

    endpoints: tuple[str, ...]
    """host:port of its members: any of them will do."""
    prefix: str
    is_encrypted: bool = False
    user: str = ""
    files: dict[str, str] = field(default_factory=dict)
    """Paths by name: `ca` (else the system's), `cert` and `key` of this client, `password_file`."""

    @classmethod
    def parse(cls, address: str) -> Location:
        """Of etcd[s]://[user@]host[:port][,host[:port]...][/prefix][?ca=F&cert=F&key=F&password_file=F], where F are
        paths. Raises ConfigError."""
        scheme, _, rest = address.partition("://")
        rest, _, query = rest.partition("?")
        place, _, prefix = rest.partition("/")
        user, _, hosts = place.rpartition("@")
        if ":" in user:
            raise ConfigError(
                "scheduler_state has a password in it, which others can read: put it into a file, and say"
                " etcd://user@host:port?password_file=FILE"
            )
        files = _files_of(query)
        is_encrypted = _SCHEMES[scheme]
        if not is_encrypted and files.keys() - {"password_file"}:
            raise ConfigError(f"scheduler_state={address!r} has certificates, but is not encrypted: say etcds://")
        if ("cert" in files) != ("key" in files):
            raise ConfigError(f"scheduler_state={address!r}: cert and key come together")
        if bool(user) != ("password_file" in files):
            raise ConfigError(f"scheduler_state={address!r}: a user and a password_file come together")
        endpoints = tuple(_endpoint(host) for host in hosts.split(","))
        return cls(endpoints, unquote(prefix).strip("/") or PREFIX, is_encrypted, unquote(user), files)

    def read(self, name: str) -> bytes | None:
        """What is in the file of this name; None: there is none. Raises ConfigError if it can't be read."""
        path = self.files.get(name)
        if path is None:
            return None
        try:
            return Path(path).read_bytes()
        except OSError as error:
            raise ConfigError(f"{name}={path!r} of scheduler_state can't be read: {error.strerror}") from error

    def __str__(self) -> str:
        return f"etcd at {', '.join(self.endpoints)}"


def _files_of(query: str) -> dict[str, str]:
    files = dict(parse_qsl(query, keep_blank_values=True))
    for name, path in files.items():
        if name not in _FILES or not path:
            raise ConfigError(f"scheduler_state has {name}={path!r}: only paths of {', '.join(_FILES)} can be there")
    return files


def _endpoint(host: str) -> str:
    address = host if host.rpartition(":")[2].isdigit() and not host.endswith("]") else f"{host}:{PORT}"
    split_address("scheduler_state", address)
    return address
