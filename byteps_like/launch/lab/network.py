"""The network of a lab: namespaces, a bridge and shaped links, made and removed by `ip` and `tc`.

Each host is a network namespace with one interface, `eth0`, whose other end is a port of a bridge; the bridge has a
namespace of its own, so that the machine's own network is never touched. Both directions of a host's link are shaped
by a token bucket: what it sends at its `eth0`, what it receives at its port of the bridge.

A host hands over packets of many frames, as it does to a card that cuts them, and nobody cuts them here: a bucket that
is smaller than a packet makes the kernel do it, at some 6 µs of processor a frame and hop. So they are kept to half a
bucket. What a host has not sent waits in a queue as long as Linux gives a card, where TCP never overflows it; what is
lost is lost at the ports of the bridge, as it is in a switch (docs/decisions/0032-lab-packets.md).

All namespaces of one lab share a prefix that names its owner by process id and start time. Whoever comes later can
therefore tell a lab in use from one whose owner died without a word.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from byteps_like.errors import ConfigError, SystemCallError

NAMESPACES = Path("/run/netns")
SUBNET = "10.77.0"
MOST_HOSTS = 250

_NAME = re.compile(r"(bytepslike-(\d+)-(\d+)-\d+)-(?:bridge|h\d+)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)bit", re.IGNORECASE)
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_LEAST_BURST = 32 * 1024
_LARGEST_PACKET = 64 * 1024  # that TCP makes
_FRAME_BYTES, _CARD_FRAMES = 1514, 1000  # of Linux's queue before a card (txqueuelen)
_BURST_SECONDS = 0.001048576  # 128 KiB at 1 Gb/s: more bends short transfers, less can't be kept up by the timer


@dataclass(frozen=True)
class LinkShape:
    """How a link is slowed down. `rate` in bits per second, 0 for not at all.

    The queue of the switch's port holds `queue` bytes, or if that is 0 what the line carries in `latency` seconds.
    """

    rate: int = 0
    latency: float = 0.01
    queue: int = 0

    @property
    def burst(self) -> int:
        """Size of the token bucket."""
        return max(_LEAST_BURST, round(self.rate / 8 * _BURST_SECONDS))

    @property
    def packet(self) -> int:
        """The largest that a host hands over: the other half of the bucket fills while a timer is late."""
        return min(_LARGEST_PACKET, self.burst // 2)

    @property
    def port_queue(self) -> int:
        """Bytes that may wait at the switch; the bucket comes on top."""
        return self.queue or round(self.rate / 8 * self.latency)

    @property
    def card_queue(self) -> int:
        """Bytes that may wait in the host."""
        return max(self.port_queue, _FRAME_BYTES * _CARD_FRAMES)


@dataclass(frozen=True)
class Counters:
    """Bytes and packets of one interface, Ethernet headers included.

    The kernel counts a packet before it is cut into wire-sized pieces, so headers show less here than on a real wire.
    """

    rx_bytes: int
    tx_bytes: int
    rx_packets: int
    tx_packets: int

    def __sub__(self, earlier: Counters) -> Counters:
        return Counters(
            self.rx_bytes - earlier.rx_bytes,
            self.tx_bytes - earlier.tx_bytes,
            self.rx_packets - earlier.rx_packets,
            self.tx_packets - earlier.tx_packets,
        )


def why_not_viable() -> str:
    """The reason why no lab can be built here, "" where one can."""
    if os.geteuid() != 0:
        return "a lab makes network namespaces and needs root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found: install iproute2"
    return ""


def parse_rate(text: str) -> int:
    """Bits per second of "1gbit", "2.5gbit", "100mbit"; "none" is 0. Raises ConfigError for anything else."""
    if text == "none":
        return 0
    match = _RATE.fullmatch(text.strip())
    if match is None or float(match[1]) == 0:
        raise ConfigError(f"rate {text!r} is not valid; write it as 1gbit, 2.5gbit, 100mbit or none")
    return round(float(match[1]) * _SCALE[match[2].lower()])


def new_prefix(number: int) -> str:
    """The name of this process's lab `number`."""
    return f"bytepslike-{os.getpid()}-{_start_time(os.getpid())}-{number}"


def bridge_namespace(prefix: str) -> str:
    """Where the bridge of a lab lives."""
    return f"{prefix}-bridge"


def host_namespace(prefix: str, index: int) -> str:
    """Where host `index` of a lab lives."""
    return f"{prefix}-h{index}"


def host_address(index: int) -> str:
    """The IPv4 address of host `index`; the same in every lab, since no two labs are joined."""
    return f"{SUBNET}.{index + 1}"


