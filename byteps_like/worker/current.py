"""The worker of this process, for what stands below those who join jobs: they say here how to find theirs."""

from __future__ import annotations

from collections.abc import Callable

from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.worker.api import Worker

Finder = Callable[[], Worker | None]

_finders: dict[str, Finder] = {}


def found_by(module: str, finder: Finder) -> None:
    """From here on `finder` is asked for the worker of who has called the `init` of `module`; None: nobody has."""
    _finders[module] = finder


def current() -> Worker:
    """The worker of the job that this process is in. Raises NotInitializedError if it is in none, InvalidArgumentError
    if it is in two."""
    found = {module: worker for module, finder in _finders.items() if (worker := finder()) is not None}
    if not found:
        raise NotInitializedError("this process is in no job: call init() of byteps_like.torch or byteps_like.portable")
    if len(found) > 1:
        raise InvalidArgumentError(f"this process is in jobs by {' and '.join(found)}: say by worker= which is meant")
    return next(iter(found.values()))
