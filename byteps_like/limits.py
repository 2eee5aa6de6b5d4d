"""Limits of this process that members of large jobs would meet."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

_MOST_FILES = 1 << 20
"""Beyond it some programs, which a user may start from here, take minutes to close what isn't open."""


def raise_open_files() -> int:
    """Raises the soft limit of open files to the hard one, 1,048,576 at most, and returns what is in force. Idempotent.

    The usual soft limit of 1,024 is there for `select()`, which nothing of ours uses; a scheduler needs a descriptor
    per member, a server up to four per worker and shard, a worker up to four per shard and two per other worker.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return soft if soft != resource.RLIM_INFINITY else _MOST_FILES
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return most
