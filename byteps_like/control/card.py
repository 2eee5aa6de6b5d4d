"""The network card that a process's traffic takes."""

from __future__ import annotations

import psutil

from byteps_like.config import Config


def card_of(config: Config, host: str) -> str:
    """Name of the interface with the address `host`, or the one that is set; "" if there is none, as behind a NAT."""
    if config.interface:
        return config.interface
    addresses = psutil.net_if_addrs()
    return next((name for name, own in addresses.items() if any(entry.address == host for entry in own)), "")


def link_gbps(config: Config, host: str) -> float:
    """Its rate in Gb/s: `link_gbps` where it is set, else what the kernel says of it; 0 where neither knows."""
    if config.link_gbps > 0:
        return config.link_gbps
    found = psutil.net_if_stats().get(card_of(config, host))
    return found.speed / 1000 if found is not None else 0.0
