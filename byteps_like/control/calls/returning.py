"""Processes that leave a world for the next one: they say so as they leave, and who they were as they join again."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from byteps_like.config import Config

_is_returning: ContextVar[bool] = ContextVar("byteps_like_returning", default=False)
_lock = threading.Lock()
_departed: dict[tuple[int, str, str], list[str]] = {}
"""By process, scheduler and job: ids of members that have left and will return. A forked child is none of them."""


@contextmanager
def returning() -> Iterator[None]:
    """Whoever leaves a job in this block, on this thread, will join it again."""
    token = _is_returning.set(True)
    try:
        yield
    finally:
        _is_returning.reset(token)


def is_returning() -> bool:
    """Whether this thread is in such a block."""
    return _is_returning.get()


def remember(config: Config, id: str) -> None:
    """The member `id` of this process has left, and will return; empty: it was in no world."""
    with _lock:
        if id:
            _departed.setdefault(_job(config), []).append(id)


def recall(config: Config) -> str:
    """Who returns by joining now, once each; empty: nobody."""
    with _lock:
        ids = _departed.get(_job(config), [])
        return ids.pop(0) if ids else ""


def _job(config: Config) -> tuple[int, str, str]:
    return os.getpid(), config.scheduler, config.job
