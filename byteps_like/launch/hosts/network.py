"""What this host's network can do, as rows of `byteps-like doctor`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from byteps_like.launch.hosts.host import Finding, Grade, judged, read_text


def interfaces() -> Iterable[Finding]:
    """Each network interface that is up, with its speed."""
    found = False
    for folder in sorted(Path("/sys/class/net").iterdir()):
        if folder.name == "lo" or not folder.is_dir() or read_text(folder / "operstate") == "down":
            continue
        found = True
        physical = (folder / "device").exists()
        yield Finding(f"interface {folder.name}", Grade.OK, f"{_speed(folder)}{'' if physical else ' (virtual)'}")
    if not found:
        yield Finding(
            "interfaces",
            Grade.WARN,
            "none but loopback is up",
            "jobs on this host only; bring one up for others",
        )


def _speed(folder: Path) -> str:
    text = read_text(folder / "speed", "-1")
    mtu = read_text(folder / "mtu", "?")
    known = text.lstrip("-").isdigit() and int(text) > 0
    return f"{int(text) / 1000:g} Gb/s, MTU {mtu}" if known else f"speed not known, MTU {mtu}"


def congestion_control() -> Finding:
    """TCP's congestion control. Any will do."""
    chosen = read_text("/proc/sys/net/ipv4/tcp_congestion_control", "not known")
    return Finding("TCP congestion control", Grade.OK, chosen)


def socket_buffers() -> Finding:
    """How far TCP may grow its buffers: the product of bandwidth and delay must fit."""
    limits = [read_text(f"/proc/sys/net/ipv4/{name}").split() for name in ("tcp_rmem", "tcp_wmem")]
    largest = [int(limit[2]) for limit in limits if len(limit) == 3]
    if not largest:
        return Finding("TCP buffers", Grade.OK, "not known")
    fix = "sysctl -w net.ipv4.tcp_rmem='4096 131072 16777216' net.ipv4.tcp_wmem='4096 16384 16777216'"
    return judged("TCP buffers", min(largest) >= 4 << 20, f"up to {min(largest) >> 20} MiB", fix)


def pauses() -> Finding:
    """Whether TCP keeps its window while a step computes; only the host can say so, no socket can ask for it."""
    kept = read_text("/proc/sys/net/ipv4/tcp_slow_start_after_idle", "0") == "0"
    fix = "sysctl -w net.ipv4.tcp_slow_start_after_idle=0: each step's traffic then begins at the rate of the last"
    return judged("TCP after a pause", kept, "keeps its window" if kept else "begins slowly again", fix)


def laboratory() -> Finding:
    """What `byteps-like lab` needs: root, ip, tc and network namespaces."""
    missing = [f"{tool} (apt-get install iproute2)" for tool in ("ip", "tc") if shutil.which(tool) is None]
    missing += ["network namespaces in the kernel"] if not Path("/proc/self/ns/net").exists() else []
    missing += ["root"] if os.geteuid() != 0 else []
    fix = f"only for `byteps-like lab`: {', '.join(missing)}"
    return judged("lab", not missing, "possible" if not missing else "not possible", fix)


ROWS: tuple[Callable[[], Finding | Iterable[Finding]], ...] = (
    interfaces,
    congestion_control,
    socket_buffers,
    pauses,
    laboratory,
)
