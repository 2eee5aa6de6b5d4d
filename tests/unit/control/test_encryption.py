"""Credentials of the control plane: which are used, and what is said where they can't be had."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from byteps_like.config import Config
from byteps_like.control.calls.encryption import is_distrust, open_channel_to, server_credentials
from byteps_like.errors import ConfigError

SECRET = b"s" * 32


def test_without_tls_there_are_none() -> None:
    assert server_credentials(Config(), SECRET) is None


def test_without_the_native_core_certificates_must_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "byteps_like._core", None)
    for make in (
        lambda: server_credentials(Config(tls="on"), b"another secret than any other test has"),
        lambda: open_channel_to(Config(tls="on"), b"another secret than any other test has", "127.0.0.1:1", []),
    ):
        with pytest.raises(ConfigError, match=r"native core, which is missing .*: give tls_cert, tls_key and tls_ca"):
            make()


def test_a_file_that_cannot_be_read_is_named() -> None:
    config = Config(tls="on", tls_cert="/nowhere/cert", tls_key="/nowhere/key", tls_ca="/nowhere/ca")
    with pytest.raises(ConfigError, match="tls_key='/nowhere/key' can't be read: No such file"):
        server_credentials(config, SECRET)


def test_distrust_is_told_from_other_failures() -> None:
    assert is_distrust("SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: unable")
    assert is_distrust("SSL_ERROR_SSL: error:1a000064:ECDSA routines:OPENSSL_internal:BAD_SIGNATURE: certificate")
    assert not is_distrust("SSL_ERROR_SSL: WRONG_VERSION_NUMBER: Invalid certificate verification context")
    assert not is_distrust("connection refused")


@pytest.mark.processes
def test_strangers_that_speak_no_tls_write_no_log() -> None:
    """In a process of its own, since grpc reads its settings once."""
    done = subprocess.run(
        [sys.executable, "-c", _STRANGERS], capture_output=True, text=True, timeout=60, env=dict(os.environ)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


_STRANGERS = """
import socket
from byteps_like.config import Config
from byteps_like.control.calls.scheduler import SchedulerServer
config = Config(role="scheduler", scheduler="127.0.0.1:0", secret="s" * 32, tls="on")
scheduler = SchedulerServer(config)
host, port = scheduler.start().rsplit(":", 1)
for _ in range(5):
    with socket.create_connection((host, int(port)), timeout=5) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        while stranger.recv(100):
            pass
scheduler.stop()
"""
