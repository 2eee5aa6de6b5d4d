"""The network card that a process's traffic takes: its rate by its own word, and by what it carries."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path

import psutil

from byteps_like.config import Config

log = logging.getLogger(__name__)

WINDOW = 0.02
"""Seconds between two looks at the counters."""
LOOK_BACK = 3.0
"""Seconds that a report tells of."""
_LEVEL = 0.7
_OUTLIERS = 3  # windows that may have carried more than the card can, since clocks are read a little late


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


class CardMeter:
    """Looks at a card's counters all the time, on a thread of its own, some microseconds each time.

    `report` is for the scheduler: the most that the card has carried lately, and for how much of the time.
    """

    def __init__(self, card: str, folder: Path = Path("/sys/class/net")) -> None:
        """Raises OSError for a card that isn't there."""
        names = [folder / card / "statistics" / f"{way}_bytes" for way in ("rx", "tx")]
        self._files = [os.open(name, os.O_RDONLY) for name in names]
        self._seen: deque[tuple[float, float]] = deque(maxlen=round(LOOK_BACK / WINDOW))
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._look, name="byteps_like-card", daemon=True)
        self._thread.start()

    def report(self) -> dict[str, float]:
        """`card_gbps`, in the direction that carried less, and `card_duty`; nothing before it has seen enough."""
        seen = list(self._seen)
        if len(seen) < 4 * _OUTLIERS:
            return {}
        most = [sorted(way)[-_OUTLIERS] for way in zip(*seen, strict=True)]
        busy = [any(rate >= _LEVEL * top > 0 for rate, top in zip(window, most, strict=True)) for window in seen]
        return {"card_gbps": min(most), "card_duty": sum(busy) / len(busy)}

    def close(self) -> None:
        """Stops looking. Idempotent."""
        if not self._ending.is_set():
            self._ending.set()
            self._thread.join()
            for file in self._files:
                os.close(file)

    def _look(self) -> None:
        before, at = self._counters(), time.monotonic()
        while before and not self._ending.wait(WINDOW):
            counters, now = self._counters(), time.monotonic()
            gigabits = [(new - old) * 8e-9 / (now - at) for new, old in zip(counters, before, strict=False)]
            if gigabits:
                self._seen.append((gigabits[0], gigabits[1]))
            before, at = counters, now

    def _counters(self) -> list[int]:
        try:
            return [int(os.pread(file, 32, 0)) for file in self._files]
        except OSError as error:  # the card has gone
            log.info("can't measure the network card any longer: %s", error)
            return []


def open_meter(config: Config, host: str) -> CardMeter | None:
    """A meter of the card with the address `host`; None for the loopback interface, or where there is no such card."""
    card = card_of(config, host)
    if card in ("", "lo"):
        return None
    try:
        return CardMeter(card)
    except OSError:
        return None
