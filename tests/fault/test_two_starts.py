"""A process of an earlier start of a job, stopped then, goes on when the next one runs under the same name, with the
same secret, at the same addresses: it is refused wherever it comes, and the sums of the next start stay right."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("byteps_like._core", reason="the native core is not built")

from tests.fakes.firewall import Firewall

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
FOR_EVER = 10**9


class Process:
    """One of tests.fault.one_start."""

    def __init__(self, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fault.one_start", *map(str, arguments)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
        )  # fmt: skip

    def tell(self, what: object) -> None:
        """One line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """What it says next."""
        pipe = self._process.stdout
        assert pipe is not None
        ready = select.poll()  # takes any descriptor, and select none from 1,024 on
        ready.register(pipe, select.POLLIN)
        assert ready.poll(DEADLINE * 1000), f"{self._process.args} says nothing"
        return dict(json.loads(pipe.readline()))

    def stop(self) -> None:
        """Until `resume`; returns when it has stopped."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """It goes on where it was."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """At once."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Start:
    """Two workers of a kind and what they work by, at an address that is the same in every start."""

    def __init__(self, letter: str, kind: str, wall: Firewall | None) -> None:
        self.processes: list[Process] = []
        if kind == "mesh":
            self.workers = [self._begin(kind, letter, rank) for rank in range(2)]
            urls = [worker.hear()["mesh"] for worker in self.workers]
            self.wall = _at(wall, urls[0])
            for worker, first in zip(self.workers, (urls[0], f"tcp://{self.wall.address}"), strict=True):
                worker.tell([first, urls[1]])
        else:
            self.wall = _at(wall, self._begin("server", letter).hear()[kind])
            url = f"tcp://{self.wall.address}"
            self.workers = [self._begin(kind, letter, rank, url) for rank in range(2)]
        for rank, worker in enumerate(self.workers):
            assert worker.hear() == {"joined": rank}

    def _begin(self, *arguments: object) -> Process:
        self.processes.append(Process(*arguments))
        return self.processes[-1]

    def begin_rounds(self, rounds: int) -> None:
        """On both ranks."""
        for worker in self.workers:
            worker.tell(rounds)

    def make_rounds(self, rounds: int) -> None:
        """To their end, and all are right."""
        self.begin_rounds(rounds)
        assert [worker.hear() for worker in self.workers] == [{"rounds": rounds}] * 2

    def end(self, but: Process | None = None) -> None:
        """Kills all of it, or all but one."""
        for process in self.processes:
            if process is not but:
                process.end()
        self.processes = [process for process in self.processes if process is but]


def _at(wall: Firewall | None, url: str) -> Firewall:
    if wall is None:
        return Firewall(url)
    wall.point_to(url)
    return wall


@pytest.fixture
def starts() -> Iterator[list[Start]]:
    made: list[Start] = []
    yield made
    for start in made:
        start.end()
    made[0].wall.close()


@pytest.mark.parametrize(
    ("kind", "rounds", "says"),
    [
        ("native", FOR_EVER, "another start of the same job"),
        ("portable", FOR_EVER, "another start of the job"),
        ("mesh", 0, "another start of the same job"),  # links that break are not made again: it has none yet
    ],
)
def test_a_straggler_of_an_earlier_start_is_refused(starts: list[Start], kind: str, rounds: int, says: str) -> None:
    starts.append(Start("a", kind, None))
    straggler = starts[0].workers[1]
    if rounds:
        starts[0].make_rounds(10)
        starts[0].begin_rounds(rounds)
    straggler.stop()
    starts[0].end(but=straggler)
    starts.append(Start("b", kind, starts[0].wall))
    starts[1].make_rounds(10)
    straggler.resume()
    if not rounds:
        straggler.tell(10)
    starts[1].begin_rounds(200)
    told = straggler.hear()
    assert told["error"] in ("RefusedError", "PeerLostError") and says in told["text"], told
    assert [worker.hear() for worker in starts[1].workers] == [{"rounds": 200}] * 2
    starts[1].make_rounds(10)
