"""Starts member.py processes, talks to them with deadlines, and shows what each of them said on a failure."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("member.py")
ROOT = Path(__file__).parents[3]
SECRET = "a secret that only the tests know"
PATIENCE = 20.0


class Process:
    """One process; what it prints is read by a thread."""

    def __init__(self, name: str, **settings: object) -> None:
        self.name, self.lines = name, []
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("BYTEPS_", "DMLC_", "GRPC_"))}
        own = {"BYTEPS_LIKE_SECRET": SECRET, "BYTEPS_LIKE_JOB": "test", "PYTHONPATH": str(ROOT)}
        own |= {f"BYTEPS_LIKE_{key.upper()}": str(value) for key, value in settings.items()}
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT], env=clean | own, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            self._said.put(json.loads(line))

    def send(self, do: str, **arguments: object) -> None:
        """A command, without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self, key: str, timeout: float = PATIENCE) -> dict[str, Any]:
        """The next message that has `key`; others are skipped."""
        end = time.monotonic() + timeout
        while True:
            try:
                said = self._said.get(timeout=max(end - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"{self.name} said no {key!r} within {timeout} s, but {self.lines}") from None
            if key in said:
                return said

    def hear_failure(self) -> dict[str, Any]:
        """The event that ends this world: warnings before it are skipped, of members who are slow to say that they
        live."""
        while True:
            said = self.hear("event")
            if said["event"] == "failed":
                return said

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """A command and its answer, an error or not."""
        self.send(do, **arguments)
        return self.outcome()

    def outcome(self) -> dict[str, Any]:
        """The answer to the last command: the events before it are skipped."""
        while True:
            said = self.hear("at")
            if "event" not in said:
                return said

    def kill(self, number: signal.Signals = signal.SIGKILL) -> float:
        """Sends the signal; when."""
        os.kill(self.process.pid, number)
        return time.time()

    def end(self) -> None:
        """Makes sure it is gone."""
        self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Cluster:
    """A scheduler and the members a test starts."""

    def __init__(self, **settings: object) -> None:
        self.scheduler = Process("scheduler", role="scheduler", scheduler="127.0.0.1:0", **settings)
        self.processes = [self.scheduler]
        self.address = self.scheduler.hear("address")["address"]

    def start(self, role: str, **settings: object) -> Process:
        """A member that has not joined yet."""
        shape = {"world_size": 2, "num_servers": 0} | settings
        process = Process(f"{role} {len(self.processes)}", role=role, **({"scheduler": self.address} | shape))
        self.processes.append(process)
        return process

    def workers(self, count: int, **settings: object) -> list[Process]:
        """Workers that have joined, and nobody else."""
        members = [self.start("worker", world_size=count, **settings) for _ in range(count)]
        for rank, member in enumerate(members):
            member.send("join", rank=rank)
        for rank, member in enumerate(members):
            said = member.outcome()
            assert said.get("rank") == rank, said
        return members

    def end(self) -> None:
        """Ends everything."""
        for process in self.processes:
            process.end()
