"""Runs a job on the hosts of a lab: what `byteps-like run` does on one host, with every process put on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

from byteps_like.errors import ConfigError
from byteps_like.launch.child import Part
from byteps_like.launch.lab import INTERFACE, Host, Lab
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job


@dataclass(frozen=True)
class LabPlacement:
    """Workers on the first hosts, `per_host` on each, then one server per host; the scheduler on host 0."""

    lab: Lab
    worker_hosts: int
    per_host: int

    def host_of(self, part: Part) -> Host:
        """Where a process of the job runs."""
        if part.role == "worker":
            return self.lab.hosts[part.rank // self.per_host]
        return self.lab.hosts[self.worker_hosts + part.rank if part.role == "server" else 0]

    def __call__(self, part: Part, command: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """The command and the environment that start `part` on its host."""
        host = self.host_of(part)
        own = {"BYTEPS_LIKE_HOST": host.address}
        if part.role == "scheduler":
            own["BYTEPS_LIKE_SCHEDULER"] = f"{host.address}:0"
        if part.role == "worker":
            own["BYTEPS_LIKE_LOCAL_RANK"] = str(part.rank % self.per_host)
            own["BYTEPS_LIKE_LOCAL_SIZE"] = str(self.per_host)
        return host.command(command), {**environment, **INTERFACE, **own}


def run_in_lab(lab: Lab, options: RunOptions, per_host: int = 1) -> int:
    """Runs one job on `lab` and returns its exit code; blocks, main thread.

    The lab needs one host per server and one per `per_host` workers; raises ConfigError if it has fewer.
    """
    if options.workers % per_host:
        raise ConfigError(f"{options.workers} workers can't be put {per_host} to a host")
    worker_hosts = options.workers // per_host
    needed = worker_hosts + options.servers
    if len(lab.hosts) < needed:
        raise ConfigError(f"the job needs {needed} hosts, the lab has {len(lab.hosts)}")
    return run_job(replace(options, place=LabPlacement(lab, worker_hosts, per_host)))
