"""The rows of `byteps-like doctor` on TLS: whether it works here, and what it costs."""

from __future__ import annotations

import statistics
from dataclasses import replace

from byteps_like.launch.hosts.host import Finding, Grade

_CLEAR, _ENCRYPTED = "tcp://127.0.0.1:0", "tls+tcp://127.0.0.1:0"
_BYTES, _RUNS = 256 << 20, 3


def works() -> Finding:
    """Whether links can be encrypted."""
    try:
        import byteps_like._core as core
    except ImportError as error:
        return Finding("TLS", Grade.WARN, f"the native core is missing ({error})", "build it: make core")
    if why := core.why_no_tls():
        return Finding("TLS", Grade.WARN, why, "install OpenSSL 3 with TLS 1.3 (libssl3)")
    return Finding("TLS", Grade.OK, "TLS 1.3 with AES-128-GCM, for tls=on")


def rate() -> Finding:
    """What a link over loopback TCP carries from one core to another, in the clear and encrypted, by turns."""
    name = "a link, two cores: clear, tls=on"
    found = works()
    if found.state is not Grade.OK:
        return replace(found, name=name)
    import byteps_like._core as core

    rates = [(core.link_rate(_CLEAR, _BYTES), core.link_rate(_ENCRYPTED, _BYTES)) for _ in range(_RUNS)]
    clear, encrypted = (statistics.median(one) / 1e9 for one in zip(*rates, strict=True))
    return Finding(name, Grade.OK, f"{clear:.2f} GB/s, {encrypted:.2f} GB/s ({encrypted / clear:.2f})")


ROWS = (works,)
MEASURED = (rate,)
