"""How members get into a job whose ports strangers flood, and what the strangers cost.

    python -m bench.internals.strangers [--rate 1500] [--tries 200] [--one-port] [--tls]

A scheduler and a server in processes of their own; a worker joins. Then 1,500 strangers a second come to the port of
the scheduler and as many to that of the server's links, from one address and then from 40. They are silent, talk
nonsense or say half of what a member begins with; in a second round they say all that needs no secret, so that gRPC or
the handshake has to find out. Meanwhile the worker calls the scheduler over a fresh connection each time, and dials a
link to the server: seconds until it is in, and how much memory and how many descriptors both processes have more than
before. A line for each goes to out/strangers.jsonl.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import psutil

from bench.report import OUT, print_table, write_json_lines
from byteps_like import _core
from byteps_like.config import Config
from byteps_like.control.calls.client import ControlClient, query_status
from byteps_like.control.calls.entrance import port_of
from byteps_like.control.types import Member, MemberRole
from byteps_like.errors import BytePSLikeError

SECRET = "a secret of the benchmark of strangers"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
NONSENSE = b"\0nonsense " * 20
LIMITS = {"seconds": 1.0, "MiB": 32, "descriptors": 320}
ROUNDS = {
    "silence, nonsense, half": {"scheduler": (b"", NONSENSE, PREFACE[:12]), "server": (b"", NONSENSE, b"BPLH\2\0\1")},
    "all but the secret": {
        "scheduler": (PREFACE + SETTINGS, b""),
        "server": (b"BPLH\2\0\1\5" + bytes(168), PREFACE + SETTINGS, b"GET / HTTP/1.1\r\n"),
    },
}
PATIENCE = 30.0


class Target:
    """A process of the job, and what it has more than before."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = psutil.Process(process.pid)
        self.reset()

    def reset(self) -> None:
        """From here on is counted."""
        self._before = self._look()
        self.mib, self.descriptors = 0.0, 0

    def look(self) -> None:
        """Notes the most."""
        memory, descriptors = self._look()
        self.mib = max(self.mib, (memory - self._before[0]) / 2**20)
        self.descriptors = max(self.descriptors, descriptors - self._before[1])

    def _look(self) -> tuple[int, int]:
        return self._process.memory_info().rss, self._process.num_fds()


@contextmanager
def running(*arguments: str, **settings: object) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed in the end."""
    given = {f"BYTEPS_LIKE_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, *arguments],
        env=os.environ | given,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


class Job:
    """A scheduler, a server, and a worker that is this process."""

    def __init__(self, parts: ExitStack, tls: str, one_port: bool) -> None:
        job = {"job": "strangers", "secret": SECRET, "tls": tls, "world_size": 1, "num_servers": 1}
        scheduler = parts.enter_context(running("-m", "byteps_like", "scheduler", "--host", "127.0.0.1", **job))
        assert scheduler.stdout is not None
        address = scheduler.stdout.readline().partition(" listens on ")[2].split()[0]
        server = parts.enter_context(
            running("-m", "byteps_like", "server", scheduler=address, one_port=int(one_port), **job)
        )
        self.config = Config(role="worker", scheduler=address, **job)  # type: ignore[arg-type]
        self._client = ControlClient(self.config)
        parts.callback(self._client.leave)
        self._view = self._client.join(Member(MemberRole.WORKER, 0, "boot", "127.0.0.1", os.getpid()))
        self.url = next(url for url in self._view.servers[0].urls if "tcp://" in url)
        self.targets = {"scheduler": Target(scheduler), "server": Target(server)}
        self.ports = {"scheduler": int(address.rpartition(":")[2]), "server": port_of(self.url)}

    def call(self) -> None:
        """Over a connection of its own."""
        query_status(replace(self.config, join_timeout=5.0))

    def dial(self) -> None:
        """A link to the server's first shard."""
        view = self._view
        whom = (view.incarnation, view.number, view.workers[0].number, view.servers[0].number, 0)
        _core.InprocLink(self.url, self.config.job, SECRET.encode(), *whom).close()


def seconds_to_get_in(way: Callable[[], None]) -> float:
    """As members do: again and again, with pauses."""
    begin, pause = time.monotonic(), 0.002
    while True:
        try:
            way()
            return time.monotonic() - begin
        except BytePSLikeError:
            if time.monotonic() - begin > PATIENCE:
                return PATIENCE
            time.sleep(pause)
            pause = min(2 * pause, 0.1)


def measure(job: Job, says: dict[str, tuple[bytes, ...]], addresses: int, options: argparse.Namespace) -> list[Any]:
    """The rows of one round."""
    ways = {"scheduler": job.call, "server": job.dial}
    for name, way in ways.items():
        seconds_to_get_in(way)
        job.targets[name].reset()
    rows, over = [], threading.Event()

    def look() -> None:
        while not over.wait(0.01):
            for target in job.targets.values():
                target.look()

    with ExitStack() as parts:
        floods = {}
        for name, port in job.ports.items():
            arguments = (str(port), str(options.rate), str(addresses), *(said.hex() for said in says[name]))
            floods[name] = parts.enter_context(running("-m", "bench.internals.strangers_flood", *arguments))
        came = {name: _first(flood) for name, flood in floods.items()}
        looking = threading.Thread(target=look)
        looking.start()
        parts.callback(looking.join)
        parts.callback(over.set)
        for name, way in ways.items():
            took = sorted(seconds_to_get_in(way) for _ in range(options.tries))
            rows.append([name, took[len(took) // 2], took[int(len(took) * 0.99)]])
    return [[*row, job.targets[row[0]].mib, job.targets[row[0]].descriptors, came[row[0]]] for row in rows]


def _first(flood: subprocess.Popen[str]) -> int:
    """How many came in its first second."""
    assert flood.stdout is not None
    return int(flood.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=f"python -m {__spec__.name}", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=1500, help="strangers a second, at each port")
    parser.add_argument("--tries", type=int, default=200, help="of the member, at each port")
    parser.add_argument("--one-port", action="store_true", help="the server has one port")
    parser.add_argument("--tls", action="store_true", help="the job is encrypted")
    options = parser.parse_args()
    shown, lines = [], []
    with ExitStack() as parts:
        job = Job(parts, "on" if options.tls else "off", options.one_port)
        for what, says in ROUNDS.items():
            for addresses in (1, 40):
                for name, median, p99, mib, descriptors, came in measure(job, says, addresses, options):
                    row = (what, addresses, name, f"{median * 1e3:.1f}", f"{p99 * 1e3:.1f}", f"{mib:.1f}", descriptors)
                    shown.append(tuple(map(str, (*row, came))))
                    lines.append(
                        {
                            "said": what,
                            "addresses": addresses,
                            "port": name,
                            "median_s": median,
                            "p99_s": p99,
                            "mib": mib,
                            "descriptors": descriptors,
                            "came_per_second": came,
                        }
                    )
    limits = f"at most {LIMITS['seconds']:.0f} s (p99), {LIMITS['MiB']} MiB, {LIMITS['descriptors']} descriptors"
    print_table(
        f"a member's way in past {options.rate} strangers a second at each port ({limits})",
        ("they say", "addresses", "port", "median ms", "p99 ms", "MiB", "descriptors", "came/s"),
        shown,
    )
    write_json_lines(OUT / "strangers.jsonl", vars(options), lines)


if __name__ == "__main__":
    main()
