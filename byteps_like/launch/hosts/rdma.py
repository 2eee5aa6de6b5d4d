"""RDMA devices of this host as rows of `byteps-like doctor`: libraries, devices, ports, GIDs, MTU, locked memory.

Read from the kernel's /sys/class/infiniband, so that it also tells of devices that the libraries cannot open.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import resource
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from byteps_like.control.hosts.rdma import rdma_host
from byteps_like.launch.hosts.host import GIB, Finding, Grade, judged, read_text, size_text

DEVICES = Path("/sys/class/infiniband")
NODES = Path("/dev/infiniband")
INTERFACES = Path("/sys/class/net")
_ROCE_HEADERS = 92
"""Bytes of an Ethernet frame's payload that RoCE v2 may need beside its own."""


@dataclass(frozen=True)
class Gid:
    """One entry of a port's table of addresses: its index, what it is (RoCE v2, IB/RoCE v1) and the address."""

    index: int
    kind: str
    address: ipaddress.IPv6Address

    @property
    def text(self) -> str:
        """The IPv4 address where the GID holds one, as in `ip addr`; else the GID itself."""
        return str(self.address.ipv4_mapped or self.address)


@dataclass(frozen=True)
class Port:
    """One port of a device, as its folder in sysfs shows it."""

    folder: Path

    @property
    def name(self) -> str:
        """As in `rdma link`: device/port."""
        return f"{self.folder.parent.parent.name}/{self.folder.name}"

    @property
    def state(self) -> str:
        """ACTIVE, DOWN, INIT, ARMED, ..."""
        return read_text(self.folder / "state", "?").rpartition(" ")[2]

    @property
    def is_ethernet(self) -> bool:
        """RoCE, as opposed to InfiniBand."""
        return read_text(self.folder / "link_layer") == "Ethernet"

    @property
    def interface(self) -> str:
        """The network interface that a RoCE port shares; empty where there is none."""
        names = (read_text(entry) for entry in sorted((self.folder / "gid_attrs" / "ndevs").glob("*")))
        return next((name for name in names if name), "")

    def gids(self) -> Iterator[Gid]:
        """The entries in use, by index."""
        for entry in sorted((self.folder / "gids").glob("*"), key=lambda path: int(path.name)):
            address = ipaddress.IPv6Address(read_text(entry, "::"))
            if int(address) & (1 << 64) - 1:  # an empty entry is nothing but zeros, or a prefix
                yield Gid(int(entry.name), read_text(self.folder / "gid_attrs" / "types" / entry.name), address)

    def chosen_gid(self) -> Gid | None:
        """What links use unless told otherwise: of RoCE one of version 2, which is routed, an IPv4 address first."""
        gids = [gid for gid in self.gids() if not self.is_ethernet or gid.kind == "RoCE v2"]
        return min(
            gids, key=lambda gid: (self.is_ethernet and gid.address.ipv4_mapped is None, gid.index), default=None
        )

    def packet_bytes(self, interfaces: Path = INTERFACES) -> tuple[int, int]:
        """(payload of a packet on this port, MTU of its interface); (0, 0) where no interface says."""
        mtu = read_text(interfaces / self.interface / "mtu", "0") if self.interface else "0"
        fitting = [size for size in (256, 512, 1024, 2048, 4096) if size + _ROCE_HEADERS <= int(mtu)]
        return (fitting[-1] if fitting else 0), int(mtu)


def rdma_ports(devices: Path = DEVICES) -> list[Port]:
    """All ports of all RDMA devices that the kernel knows."""
    return [Port(folder) for folder in sorted(devices.glob("*/ports/*"))]


def libraries() -> Finding:
    """Whether there is an RDMA device, and the libraries to use it. No device is nothing to fix."""
    missing = [name for name in ("libibverbs.so.1", "librdmacm.so.1") if not _loads(name)]
    ports = rdma_ports(DEVICES)
    if not ports:
        return Finding("RDMA", Grade.OK, f"no device{'' if missing else ' (the libraries are there)'}: links go by TCP")
    devices = ", ".join(dict.fromkeys(port.name.partition("/")[0] for port in ports))
    fix = "apt-get install ibverbs-providers librdmacm1: links go by TCP until then"
    return judged("RDMA", not missing, f"{devices}; no {', '.join(missing)}" if missing else devices, fix)


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def ports() -> Iterable[Finding]:
    """Each port: its state, rate, the GID that links will use and the size of its packets."""
    for port in rdma_ports(DEVICES):
        yield _port_row(port, INTERFACES)


def _port_row(port: Port, interfaces: Path) -> Finding:
    name = f"RDMA port {port.name}"
    place = f" on {port.interface}" if port.interface else ""
    if port.state != "ACTIVE":
        fix = f"bring {port.interface or 'the link, or its subnet manager,'} up: links go another way until then"
        return Finding(name, Grade.WARN, port.state + place, fix)
    gid = port.chosen_gid()
    if gid is None:
        return Finding(
            name, Grade.WARN, f"active{place}, no GID of RoCE v2", f"give {port.interface or 'it'} an IP address"
        )
    payload, mtu = port.packet_bytes(interfaces)
    value = f"{read_text(port.folder / 'rate', 'rate not known')}{place}, GID {gid.index} ({gid.text})"
    if not payload:
        return Finding(name, Grade.OK, value)
    fix = f"ip link set {port.interface} mtu 4200, and the switch's: packets of 4096 bytes for {payload}"
    return judged(name, payload == 4096, f"{value}, packets of {payload} bytes (MTU {mtu})", fix)


def addresses() -> Iterable[Finding]:
    """What the native core makes of it: it opens the devices and registers memory, as links do."""
    if not rdma_ports(DEVICES):
        return
    found = rdma_host()
    value = ", ".join(f"{address.host} on {address.device}" for address in found.addresses)
    yield judged(
        "RDMA addresses", not found.why, found.why or value, "see the rows beside it: links go by TCP until then"
    )


def device_files() -> Iterable[Finding]:
    """/dev/infiniband, which containers lack unless they are given it."""
    if not rdma_ports(DEVICES):
        return
    wanted = [*sorted(NODES.glob("uverbs*")), NODES / "rdma_cm"]
    closed = [str(node) for node in wanted if not os.access(node, os.R_OK | os.W_OK)]
    closed += [] if len(wanted) > 1 else [str(NODES / "uverbs0")]
    fix = "modprobe ib_uverbs rdma_ucm; in a container: --device /dev/infiniband"
    yield judged("RDMA device files", not closed, f"not usable: {', '.join(closed)}" if closed else "usable", fix)


def locked_memory() -> Finding:
    """Lockable memory: what is registered with an RDMA device is locked, that is arenas, accumulators and slots."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    good = unlimited or soft >= GIB or not rdma_ports(DEVICES)
    fix = "ulimit -l unlimited (LimitMEMLOCK=infinity, docker run --ulimit memlock=-1), for RDMA"
    return judged("locked memory", good, "unlimited" if unlimited else size_text(soft), fix)


ROWS: tuple[Callable[[], Finding | Iterable[Finding]], ...] = (libraries, ports, addresses, device_files, locked_memory)
