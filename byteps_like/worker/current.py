"""The worker of this process, for what stands below those who join jobs: they say here how to find theirs."""

from __future__ import annotations

from collections.abc import Callable

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.worker.api import Worker

Finder = Callable[[], Worker | None]
Joiner = Callable[[Config], Worker]

_finders: dict[str, Finder] = {}
_joiners: dict[str, Joiner] = {}


def found_by(module: str, finder: Finder, joiner: Joiner) -> None:
    """From here on `finder` is asked for the worker of who has called the `init` of `module`; None: nobody has.
    `joiner` makes one as that does, of another job."""
    _finders[module] = finder
    _joiners[module] = joiner


def join_beside(config: Config) -> Worker:
    """Joins another job, which `config` describes, beside the one that this process is in, as a worker of the same
    kind. Blocks until its world has formed. Raises as `init`."""
    inside = [module for module, finder in _finders.items() if finder() is not None]
    for module in inside or _joiners:
        return _joiners[module](config)
    raise NotInitializedError("this process can't join a job: import byteps_like.torch or byteps_like.portable")


def current() -> Worker:
    """The worker of the job that this process is in. Raises NotInitializedError if it is in none, InvalidArgumentError
    if it is in two."""
    found = {module: worker for module, finder in _finders.items() if (worker := finder()) is not None}
    if not found:
        raise NotInitializedError("this process is in no job: call init() of byteps_like.torch or byteps_like.portable")
    if len(found) > 1:
        raise InvalidArgumentError(f"this process is in jobs by {' and '.join(found)}: say by worker= which is meant")
    return next(iter(found.values()))
