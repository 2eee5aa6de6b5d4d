"""A cluster of hosts on one Linux machine, for tests and measurements that need a network between processes.

    with Lab(4, rate="1gbit") as lab:
        lab.hosts[0].run(["ping", "-c", "1", lab.hosts[1].address])

Hosts are network namespaces joined by a bridge (see `lab_network`); files, processes, memory and cores are shared
with the machine, so compute is best emulated by sleeping. Delay, loss and corruption come from the chaos transport.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from byteps_like.errors import CapacityError, ConfigError, DeadlineError, SystemCallError
from byteps_like.launch import goodput as goodput_tool
from byteps_like.launch.lab import network as lab_network
from byteps_like.launch.lab.network import Counters, LinkShape
from byteps_like.launch.lab.watchdog import Watchdog

_numbers = itertools.count()

# What libraries that would look up the machine's host name must be told: where the wire is.
INTERFACE = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "eth0"}


@dataclass
class LabHost:
    """One host of a lab. Thread-safe."""

    index: int
    address: str
    namespace: str
    shape: LinkShape
    _processes: list[subprocess.Popen[Any]] = field(default_factory=list, repr=False)

    def __str__(self) -> str:
        return f"host {self.index} ({self.address})"

    def command(self, command: Sequence[str]) -> list[str]:
        """The words that run `command` on this host when run on the machine; the process id stays the same."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """This process's environment, where the wire is, and `extra`."""
        return {**os.environ, **INTERFACE, **(extra or {})}

    def popen(
        self, command: Sequence[str], env: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Starts `command` here; `env` is added to this process's, `options` go to Popen. It ends with the lab."""
        process = subprocess.Popen(self.command(command), env=self.environment(env), **options)
        self._processes.append(process)
        return process

    def run(self, command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float | None = 60.0) -> str:
        """Runs `command` here to its end and returns what it wrote, errors included.

        Raises SystemCallError with that output if its status is not 0, DeadlineError after `timeout` seconds.
        """
        process = self.popen(command, env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            output, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            raise DeadlineError(f"{command} on {self} took more than {timeout} s; its output:\n{output}") from None
        if process.returncode != 0:
            raise SystemCallError(f"{command} on {self} ended with {process.returncode}; its output:\n{output}")
        return str(output)

    def counters(self) -> Counters:
        """Bytes and packets that went over this host's link."""
        return lab_network.counters(self.namespace)

    def _end_processes(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)


class Lab:
    """Hosts joined by a switch; a context manager.

    `rate` is that of every link, both ways ("1gbit", "100mbit", "none"), or a sequence with one entry per host.
    `latency` bounds how long a packet may wait in the queue of a switch's port, in seconds; what comes on top is
    dropped. `queue` says it in bytes instead, as switches have it: from 100 KB to some megabytes for all ports.
    `congestion` is the TCP congestion control of the hosts, "" for that of the machine; the kernel lets namespaces
    choose only from the machine's `net.ipv4.tcp_allowed_congestion_control`.

    Needs root, `ip` and `tc`: raises SystemCallError saying what is missing. Removes itself at the end, also when
    this process is killed; what an earlier lab may have left behind is removed first.
    """

    def __init__(
        self,
        hosts: int,
        *,
        rate: str | Sequence[str] = "none",
        latency: float = 0.01,
        queue: int = 0,
        congestion: str = "",
    ) -> None:
        rates = [rate] * hosts if isinstance(rate, str) else list(rate)
        if len(rates) != hosts:
            raise ConfigError(f"{hosts} hosts but {len(rates)} rates: give one rate, or one per host")
        if not 1 <= hosts <= lab_network.MOST_HOSTS:
            raise CapacityError(f"a lab has 1 to {lab_network.MOST_HOSTS} hosts, not {hosts}")
        self.name = lab_network.new_prefix(next(_numbers))
        self._congestion = congestion
        self._watchdog: Watchdog | None = None
        self._lock = threading.Lock()
        self.hosts = [
            LabHost(
                index,
                lab_network.host_address(index),
                lab_network.host_namespace(self.name, index),
                LinkShape(bits, latency, queue),
            )
            for index, bits in enumerate(map(lab_network.parse_rate, rates))
        ]

    def open(self) -> Self:
        """Builds the network; a few milliseconds per host."""
        if reason := lab_network.why_not_viable():
            raise SystemCallError(f"can't create a lab: {reason}")
        sweep()
        self._watchdog = Watchdog(self.name)
        try:
            lab_network.build(self.name, [host.shape for host in self.hosts], self._congestion)
        except BaseException:
            self.close()
            raise
        return self

    def close(self, patience: float = 2.0) -> None:
        """Ends what runs on the hosts, by SIGTERM and after `patience` seconds by SIGKILL, and removes them."""
        with self._lock:
            watchdog, self._watchdog = self._watchdog, None
        if watchdog is None:
            return
        for host in self.hosts:
            host._end_processes()
        deadline = time.monotonic() + patience
        for process in itertools.chain.from_iterable(host._processes for host in self.hosts):
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
        watchdog.close()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def goodput(self, sender: int = 0, receiver: int = 1, seconds: float = 1.0) -> float:
        """Payload bytes per second of one TCP connection between two hosts, measured; blocks for about `seconds`."""
        tool = [sys.executable, str(Path(goodput_tool.__file__))]
        sink = self.hosts[receiver]
        with sink.popen([*tool, "receive", sink.address, str(seconds)], stdout=subprocess.PIPE, text=True) as receiving:
            assert receiving.stdout is not None
            port = receiving.stdout.readline().strip()
            self.hosts[sender].run([*tool, "send", sink.address, port], timeout=seconds + 20.0)
            return float(receiving.stdout.read())


def sweep() -> list[str]:
    """Removes labs whose owner died together with its watchdog; returns their names."""
    stale = lab_network.stale_prefixes()
    for prefix in stale:
        lab_network.destroy(prefix)
    return stale
