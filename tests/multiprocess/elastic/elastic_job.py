"""Worker processes of an elastic job, each of which may be started late and die early."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.multiprocess.real_world import Cluster

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 90.0


class ElasticWorker:
    """One process, and what it has printed."""

    def __init__(self, cluster: Cluster, command: Sequence[str], output: Path, **environment: str) -> None:
        self._output = output
        settings = {f"BYTEPS_LIKE_{name.upper()}": str(value) for name, value in cluster.rank_settings(-1).items()}
        clean = {name: value for name, value in os.environ.items() if not name.startswith("BYTEPS_LIKE_")}
        own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **settings, **environment}
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, env=clean | own, stdout=file, stderr=file)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """What it has said of this kind."""
        lines = [line for line in self._output.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def output(self) -> str:
        """All of it, for people."""
        return f"--- {self._output.name} ---\n{self._output.read_text()}"


class ElasticJob:
    """Workers that run one command; ends them when it is left."""

    def __init__(self, cluster: Cluster, folder: Path, command: Sequence[str]) -> None:
        self.cluster, self._folder, self._command = cluster, folder, command
        self.workers: list[ElasticWorker] = []

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.process.kill()
            worker.process.wait()

    def start(self, **environment: str) -> ElasticWorker:
        """One more."""
        output = self._folder / f"worker-{len(self.workers)}.log"
        self.workers.append(ElasticWorker(self.cluster, self._command, output, **environment))
        return self.workers[-1]

    def wait(self, until: Callable[[], bool], what: str) -> None:
        """Blocks until it is so."""
        end = time.monotonic() + DEADLINE
        while not until():
            if time.monotonic() > end:
                raise AssertionError(
                    "\n".join([f"not within {DEADLINE} s: {what}", *(w.output() for w in self.workers)])
                )
            time.sleep(0.05)

    def ended(self, worker: ElasticWorker) -> None:
        """Blocks until it has ended in order."""
        self.wait(lambda: worker.process.poll() is not None, "the end of a worker")
        assert worker.process.returncode == 0, "\n".join(one.output() for one in self.workers)
