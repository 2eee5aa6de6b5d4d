"""Where a job's output goes: each line after its role and rank, a live region below it on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import BinaryIO, Protocol

from rich.cells import cell_len, set_cell_size

from byteps_like.launch.child import ChildPart

_WORKER_COLOURS = (36, 32, 33, 35, 34, 96, 92, 93, 95, 94)
_ROLE_COLOURS = {"server": 90, "scheduler": 90}
_RESET = b"\x1b[0m"
MOST_ROWS = 8


class Display(Protocol):
    """Shows what the processes write. Main thread; calls may block as long as whoever reads our output does."""

    def line(self, part: ChildPart, stream: str, text: bytes) -> None:
        """One whole line of a process's "stdout" or "stderr"."""

    def note(self, text: str) -> None:
        """A message of the launcher's own."""

    def live(self, rows: Sequence[tuple[ChildPart, bytes]], summary: str) -> None:
        """The unfinished lines (progress bars) and the summary as they stand now."""

    def flush(self) -> None:
        """Makes everything visible."""

    def close(self) -> None:
        """Takes the live region away."""


class Prefixes:
    """Aligned, coloured names of the processes. Without `enabled`, lines pass as they are."""

    def __init__(self, parts: Sequence[ChildPart], *, enabled: bool, colour: bool) -> None:
        self._width = max((len(str(part)) for part in parts), default=0)
        self._enabled = enabled
        self._colour = colour

    def text(self, part: ChildPart) -> str:
        """The prefix without colour."""
        return f"{part!s:<{self._width}} │ " if self._enabled else ""

    def apply(self, part: ChildPart, line: bytes) -> bytes:
        """The line after its prefix, its colours ended, with a line end."""
        head = self.text(part).encode()
        if self._colour and head:
            code = _ROLE_COLOURS.get(part.role, _WORKER_COLOURS[part.rank % len(_WORKER_COLOURS)])
            head = b"\x1b[%dm%b\x1b[0m" % (code, head)
        return head + line + (_RESET if b"\x1b" in line else b"") + b"\n"


class PlainDisplay:
    """For files and pipes: stdout to stdout, stderr and the launcher's own lines to stderr; nothing that passes."""

    def __init__(self, prefixes: Prefixes, out: BinaryIO, err: BinaryIO) -> None:
        self._prefixes = prefixes
        self._streams = {"stdout": out, "stderr": err}
        self._last = out

    def line(self, part: ChildPart, stream: str, text: bytes) -> None:
        """Writes the line to the stream it came from."""
        self._write(self._streams[stream], self._prefixes.apply(part, text))

    def note(self, text: str) -> None:
        """Writes to stderr."""
        self._write(self._streams["stderr"], text.encode() + b"\n")

    def live(self, rows: Sequence[tuple[ChildPart, bytes]], summary: str) -> None:
        """Shows nothing: a log holds whole lines, each once; `byteps-like status` tells how the job stands."""

    def _write(self, stream: BinaryIO, data: bytes) -> None:
        if stream is not self._last:  # both may be the same file: keep the order
            self._last.flush()
            self._last = stream
        stream.write(data)

    def flush(self) -> None:
        """Flushes the stream written last; the other one is flushed already."""
        self._last.flush()

    def close(self) -> None:
        """Flushes."""
        self.flush()


class TerminalDisplay:
    """For a terminal: lines scroll above a region with one row for each progress bar and the summary."""

    def __init__(self, prefixes: Prefixes, out: BinaryIO, width: Callable[[], int], *, colour: bool) -> None:
        self._prefixes = prefixes
        self._out = out
        self._width = width
        self._colour = colour
        self._pending: list[bytes] = []
        self._drawn: list[bytes] = []
        self._region: list[bytes] = []

    def line(self, part: ChildPart, stream: str, text: bytes) -> None:
        """Puts the line above the region at the next flush."""
        del stream
        self._pending.append(self._prefixes.apply(part, text))

    def note(self, text: str) -> None:
        """Puts a bold line above the region at the next flush."""
        self._pending.append(self._styled(text, 1) + b"\n")

    def live(self, rows: Sequence[tuple[ChildPart, bytes]], summary: str) -> None:
        """Sets the region's content for the next flush."""
        width = self._width() - 1
        shown = rows[:MOST_ROWS]
        region = [self._row(part, text, width) for part, text in shown]
        if len(rows) > len(shown):
            region.append(self._styled(f"… and {len(rows) - len(shown)} more", 2))
        if summary:
            region.append(self._styled(_cropped(summary, width), 7))
        self._region = region

    def flush(self) -> None:
        """Draws what changed in one write."""
        if self._pending or self._region != self._drawn:
            body = self._erase() + b"".join(self._pending) + b"\n".join(self._region)
            self._pending.clear()
            self._drawn = self._region
            self._out.write(body)
        self._out.flush()

    def close(self) -> None:
        """Erases the region."""
        self._region = []
        self.flush()

    def _erase(self) -> bytes:
        return b"\r" + b"\x1b[A" * (len(self._drawn) - 1) + b"\x1b[J" if self._drawn else b""

    def _row(self, part: ChildPart, text: bytes, width: int) -> bytes:
        plain = _without_colours(text.decode(errors="replace"))
        return self._prefixes.apply(part, _cropped(plain, width - len(self._prefixes.text(part))).encode())[:-1]

    def _styled(self, text: str, code: int) -> bytes:
        return b"\x1b[%dm%b\x1b[0m" % (code, text.encode()) if self._colour else text.encode()


def _without_colours(text: str) -> str:
    if "\x1b" not in text:
        return text
    from rich.text import Text

    return Text.from_ansi(text).plain


def _cropped(text: str, width: int) -> str:
    text = text.expandtabs()
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def open_display(parts: Sequence[ChildPart], *, prefix: bool) -> Display:
    """The display that fits this process's stdout and stderr. `NO_COLOR` and `TERM=dumb` are heeded."""
    terminal = sys.stdout.isatty() and sys.stderr.isatty()
    colour = terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
    prefixes = Prefixes(parts, enabled=prefix, colour=colour)
    if terminal and os.environ.get("TERM") != "dumb":
        return TerminalDisplay(prefixes, sys.stdout.buffer, terminal_width, colour=colour)
    return PlainDisplay(prefixes, sys.stdout.buffer, sys.stderr.buffer)


def terminal_width() -> int:
    """Columns of the terminal at stdout; 80 where there is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except OSError:
        return 80
