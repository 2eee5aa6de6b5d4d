"""Replica groups under torchft's Manager: one is killed, the others go on, and another one takes its place."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torchft.coordination import LighthouseServer

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "tests" / "scenarios" / "torchft" / "training.py"
DEADLINE = 100.0
VICTIM = 8


class Replica:
    """One process of the training."""

    def __init__(self, command: list[str], folder: Path, name: str, lighthouse: str, **environment: str) -> None:
        self.output = folder / f"{name}-{environment.get('VICTIM', '')}.log"
        settings = {"LIGHTHOUSE": lighthouse, "REPLICA": name, "STOP": str(folder / "stop"), "PYTHONPATH": str(ROOT)}
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [*command, str(SCRIPT)], env=os.environ | settings | environment, stdout=file, stderr=file
            )

    def events(self, kind: str) -> list[dict[str, Any]]:
        lines = [line for line in self.output.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [event for event in map(json.loads, lines) if event["event"] == kind]


@pytest.fixture
def lighthouse() -> Iterator[str]:
    server = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=2, join_timeout_ms=2000, quorum_tick_ms=20, heartbeat_timeout_ms=2000
    )
    yield server.address()
    server.shutdown()


@pytest.fixture
def replicas() -> Iterator[list[Replica]]:
    made: list[Replica] = []
    yield made
    for one in made:
        one.process.kill()
        one.process.wait()


def _wait(until: Callable[[], bool], what: str, replicas: list[Replica]) -> None:
    end = time.monotonic() + DEADLINE
    while not until():
        if time.monotonic() > end:
            told = "\n".join(f"--- {one.output.name} ---\n{one.output.read_text()[-4000:]}" for one in replicas)
            told = "\n".join(line for line in told.splitlines() if "[INFO]" not in line)
            raise AssertionError(f"not within {DEADLINE} s: {what}\n{told}")
        time.sleep(0.05)


def test_training_goes_on_and_who_comes_again_has_the_same_weights(
    tmp_path: Path, lighthouse: str, replicas: list[Replica], warm_python: list[str]
) -> None:
    replicas += [Replica(warm_python, tmp_path, name, lighthouse) for name in ("a", "b")]
    replicas.append(Replica(warm_python, tmp_path, "c", lighthouse, VICTIM=str(VICTIM)))
    a, b, killed = replicas
    _wait(lambda: killed.process.poll() is not None, "the death of c", replicas)
    last = killed.events("step")[-1]["step"]

    def goes_on() -> bool:
        return all(one.events("step")[-1]["step"] > last + 5 for one in (a, b))

    _wait(goes_on, "steps without c", replicas)
    replicas.append(again := Replica(warm_python, tmp_path, "c", lighthouse))
    _wait(lambda: len(again.events("step")) > 5, "steps of the new c", replicas)
    (tmp_path / "stop.new").write_text(str(max(one.events("step")[-1]["step"] for one in (a, b, again)) + 100))
    (tmp_path / "stop.new").rename(tmp_path / "stop")
    _wait(lambda: all(one.process.poll() is not None for one in (a, b, again)), "the end", replicas)
    ends = [one.events("end") for one in (a, b, again)]
    assert all(len(end) == 1 for end in ends), ends
    assert len({(end[0]["step"], end[0]["weights"]) for end in ends}) == 1
    told = {step["participants"] for step in a.events("step") if step["step"] > last}
    assert 2 in told and a.events("step")[-1]["participants"] == 3
