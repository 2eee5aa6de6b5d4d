"""Runs a job on the hosts of a lab: what `byteps-like run` does on one host, with every process put on its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from byteps_like.config import split_address
from byteps_like.errors import ConfigError
from byteps_like.launch.child import ChildPart
from byteps_like.launch.fleet import Fleet
from byteps_like.launch.lab.hosts import INTERFACE, Lab, LabHost
from byteps_like.launch.options import RunOptions
from byteps_like.launch.run import run_job


@dataclass(frozen=True)
class LabPlacement:
    """Workers on the first hosts, `per_host` on each; server i on host `server_hosts[i]`; the scheduler on host 0.

    With `tell_rates` all are told the rate of their host's card, as a real card tells the kernel.
    """

    lab: Lab
    per_host: int
    server_hosts: tuple[int, ...]
    tell_rates: bool = True
    racks: tuple[str, ...] = ()
    """Of each host; no entry: of none."""

    def host_of(self, part: ChildPart) -> LabHost:
        """Where a process of the job runs."""
        if part.role == "worker":
            return self.lab.hosts[part.rank // self.per_host]
        return self.lab.hosts[self.server_hosts[part.rank] if part.role == "server" else 0]

    def __call__(
        self, part: ChildPart, command: list[str], environment: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """The command and the environment that start `part` on its host."""
        host = self.host_of(part)
        own = {"BYTEPS_LIKE_HOST": host.address}
        if self.tell_rates and host.shape.rate:
            own["BYTEPS_LIKE_LINK_GBPS"] = str(host.shape.rate / 1e9)
        if part.role != "scheduler" and host.index < len(self.racks):
            own["BYTEPS_LIKE_RACK"] = self.racks[host.index]
        if part.role == "scheduler":
            _, port = split_address("scheduler", environment["BYTEPS_LIKE_SCHEDULER"])
            own["BYTEPS_LIKE_SCHEDULER"] = f"{host.address}:{port}"  # another one takes that of the one before
        if part.role == "worker":
            own["BYTEPS_LIKE_LOCAL_RANK"] = str(part.rank % self.per_host)
            own["BYTEPS_LIKE_LOCAL_SIZE"] = str(self.per_host)
        return host.command(command), {**environment, **INTERFACE, **own}


def racks_of_hosts(worker_hosts: int, racks: int) -> list[str]:
    """The racks of a lab's first hosts: those with workers are distributed over `racks`; then comes an aggregator's
    host of each. Raises ConfigError for a rack without workers."""
    if racks > worker_hosts:
        raise ConfigError(f"{worker_hosts} hosts with workers can't be distributed over {racks} racks")
    names = [f"rack{number}" for number in range(racks)]
    return [names[host * racks // worker_hosts] for host in range(worker_hosts)] + names if racks else []


def run_in_lab(
    lab: Lab,
    options: RunOptions,
    per_host: int = 1,
    fleet: Fleet | None = None,
    *,
    tell_rates: bool = True,
    racks: Sequence[str] = (),
) -> int:
    """Runs one job on `lab` and returns its exit code; blocks, main thread.

    Servers run where `fleet` says, maybe beside workers; by default on the hosts behind them, one on each. `racks`: of
    each host (see `racks_of_hosts`).
    Raises ConfigError if the lab has too few hosts.
    """
    if options.workers % per_host:
        raise ConfigError(f"{options.workers} workers can't be distributed with {per_host} per host")
    worker_hosts = options.workers // per_host
    hosts = fleet.hosts if fleet else tuple(range(worker_hosts, worker_hosts + options.servers))
    needed = max([worker_hosts, *(host + 1 for host in hosts)])
    if len(lab.hosts) < needed:
        raise ConfigError(f"the job needs {needed} hosts, the lab has {len(lab.hosts)}")
    place = LabPlacement(lab, per_host, hosts, tell_rates, tuple(racks))
    return run_job(replace(options, servers=len(hosts), place=place))
