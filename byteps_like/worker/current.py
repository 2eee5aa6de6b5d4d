"""The worker of this process, for what stands below those who join jobs: they say here how to find theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.worker.api import Worker


@dataclass(frozen=True)
class JobEntry:
    """How a module that has an `init` joins jobs."""

    is_inside: Callable[[], bool]
    """Whether its `init` has been called; joins nothing."""
    worker: Callable[[], Worker]
    """Of whoever has called it. Blocks where the process has only come to its job, and joins now."""
    join: Callable[[Config], Worker]
    """As that `init`, another job."""


_entries: dict[str, JobEntry] = {}


def found_by(module: str, entry: JobEntry) -> None:
    """From here on `entry` is asked, too."""
    _entries[module] = entry


def join_beside(config: Config) -> Worker:
    """Joins another job, which `config` describes, beside the one that this process is in, as a worker of the same
    kind. Blocks until its world has formed. Raises as `init`."""
    inside = [one for one in _entries.values() if one.is_inside()]
    for entry in inside or _entries.values():
        return entry.join(config)
    raise NotInitializedError("this process can't join a job: import byteps_like.torch or byteps_like.portable")


def current() -> Worker:
    """The worker of the job that this process is in. Raises NotInitializedError if it is in none, InvalidArgumentError
    if it is in two."""
    found = {module: one for module, one in _entries.items() if one.is_inside()}
    if not found:
        raise NotInitializedError("this process is in no job: call init() of byteps_like.torch or byteps_like.portable")
    if len(found) > 1:
        raise InvalidArgumentError(f"this process is in jobs by {' and '.join(found)}: say by worker= which is meant")
    return next(iter(found.values())).worker()
