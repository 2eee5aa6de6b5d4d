"""Two sites below an upper group, on a lab: the pace of one while the other is slow, and what goes up.

Each site is a job of two workers and a server, each on its own host; the upper group has one server.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from bench.consistency.jobs import Settings
from bench.consistency.scenarios import SLOW
from bench.processes import module
from byteps_like.launch.lab.hosts import Lab, LabHost

EVERY, MERGE = 8, 0.5
WORKERS = 2
"""Of a site."""
HOSTS = 1 + 2 * (WORKERS + 1)
_STEPS = 20 * EVERY
_PORTS = count(7100)


@dataclass(frozen=True)
class SitePlan:
    """What the ranks of a site are told. `compute`: seconds of a step; `nbytes`: of the model."""

    upper: str
    """Address of the upper group's scheduler."""
    secret_file: str
    sites: int
    site: int
    steps: int
    compute: float
    nbytes: int
    found: str
    """Where each rank leaves what it did, with its number behind this."""


@dataclass(frozen=True)
class SiteRun:
    """What a rank did. `landed`: seconds from the start, step by step; `share`: of the bytes that would go up if every
    version did, those that did; 0 on ranks that send nothing."""

    landed: list[float]
    share: float

    @property
    def rate(self) -> float:
        """Steps per second."""
        return len(self.landed) / self.landed[-1]


def ratios(settings: Settings) -> tuple[list[float], list[float]]:
    """Turn by turn: steps per second of a site beside one that is SLOW times as slow, of those alone; and its share of
    bytes."""
    rates, shares = [], []
    with tempfile.TemporaryDirectory(prefix="sites-") as folder, Lab(HOSTS, rate=settings.rate) as lab:
        for turn in range(settings.turns):
            fast, _ = _run(lab, settings, Path(folder) / f"{turn}.both", 2)
            (alone,) = _run(lab, settings, Path(folder) / f"{turn}.alone", 1)
            rates.append(min(one.rate for one in fast) / min(one.rate for one in alone))
            shares.append(max(one.share for one in fast))
    return rates, shares


def _run(lab: Lab, settings: Settings, folder: Path, sites: int) -> list[list[SiteRun]]:
    """By site and rank. A rank that fails ends the process with its exit code."""
    folder.mkdir()
    secret = folder / "secret"
    secret.write_text(secrets.token_hex(32))
    secret.chmod(0o600)
    upper = _JobOnHosts("upper", lab.hosts[:1], secret)
    running = upper.group(workers=sites)
    ranks: list[subprocess.Popen[Any]] = []
    for site in range(sites):
        first = 1 + site * (WORKERS + 1)
        job = _JobOnHosts(f"site{site}", lab.hosts[first : first + WORKERS + 1], secret)
        slow = SLOW if site else 1
        steps = max(1, round(_STEPS * settings.scale / EVERY)) * EVERY // slow
        plan = SitePlan(upper.address, str(secret), sites, site, steps, settings.compute * slow, settings.nbytes,
                        str(folder / f"site{site}."))  # fmt: skip
        running += job.group(workers=WORKERS)
        ranks += [job.worker(rank, plan) for rank in range(WORKERS)]
    for process in [*ranks, *running]:
        if code := process.wait(settings.timeout):
            sys.exit(code)
    return [
        [SiteRun(**json.loads((folder / f"site{site}.{rank}").read_text())) for rank in range(WORKERS)]
        for site in range(sites)
    ]


class _JobOnHosts:
    """A job whose scheduler and server are on the first of these, and its workers on the others."""

    def __init__(self, name: str, hosts: Sequence[LabHost], secret: Path) -> None:
        self._name, self._hosts, self._secret = name, hosts, secret
        self.address = f"{hosts[0].address}:{next(_PORTS)}"

    def group(self, workers: int) -> list[subprocess.Popen[Any]]:
        """Scheduler and server."""
        host, port = self.address.split(":")
        scheduler = module("byteps_like", "scheduler", "--host", host, "--port", port, "-n", str(workers), "-s", "1")
        server = module("byteps_like", "server", "--scheduler", self.address)
        return [self._start(0, command) for command in (scheduler, server)]

    def worker(self, rank: int, plan: SitePlan) -> subprocess.Popen[Any]:
        """A rank of a site."""
        known = {"RANK": rank, "WORLD_SIZE": WORKERS, "NUM_SERVERS": 1, "SCHEDULER": self.address}
        own = {f"BYTEPS_LIKE_{name}": str(value) for name, value in known.items()}
        return self._start(1 + rank, module("bench.consistency.sites_worker", json.dumps(asdict(plan))), own)

    def _start(
        self, number: int, command: Sequence[str], more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[Any]:
        host = self._hosts[number]
        own = {
            "BYTEPS_LIKE_JOB": self._name, "BYTEPS_LIKE_SECRET_FILE": str(self._secret),
            "BYTEPS_LIKE_HOST": host.address, **(more or {}),
        }  # fmt: skip
        return host.popen(command, own, stdout=subprocess.DEVNULL)
