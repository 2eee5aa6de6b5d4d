"""OpenMPI at its best within a host: which of its components for collectives is the fastest, found by trial.

Which there are depends on the version. `xhc`, which works in memory that ranks share, came with 6.0; by default no
version takes it, nor `sm`. Their priority decides, so each in turn is given the highest.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from byteps_like.errors import BytePSLikeError

WITHIN_A_HOST = ("xhc", "sm", "han", "adapt", "tuned")
Settings = Mapping[str, str]
"""MCA parameters by name."""


@dataclass(frozen=True)
class Components:
    """What is installed: the version, and the names of components by framework ("coll", "smsc")."""

    version: str
    names: Mapping[str, frozenset[str]]

    @classmethod
    def parse(cls, text: str) -> Components:
        """From what `ompi_info --parsable` prints."""
        lines = [line.split(":") for line in text.splitlines()]
        version = next((line[3] for line in lines if line[:3] == ["ompi", "version", "full"]), "of unknown version")
        found = {
            framework: frozenset(line[2] for line in lines if line[:2] == ["mca", framework] and len(line) > 2)
            for framework in ("coll", "smsc")
        }
        return cls(version, found)

    def choices(self) -> dict[str, Settings]:
        """What to try, by name: OpenMPI's own choice, and each component that works within a host put first."""
        there = [name for name in WITHIN_A_HOST if name in self.names["coll"]]
        return {"its own choice": {}, **{name: {f"coll_{name}_priority": "100"} for name in there}}

    def __str__(self) -> str:
        copies = ", ".join(sorted(self.names["smsc"])) or "none"
        missing = "" if "xhc" in self.names["coll"] else "; has no coll/xhc, which came with 6.0"
        return f"OpenMPI {self.version} (copies between processes by smsc: {copies}{missing})"


def installed() -> Components:
    """What `ompi_info` says; nothing where it is missing or fails."""
    command = shutil.which("ompi_info")
    if command is None:
        return Components.parse("")
    done = subprocess.run([command, "--parsable"], capture_output=True, text=True, timeout=60, check=False)
    return Components.parse(done.stdout)


def is_decided() -> bool:
    """Whether the environment chooses components, so that there is nothing to try."""
    return any(name.startswith("OMPI_MCA_coll") for name in os.environ)


def fastest(choices: Mapping[str, Settings], seconds: Callable[[Settings], float]) -> tuple[Settings, str]:
    """The settings with which `seconds` is least, and a line that says what each has come to.

    A choice with which it raises BytePSLikeError is out. Raises the last such error if all are.
    """
    times: dict[str, float] = {}
    failure: BytePSLikeError | None = None
    for name, settings in choices.items():
        try:
            times[name] = seconds(settings)
        except BytePSLikeError as error:
            failure = error
    if not times:
        raise failure or ValueError("there is nothing to choose from")
    best = min(times, key=lambda name: times[name])
    shown = [f"{name} {times[name] / times[best]:.2f}" if name in times else f"{name} fails" for name in choices]
    return choices[best], f"taken: {best}; times relative to it: {', '.join(shown)}"
