"""Which hosts there are: asked of a script, again and again."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Mapping

from byteps_like.errors import ConfigError

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
"""For one answer."""


def ask(script: str) -> dict[str, int]:
    """What `script` prints, in lines `host:slots` or `host`, which has one. Blocks for TIMEOUT_SECONDS at most.

    Raises ConfigError, with what it has printed, if it can't be run, fails, takes too long, or prints anything else.
    """
    try:
        done = subprocess.run(
            [script], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"--discover {script}: no answer within {TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise ConfigError(f"--discover {script}: {error.strerror}") from None
    if done.returncode:
        raise ConfigError(f"--discover {script}: exit code {done.returncode}: {done.stderr.strip()[-200:]}")
    return parse(script, done.stdout)


def parse(script: str, text: str) -> dict[str, int]:
    """Slots by host. Raises ConfigError, naming the line."""
    hosts: dict[str, int] = {}
    for line in text.split():
        host, colon, slots = line.rpartition(":") if line.count(":") == 1 or "]" in line else (line, "", "1")
        host, slots = (host, slots) if colon or not host else (line, "1")
        if not host or not slots.isdigit():
            raise ConfigError(f"--discover {script}: {line!r} is not host:slots")
        hosts[host] = hosts.get(host, 0) + int(slots)
    return hosts


class Discovery:
    """Asks on a thread of its own. When the script fails the last good list holds."""

    def __init__(self, script: str, interval: float) -> None:
        """Asks once. Raises as `ask` does: a script that fails at first is a mistake."""
        self._script, self._interval = script, interval
        self._hosts = ask(script)
        self._failing = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="byteps-like-discovery", daemon=True)

    @property
    def hosts(self) -> Mapping[str, int]:
        """Slots by host, as of the last good answer. Any thread."""
        return self._hosts

    def start(self) -> None:
        """Asks every `interval` seconds from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the thread ends by itself."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            try:
                self._hosts = ask(self._script)
                self._failing = False
            except ConfigError as error:
                if not self._failing:
                    log.warning("%s; the hosts that were found last are kept", error)
                self._failing = True
