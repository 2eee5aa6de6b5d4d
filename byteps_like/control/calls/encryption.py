"""TLS of the control plane: credentials of who calls and who is called, and what it means if they do not meet.

The certificates are made of the job's secret (the native core does that): who listens shows one that the job's
authority has signed, and members trust that authority alone. Calls carry their own proofs all the same, so callers need
no certificate. Or the user's certificates are used, and verified both ways.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from byteps_like.config import Config, split_address
from byteps_like.errors import ConfigError

_PROBE_SECONDS = 1.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""What a caller of HTTP/2 says first: the second part is an empty frame of settings."""
_FRAME_BYTES, _TYPE_AT, _SETTINGS = 9, 3, 4
_UNTRUSTED = ("certificate_verify_failed", "bad_signature")


def server_credentials(config: Config, secret: bytes) -> grpc.ServerCredentials | None:
    """Of a port; None: calls there are in the clear. Raises ConfigError where the certificates can't be had."""
    if config.tls == "off":
        return None
    if config.tls_cert:
        key, certificate, authority = _files(config)
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)
    key, certificate, _ = _certificate(secret)
    return grpc.ssl_server_credentials([(key, certificate)])


def open_channel_to(config: Config, secret: bytes, address: str, options: list[tuple[str, int]]) -> grpc.aio.Channel:
    """A connection to a port of the job; call it on the control loop. Raises ConfigError as above."""
    if config.tls == "off":
        return grpc.aio.insecure_channel(address, options=options)
    if config.tls_cert:
        key, certificate, authority = _files(config)
        return grpc.aio.secure_channel(
            address, grpc.ssl_channel_credentials(authority, key, certificate), options=options
        )
    name = ("grpc.ssl_target_name_override", _core().CERTIFICATE_NAME)
    credentials = grpc.ssl_channel_credentials(_certificate(secret)[2])
    return grpc.aio.secure_channel(address, credentials, options=[*options, name])


def is_distrust(reason: str) -> bool:
    """Whether a connection failed for this reason of grpc's because the other side's certificate is not the job's."""
    return any(word in reason.lower() for word in _UNTRUSTED)


async def find_contradiction(config: Config, address: str) -> str:
    """What keeps this member from meeting who listens at `address`, if it is that only one of both uses TLS; else "".

    Nobody has signed the answer, so it explains a failure and changes nothing.
    """
    host, port = split_address("scheduler", address)
    other = "off" if config.tls == "on" else "on"
    with suppress(OSError, TimeoutError, EOFError, ssl.SSLError):
        async with asyncio.timeout(_PROBE_SECONDS):
            if await (_answers_in_the_clear if other == "off" else _answers_in_tls)(host, port):
                return f"tls={config.tls} here, but tls={other} at {address}: set BYTEPS_LIKE_TLS alike on all members"
    return ""


async def _answers_in_tls(host: str, port: int) -> bool:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    _, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.close()
    return True


async def _answers_in_the_clear(host: str, port: int) -> bool:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_PREFACE)
        frame = await reader.readexactly(_FRAME_BYTES)
        return frame[_TYPE_AT] == _SETTINGS and frame[-4:] == bytes(4)
    finally:
        writer.close()


def _files(config: Config) -> tuple[bytes, bytes, bytes]:
    return _read("tls_key", config.tls_key), _read("tls_cert", config.tls_cert), _read("tls_ca", config.tls_ca)


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}={path!r} can't be read: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def _certificate(secret: bytes) -> tuple[bytes, bytes, bytes]:
    """Key, certificate and authority of this process."""
    key, certificate, authority = _core().certify(secret)
    return key.encode(), certificate.encode(), authority.encode()


def _core() -> Any:
    try:
        import byteps_like._core as core
    except ImportError as error:
        raise ConfigError(
            f"tls=on makes its certificates with the native core, which is missing ({error}): give tls_cert, tls_key"
            " and tls_ca"
        ) from error
    return core
