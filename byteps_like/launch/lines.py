"""From the bytes a process writes to whole lines: progress bars, partial and endless lines included."""

from __future__ import annotations

import re
from collections import deque

LONGEST_LINE = 256 * 1024
"""A line without end is cut here, so that one process can't fill the launcher's memory."""

_CURSOR_CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[78=>]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")


class LineSplitter:
    """Cuts a byte stream into lines. A carriage return starts the line anew, as on a terminal."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends, as a terminal would show them."""
        *complete, rest = (self._rest + data).split(b"\n")
        lines = [shown for line in complete if (shown := as_shown(line)) is not None]
        self._rest = _last_segment(rest)
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return lines

    @property
    def partial(self) -> bytes:
        """What stands on the unfinished line, e.g. a progress bar."""
        return as_shown(self._rest) or b""

    def finish(self) -> list[bytes]:
        """The unfinished line at the end of the stream, if there is one."""
        rest, self._rest = self._rest, b""
        shown = as_shown(rest) if rest else None
        return [] if shown is None else [shown]


def as_shown(line: bytes) -> bytes | None:
    """The line as it stands after its carriage returns, without cursor movements (colours stay).

    None for a line that only moved the cursor or wiped a progress bar.
    """
    body = line.rstrip(b"\r")
    shown = body.rpartition(b"\r")[2]
    if b"\x1b" in shown:
        shown = _CURSOR_CODES.sub(b"", shown)
    return None if body != shown and not shown.strip() else shown


def _last_segment(rest: bytes) -> bytes:
    """Drops what a carriage return has overwritten; one at the very end may belong to a line end yet to come."""
    body = rest.rstrip(b"\r")
    start = body.rfind(b"\r")
    return rest[start:] if start >= 0 else rest


class Tail:
    """The last lines of a stream, bounded in lines and bytes, each with the time it came."""

    def __init__(self, lines: int = 400, longest: int = 4096) -> None:
        self._lines: deque[tuple[float, str]] = deque(maxlen=lines)
        self._longest = longest

    def add(self, line: bytes, now: float) -> None:
        """Remembers a line."""
        text = line[: self._longest].decode(errors="replace")
        self._lines.append((now, text + " …" if len(line) > self._longest else text))

    def lines(self) -> list[tuple[float, str]]:
        """Time and text of the remembered lines, oldest first."""
        return list(self._lines)