def build(prefix: str, shapes: Sequence[LinkShape], congestion: str) -> None:
    """Makes one host per entry of `shapes` and joins them. Raises SystemCallError with the reason of the kernel."""
    bridge = bridge_namespace(prefix)
    hosts = [host_namespace(prefix, index) for index in range(len(shapes))]
    _batch(["ip"], [f"netns add {name}" for name in (bridge, *hosts)])
    _batch(["ip", "-n", bridge], ["link set lo up", "link add br0 type bridge mcast_snooping 0", *_up("br0")])
    for index, (host, shape) in enumerate(zip(hosts, shapes, strict=True)):
        _build_host(bridge, host, index)
        if shape.rate:
            _call(["ip", "-n", host, "link", "set", "eth0", "gso_max_size", str(shape.packet)])
            _shape(host, "eth0", shape, shape.card_queue)
            _shape(bridge, f"h{index}", shape, shape.port_queue)
        if congestion:
            _call(["ip", "netns", "exec", host, "tee", "/proc/sys/net/ipv4/tcp_congestion_control"], congestion)


def _build_host(bridge: str, host: str, index: int) -> None:
    port = f"h{index}"
    _batch(["ip"], [f"link add eth0 netns {host} type veth peer name {port} netns {bridge}"])
    _batch(["ip", "-n", bridge], [f"link set {port} master br0", *_up(port)])
    _batch(["ip", "-n", host], ["link set lo up", f"addr add {host_address(index)}/24 dev eth0", *_up("eth0")])


def _up(interface: str) -> list[str]:
    # Neither IPv6 addresses nor multicast: their discovery traffic would show in the byte counters.
    return [f"link set {interface} addrgenmode none multicast off", f"link set {interface} up"]


def _shape(namespace: str, interface: str, shape: LinkShape, queue: int) -> None:
    bucket = f"rate {shape.rate}bit burst {shape.burst} limit {shape.burst + queue}"
    _call(["tc", "-n", namespace, "qdisc", "replace", "dev", interface, "root", "tbf", *bucket.split()])


def counters(namespace: str) -> Counters:
    """What went through a host's `eth0` since it was made."""
    [link] = json.loads(_call(["ip", "-n", namespace, "-s", "-j", "link", "show", "dev", "eth0"]))
    received, sent = link["stats64"]["rx"], link["stats64"]["tx"]
    return Counters(received["bytes"], sent["bytes"], received["packets"], sent["packets"])


def prefixes() -> list[str]:
    """All labs of this machine, whether in use or left behind."""
    if not NAMESPACES.is_dir():
        return []
    matches = (_NAME.fullmatch(path.name) for path in NAMESPACES.iterdir())
    return sorted({match[1] for match in matches if match is not None})


def stale_prefixes() -> list[str]:
    """Labs whose owner is gone."""
    return [prefix for prefix in prefixes() if not _owner_lives(prefix)]


def _owner_lives(prefix: str) -> bool:
    _, pid, start, _ = prefix.split("-")
    return _start_time(int(pid)) == int(start)


def _start_time(pid: int) -> int:
    """Clock ticks from boot to the start of a process; -1 if there is none. With the pid it is unique."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return -1
    return int(stat.rpartition(")")[2].split()[19])


def destroy(prefix: str, patience: float = 5.0) -> None:
    """Kills every process on the hosts of a lab and removes its namespaces. Does nothing where there is nothing."""
    names = [path.name for path in NAMESPACES.glob(f"{prefix}-*")] if NAMESPACES.is_dir() else []
    _kill_all(names, time.monotonic() + patience)
    for name in names:
        # Another process may sweep at the same time: what it removed first is no error.
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _kill_all(namespaces: Iterable[str], deadline: float) -> None:
    """Kills until nothing is left: a process may have forked between being listed and being killed."""
    for name in namespaces:
        while (living := _processes(name)) and time.monotonic() < deadline:
            for pid in living:
                _kill_and_wait(pid, deadline)


def _processes(namespace: str) -> list[int]:
    listed = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
    return [int(pid) for pid in listed.stdout.split() if int(pid) != os.getpid() and not _is_zombie(int(pid))]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _kill_and_wait(pid: int, deadline: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        _wait_readable(descriptor, deadline)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)


def _wait_readable(descriptor: int, deadline: float) -> None:
    waits = select.poll()  # takes any descriptor, and select none from 1,024 on
    waits.register(descriptor, select.POLLIN)
    waits.poll(1000 * max(0.0, deadline - time.monotonic()))


def _batch(command: list[str], lines: Sequence[str]) -> None:
    _call([*command, "-batch", "-"], "\n".join(lines) + "\n")


def _call(command: list[str], text: str = "") -> str:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        detail = f" with {text!r}" if text else ""
        raise SystemCallError(f"`{' '.join(command)}`{detail} failed: {done.stderr.strip()}")
    return done.stdout
