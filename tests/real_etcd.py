"""A real etcd for tests: one process, with ports of its own."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

ETCD = shutil.which("etcd")
WHY_NOT = "there is no etcd here: scripts/setup.sh test installs Debian's etcd-server"
_START_SECONDS = 20.0


class RealEtcd:
    """Its data outlives its process."""

    def __init__(self, folder: Path) -> None:
        """Skips the test where there is no etcd."""
        if ETCD is None:
            pytest.skip(WHY_NOT)
        self._folder = folder
        self._ports = free_ports(2)
        self.endpoint = f"127.0.0.1:{self._ports[0]}"
        self.start()

    def start(self, *flags: str) -> None:
        """Once it answers."""
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports)
        command = [
            str(ETCD), "--data-dir", str(self._folder), "--listen-client-urls", client, "--advertise-client-urls",
            client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
            f"default={peer}", "--heartbeat-interval=20", "--election-timeout=200", "--logger=zap", "--log-level=error",
            *flags,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            assert self.process.poll() is None, f"etcd ended with {self.process.returncode}"
            assert time.monotonic() < deadline, "etcd does not answer"
            with suppress(OSError), urllib.request.urlopen(f"{client}/health", timeout=1):
                return
            time.sleep(0.02)

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT, ..."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """It can be started again."""
        self.process.kill()
        self.process.wait(10)


def free_ports(count: int) -> list[int]:
    """That were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
