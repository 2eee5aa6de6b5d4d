"""Logging: stdlib loggers under "byteps_like", one handler that says which member speaks. Nothing happens on import."""

from __future__ import annotations

import logging
import sys
import time
from typing import TextIO

TRACE = 5
"""Below DEBUG: once per partition. DEBUG: once per step. INFO: once per epoch. WARNING: act. ERROR: the job failed."""

_LEVELS = {"TRACE": TRACE, "FATAL": logging.CRITICAL}
_NATIVE_LEVELS = (TRACE, logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)


class _Prefix(logging.Formatter):
    """`12:30:01.250 worker 2 W text`: short enough to stay readable when a launcher puts its own prefix before it."""

    def __init__(self, member: str) -> None:
        super().__init__()
        self._member = member

    def format(self, record: logging.LogRecord) -> str:
        stamp = f"{time.strftime('%H:%M:%S', time.localtime(record.created))}.{int(record.msecs):03d}"
        text = f"{stamp} {self._member} {record.levelname[0]} {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


class _Handler(logging.StreamHandler[TextIO]):
    """Our one handler, found again by its type when set-up runs a second time."""


def set_up(member: str, level: str = "WARNING", stream: TextIO | None = None) -> None:
    """Sends this package's records to `stream` (default: stderr), each under the name of `member`, such as "worker 2".

    Call it again when the rank is known: the handler is replaced, not added. Records do not reach the root logger.
    """
    logger = logging.getLogger("byteps_like")
    for old in [handler for handler in logger.handlers if isinstance(handler, _Handler)]:
        logger.removeHandler(old)
    logging.addLevelName(TRACE, "TRACE")
    handler = _Handler(stream or sys.stderr)
    handler.setFormatter(_Prefix(member))
    logger.addHandler(handler)
    logger.setLevel(_LEVELS.get(level.upper(), level.upper()))
    logger.propagate = False


def native_record(level: int, text: str) -> None:
    """Passes on a record of the C++ core (0 trace, 1 debug, 2 info, 3 warning, 4 error, 5 fatal)."""
    logging.getLogger("byteps_like.native").log(_NATIVE_LEVELS[min(max(level, 0), 5)], "%s", text)
