"""A real etcd for tests: processes with ports of their own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from tests.ports import HeldPorts

ETCD = shutil.which("etcd")
WHY_NOT = "there is no etcd here: scripts/setup.sh test installs Debian's etcd-server"
WITHOUT_CLIENT = "there is no etcdctl: scripts/setup.sh test installs Debian's etcd-client"
_START_SECONDS = 20.0


class RealEtcd:
    """Its data outlives its processes: one per member of the cluster."""

    def __init__(self, folder: Path, *flags: str, members: int = 1, scheme: str = "http") -> None:
        """Skips the test where there is no etcd. `flags` go to each process, `scheme` is that of clients."""
        if ETCD is None:
            pytest.skip(WHY_NOT)
        self._folder, self._flags, self._scheme = folder, flags, scheme
        self._held = HeldPorts(2 * members)  # for as long as this is there: its processes come and go
        ports = self._held.numbers
        self._clients, self._peers = ports[:members], ports[members:]
        self.endpoints = [f"127.0.0.1:{port}" for port in self._clients]
        self.processes = [self._start(number, ()) for number in range(members)]
        self._await_health()

    @property
    def endpoint(self) -> str:
        """Of its first member."""
        return self.endpoints[0]

    def start(self, *flags: str) -> None:
        """Again, all that have ended; once it answers."""
        for number, process in enumerate(self.processes):
            if process.poll() is not None:
                self.processes[number] = self._start(number, flags)
        self._await_health()

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, SIGCONT, ... to all."""
        for process in self.processes:
            process.send_signal(number)

    def kill(self, *members: int) -> None:
        """These, or all. They can be started again."""
        for number in members or range(len(self.processes)):
            self.processes[number].kill()
            self.processes[number].wait(10)

    def control(self, *command: str) -> str:
        """What etcdctl says; skips the test where there is none."""
        client = shutil.which("etcdctl") or pytest.skip(WITHOUT_CLIENT)
        full = [client, f"--endpoints={self.endpoint}", *command]
        environment = {"ETCDCTL_API": "3", "PATH": os.environ["PATH"]}
        return subprocess.run(full, env=environment, check=True, capture_output=True, text=True, timeout=20).stdout

    def _start(self, number: int, flags: tuple[str, ...]) -> subprocess.Popen[bytes]:
        client = f"{self._scheme}://{self.endpoints[number]}"
        peers = [f"http://127.0.0.1:{port}" for port in self._peers]
        cluster = ",".join(f"m{place}={peer}" for place, peer in enumerate(peers))
        command = [
            str(ETCD), "--name", f"m{number}", "--data-dir", str(self._folder / str(number)), "--listen-client-urls",
            client, "--advertise-client-urls", client, "--listen-peer-urls", peers[number],
            "--initial-advertise-peer-urls", peers[number], "--initial-cluster", cluster, "--heartbeat-interval=20",
            "--election-timeout=200", "--logger=zap", "--log-level=error", *self._flags, *flags,
        ]  # fmt: skip
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def _await_health(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_healthy():
            for process in self.processes:
                assert process.poll() is None, f"etcd ended with {process.returncode}"
            assert time.monotonic() < deadline, "etcd does not answer"
            time.sleep(0.02)

    def _is_healthy(self) -> bool:
        if self._scheme == "https":
            with suppress(OSError), socket.create_connection(("127.0.0.1", self._clients[0]), 1):
                return True
            return False
        with suppress(OSError), urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=1):
            return True
        return False
