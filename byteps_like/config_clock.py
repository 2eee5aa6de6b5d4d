"""The one clock: after how long who or what is given up, all of it derived from `failure_timeout`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from byteps_like.errors import ConfigError

SHORTEST, LONGEST = 1.0, 600.0


@dataclass(frozen=True)
class FailureClock:
    """Times in seconds, of a job with this `failure_timeout`."""

    failure_timeout: float = 10.0

    def settings(self) -> dict[str, float]:
        """Those that are settings, too, where they say nothing else."""
        timeout = self.failure_timeout
        return {
            "heartbeat_interval": timeout / 20,
            "peer_grace": timeout / 20,
            "stall_warning": timeout / 2,
            "stall_timeout": 12 * timeout,
            "join_timeout": 6 * timeout,
        }

    @property
    def quiet(self) -> float:
        """Without a heartbeat after which a member is named."""
        return self.failure_timeout / 5

    @property
    def return_to_scheduler(self) -> float:
        """For members to come back to a scheduler that goes on for another one, and for one that has joined to open its
        watch stream."""
        return self.failure_timeout / 2

    @property
    def return_to_job(self) -> float:
        """For a worker that has left for the next world to join it."""
        return 0.3 * self.failure_timeout

    @property
    def prepare(self) -> float:
        """For servers to take up a new world."""
        return self.failure_timeout

    @property
    def absence(self) -> float:
        """For which there may be no scheduler."""
        return 6 * self.failure_timeout


def check_clock(values: Mapping[str, float], given: Collection[str]) -> None:
    """Raises ConfigError, naming both, if what is `given` of the clock and of the settings that it has values for can't
    be had together."""
    timeout = values["failure_timeout"]
    if not SHORTEST <= timeout <= LONGEST:
        raise ConfigError(f"failure_timeout={timeout} is not {SHORTEST:g} to {LONGEST:g} seconds")
    if "failure_timeout" not in given:
        return
    named = FailureClock(timeout).quiet
    limits = {
        "heartbeat_interval": (0.0, named / 2, f"a member is called silent after {named:g} s, in which two must come"),
        "peer_grace": (0.0, timeout, "a member would be given up before it may be back"),
        "stall_timeout": (timeout, float("inf"), "rounds would be given up before members are that they wait for"),
        "join_timeout": (timeout, float("inf"), "a world would be given up before members are that it waits for"),
        "stall_warning": (0.0, values["stall_timeout"], "nobody would be warned before the job fails"),
    }
    for name, (least, most, why) in limits.items():
        if least <= values[name] <= most:
            continue
        other = "failure_timeout" if name != "stall_warning" else "stall_timeout"
        raise ConfigError(f"{name}={values[name]:g} contradicts {other}={values[other]:g}: {why}")
