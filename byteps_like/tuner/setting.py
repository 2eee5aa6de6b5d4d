"""One way of sending gradients, what of it may be varied, and its saved form. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from byteps_like.config_values import SMALLEST_PARTITION
from byteps_like.errors import ConfigError

_KIB = 1 << 10
_LEAST = {"partition_bytes": SMALLEST_PARTITION, "credit_bytes": 64}
"""Of a saved setting: what the scheduler would refuse is refused where it is read."""


@dataclass(frozen=True)
class Setting:
    """How gradients travel. Sizes in bytes. `credit_bytes` counts on the server route, `algorithm` on the other.

    `segment_bytes` 0 leaves the segment as it is without tuning, `credit_bytes` 0 the credit.
    """

    route: str = "server"
    partition_bytes: int = 4 << 20
    credit_bytes: int = 1 << 20
    segment_bytes: int = 0
    algorithm: str = ""
    coded: bool = True
    """Whether gradients that have a codec are encoded."""

    def __str__(self) -> str:
        words = [self.route, f"partitions of {show(self.partition_bytes)}"]
        if self.segment_bytes:
            words.append(f"segments of {show(self.segment_bytes)}")
        if self.route == "server":
            words.append(f"credit of {show(self.credit_bytes)}")
        else:
            words.append(self.algorithm or "algorithm by size")
        if not self.coded:
            words.append("nothing encoded")
        return ", ".join(words)


@dataclass(frozen=True)
class Space:
    """What may be chosen, each in ascending order; the same on all ranks."""

    routes: tuple[str, ...]
    partitions: tuple[int, ...] = tuple(256 * _KIB << step for step in range(7))
    credits: tuple[int, ...] = tuple(256 * _KIB << step for step in range(7))
    segments: tuple[int, ...] = (32 * _KIB, 64 * _KIB, 128 * _KIB, 256 * _KIB)
    algorithms: tuple[str, ...] = ("", "ring", "halving_doubling")
    """Of all_reduce, such as run on any world; "" chooses by size."""
    codings: tuple[bool, ...] = (True,)
    """Both, where some gradients have a codec that may be left out."""

    def normal(self, setting: Setting) -> Setting:
        """`setting` with what its route doesn't use left at the default, so that equal ones compare equal."""
        plain = Setting()
        if setting.route == "server":
            return replace(setting, algorithm=plain.algorithm)
        return replace(setting, credit_bytes=plain.credit_bytes)

    def check(self, setting: Setting, path: Path) -> None:
        """Raises ConfigError, naming `path` and the value, for a setting saved there that can't be chosen here."""
        named = ("route", setting.route, self.routes), ("algorithm", setting.algorithm, self.algorithms)
        for name, value, known in named:
            if value not in known:
                raise ConfigError(
                    f"{path}: {name} {value!r} can't be used here, only {', '.join(map(repr, known))}; the setting was"
                    " saved by another kind of job or optimizer, so give tune another path"
                )


def pack(setting: Setting, space: Space) -> list[int]:
    """`setting` as numbers, for a broadcast; `unpack` undoes it on a rank with the same space."""
    return [
        space.routes.index(setting.route), setting.partition_bytes, setting.credit_bytes, setting.segment_bytes,
        space.algorithms.index(setting.algorithm), int(setting.coded),
    ]  # fmt: skip


def unpack(numbers: Sequence[int], space: Space) -> Setting:
    """See pack."""
    route, partition, credit, segment, algorithm, coded = numbers
    return Setting(space.routes[route], partition, credit, segment, space.algorithms[algorithm], bool(coded))


def save(path: Path, setting: Setting, trials: Sequence[Mapping[str, Any]] = ()) -> None:
    """Writes `setting`, and how it was found, as JSON; the file appears whole or not at all."""
    save_json(path, {"version": 1, "setting": asdict(setting), "trials": list(trials)})


def save_json(path: Path, found: Mapping[str, Any]) -> None:
    """Writes it; the file appears whole or not at all."""
    text = json.dumps(found, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".part")
    beside.write_text(text + "\n", encoding="utf-8")
    beside.replace(path)


def load(path: Path) -> Setting:
    """What `save` wrote. Raises ConfigError, naming the file, for anything else."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        setting = Setting(**found["setting"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a setting saved by a tuner: {error}") from None
    for item in fields(Setting):
        value, plain = getattr(setting, item.name), item.default
        least = _LEAST.get(item.name, 0)
        if type(value) is not type(plain) or (isinstance(value, int) and value < least):
            raise ConfigError(f"{path}: {item.name}={value!r} can't be")
    return setting


def show(nbytes: int) -> str:
    """ "256 KiB", "4 MiB"."""
    if nbytes % (1 << 20) == 0:
        return f"{nbytes >> 20} MiB"
    return f"{nbytes >> 10} KiB" if nbytes % _KIB == 0 else f"{nbytes} B"
