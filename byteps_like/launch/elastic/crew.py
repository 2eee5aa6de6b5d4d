"""The workers of an elastic job as its launcher sees them: whom to start where, and whose end means what."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from byteps_like.config import Config
from byteps_like.control.hosts.address import join_address, own_host
from byteps_like.errors import ConfigError
from byteps_like.launch.child import Child, ChildPart
from byteps_like.launch.elastic import remote
from byteps_like.launch.elastic.discovery import Discovery
from byteps_like.launch.elastic.slots import MOST_DEATHS, REST_SECONDS, Slots, WorkerSlot
from byteps_like.launch.ending import failure

HERE = "localhost"
ASK_SECONDS = 1.0
"""Between two questions to the discovery script."""
_REMEMBERED = 16
"""Failures of workers that were replaced."""


@dataclass(frozen=True)
class ElasticOptions:
    """How many workers a job may have, and where they are found."""

    min_workers: int
    max_workers: int
    spares: int = 0
    """Processes beyond `max_workers`, which wait."""
    discover: str = ""
    """Script that prints hosts; empty: all workers run here."""
    start: str = ""
    """Template of a command that starts one on another host."""

    @property
    def most(self) -> int:
        """Worker processes at a time."""
        return self.max_workers + self.spares

    def environment(self) -> dict[str, str]:
        """For all members."""
        return {
            "BYTEPS_LIKE_ELASTIC": "1",
            "BYTEPS_LIKE_MIN_WORKERS": str(self.min_workers),
            "BYTEPS_LIKE_MAX_WORKERS": str(self.max_workers),
        }


class Crew:
    """Fills slots with workers. Main thread only."""

    def __init__(self, options: ElasticOptions, workers: int, most_deaths: int = MOST_DEATHS) -> None:
        """Asks the discovery script once. Raises ConfigError if that fails, or if hosts can't be reached."""
        self._options = options
        self._slots = Slots(options.most, most_deaths)
        self._discovery = Discovery(options.discover, ASK_SECONDS) if options.discover else None
        self._here = workers + options.spares
        self._busy: dict[int, WorkerSlot] = {}
        """By number."""
        self.replaced: deque[failure.Failure] = deque(maxlen=_REMEMBERED)
        """What became of workers that have died, and whose slots were given to others."""
        self.gave_up = False
        """A worker has, since too few were left."""
        self._check_reach()
        self.look()

    def listening_host(self) -> str:
        """Where the scheduler listens: as the first of the other hosts reaches it."""
        if not self._options.start:
            return "127.0.0.1"
        if host := os.environ.get("BYTEPS_LIKE_HOST", ""):
            return host
        elsewhere = next((host for host in self._hosts() if not remote.is_here(host)), None)
        if elsewhere is None:
            return socket.gethostbyname(socket.gethostname())
        return own_host(Config(scheduler=join_address(elsewhere, 1)))

    def start(self) -> None:
        """Asks for hosts from now on."""
        if self._discovery is not None:
            self._discovery.start()

    def close(self) -> None:
        """Asks no more, and starts nobody."""
        self._slots.close()
        if self._discovery is not None:
            self._discovery.stop()

    def look(self) -> list[ChildPart]:
        """Workers whose slots are not there any more."""
        reached = {host: count for host, count in self._hosts().items() if self._options.start or remote.is_here(host)}
        return [ChildPart("worker", slot.number) for slot in self._slots.follow(reached)]

    def due(self, now: float, held: Collection[ChildPart] = ()) -> list[ChildPart]:
        """Workers to start; the `held` ones are not, for now."""
        found = self._slots.due(now, {part.rank for part in held if part.role == "worker"})
        for slot in found:
            self._slots.began(slot)
            self._busy[slot.number] = slot
        return [ChildPart("worker", slot.number) for slot in found]

    def order(self, part: ChildPart, command: Sequence[str], environment: Mapping[str, str]) -> tuple[list[str], bytes]:
        """What starts that worker where it belongs, and what comes by its standard input."""
        host = self._busy[part.rank].host
        if remote.is_here(host):
            return list(command), b""
        return remote.start_command(self._options.start, host, command), remote.told(environment)

    def ended(self, child: Child, now: float) -> str:
        """A worker has ended; what is to be said of it, if anything."""
        slot = self._busy.pop(child.part.rank)
        if child.drained:
            self._slots.left(slot, child.replace)
            then = "; another one takes its place" if child.replace else ""
            return f"{child.part} left, as it was asked to{then}"
        if child.exit_status == 0:
            self._slots.close()
            return ""
        found = failure.judge(child)
        if found is not None and "TooFewWorkersError" in found.cause:
            self.gave_up = True
        if found is not None and found.came_too_late:
            self._slots.close()
            return f"{child.part} came too late: the job has ended"
        rests = self._slots.ended(slot, now)
        how = failure.in_words(child.exit_status or 0)
        then = f"its slot on {slot.host} rests for {REST_SECONDS:g} s" if rests else "another one takes its place"
        return f"{child.part} died ({how}); {then}"

    def _hosts(self) -> Mapping[str, int]:
        return self._discovery.hosts if self._discovery is not None else {HERE: self._here}

    def _check_reach(self) -> None:
        elsewhere = [host for host in self._hosts() if not remote.is_here(host)]
        if elsewhere and not self._options.start:
            raise ConfigError(
                f"--discover finds host {elsewhere[0]}, but there is no --start 'ssh {{host}} {{command}}' by which"
                " workers can be started there"
            )
