"""A server that can't start is named by the workers, who would wait for it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

pytest.importorskip("byteps_like._core")

from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient
from byteps_like.control.calls.scheduler import SchedulerServer
from byteps_like.control.types import Member, MemberRole
from byteps_like.errors import RefusedError

SECRET = "a secret that only this test knows"
SECONDS = 60


@pytest.fixture
def scheduler() -> Iterator[str]:
    server = SchedulerServer(Config(job="start", secret=SECRET, scheduler="127.0.0.1:0"))
    yield server.start()
    server.stop()


def start_server(scheduler: str, *options: str, **settings: str) -> str:
    """What `byteps-like server` says as it ends."""
    settings |= {"SCHEDULER": scheduler, "JOB": "start", "SECRET": SECRET, "HOST": "127.0.0.1"}
    environ = {**os.environ, **{f"BYTEPS_LIKE_{name}": value for name, value in settings.items()}}
    command = [sys.executable, "-m", "byteps_like", "server", *options]
    done = subprocess.run(command, env=environ, timeout=SECONDS, capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    return done.stderr


def refusal(scheduler: str) -> str:
    """What the only worker is told."""
    client = ControlClient(Config(job="start", secret=SECRET, scheduler=scheduler, world_size=1, num_servers=1))
    with pytest.raises(RefusedError) as caught:
        client.join(Member(MemberRole.WORKER, 0, "boot", "here", 1), timeout=SECONDS)
    return str(caught.value)


def test_a_port_that_is_taken(scheduler: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        said = start_server(scheduler, "--port", port)
    assert port in said
    text = refusal(scheduler)
    assert text.startswith("a server (host 127.0.0.1, pid ") and "can't start: " in text and port in text


def test_a_setting_that_cannot_be(scheduler: str) -> None:
    said = start_server(scheduler, SHARDS="many")
    text = refusal(scheduler)
    assert "BYTEPS_LIKE_SHARDS" in said and "BYTEPS_LIKE_SHARDS" in text and "can't start: " in text
