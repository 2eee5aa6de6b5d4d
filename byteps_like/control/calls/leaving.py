"""How a process ends that was asked to leave its job: so that who has started it takes that for neither a failure nor
the end of the job. Whoever doesn't ask for these exit codes gets 0."""

from __future__ import annotations

import os

from byteps_like.worker.api import Dismissal

WANTED = "_BYTEPS_LIKE_DRAINED_CODES"
"""Variable by which a launcher asks for"""
DRAINED, REPLACED = 217, 218
"""these: no other process takes its place, or another one may."""


def exit_code(dismissal: Dismissal | None) -> int:
    """Of a process that has left in order; None: by itself."""
    if dismissal is None or WANTED not in os.environ:
        return 0
    return REPLACED if dismissal.replace else DRAINED
