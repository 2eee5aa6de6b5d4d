"""Which process failed first, and the report that says so.

When one worker dies the others fail too, with PeerLostError or ShutdownError, and may well be gone from the process
table before it. The failure shown is therefore the earliest one that is not such a consequence.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from byteps_like.launch.child import Child

_TRACEBACK = "Traceback (most recent call last):"
_CHAIN = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_EXCEPTION = re.compile(r"^(?:\[rank\d+\]: ?)?(?P<name>[A-Za-z_][\w.]*)(?::|$)")
_CONSEQUENCES = {"PeerLostError", "ShutdownError"}
_LATE = re.compile(r"^(?:\[rank\d+\]: ?)?[\w.]*RefusedError: job .* has ended; ")
"""Of a worker that has come when the job was over."""
_SHOWN_LINES = 40
_LINES_AFTER_FRAME = 30
_LAUNCHER_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGKILL}


@dataclass(frozen=True)
class Failure:
    """One process that did not end well. `excerpt` is its traceback, or the last it wrote."""

    part: str
    pid: int
    exit_status: int
    exit_code: int
    at: float
    consequence: bool
    excerpt: tuple[str, ...]

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return in_words(self.exit_status)

    @property
    def cause(self) -> str:
        """The exception that ended it; without one, the last line that it wrote."""
        frames = [index for index, line in enumerate(self.excerpt) if line.lstrip().startswith('File "')]
        for line in self.excerpt[frames[-1] :] if frames else ():
            if _EXCEPTION.match(line):
                return line.strip()
        return next((line.strip() for line in reversed(self.excerpt) if line.strip()), "")

    @property
    def came_too_late(self) -> bool:
        """Whether there was no job any more that it could join."""
        return _LATE.match(self.cause) is not None


def in_words(status: int) -> str:
    """How a process ended, in words; `status` as in subprocess."""
    return f"exit code {status}" if status >= 0 else f"killed by {signal_name(-status)}"


def signal_name(number: int) -> str:
    """E.g. "signal 9 (SIGKILL)"; the number alone for one without a name."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def exit_code_of(status: int) -> int:
    """What a shell would report: 128 + signal for a process that a signal ended."""
    return 128 - status if status < 0 else status


def judge(child: Child) -> Failure | None:
    """The failure of an ended child; None when it ended well, or only because the launcher ended it."""
    status = child.exit_status
    if status is None or child.ended_at is None or status == 0:
        return None
    lines = child.stderr.tail.lines()
    texts = [text for _, text in lines]
    start = last_traceback(texts)
    ended_by_us = child.signalled is not None and (status >= 0 or -status in _LAUNCHER_SIGNALS)
    if start is None and ended_by_us:
        return None
    code = 1 if ended_by_us else exit_code_of(status)
    if start is None:
        # A service that ends with code 1, without a traceback, says no more than that the job failed.
        consequence = child.part.role != "worker" and status == 1
        shown, at = texts[-20:], child.ended_at
        shown = shown or [text for _, text in child.stdout.tail.lines()][-5:]
    else:
        shown, at, consequence = _abridged(texts[start:]), lines[start][0], _is_consequence(texts[start:])
    return Failure(str(child.part), child.process.pid, status, code, at, consequence, tuple(shown))


def root_cause(failures: Sequence[Failure]) -> Failure | None:
    """The earliest failure that is not the consequence of another; of mere consequences, the earliest."""
    return min(failures, key=lambda failure: (failure.consequence, failure.at), default=None)


def last_traceback(lines: Sequence[str]) -> int | None:
    """Where the traceback that ended a process begins, with the exceptions it is chained to; None without one.

    One that much was written after is taken for a logged and handled one.
    """
    start = None
    chained = False
    last_frame = 0
    for index, text in enumerate(lines):
        if text.strip() in _CHAIN:
            chained = True
        elif text.rstrip().endswith(_TRACEBACK):
            start = start if chained and start is not None else index
            chained = False
        elif text.lstrip().startswith('File "'):
            last_frame = index
    return start if start is not None and len(lines) - last_frame <= _LINES_AFTER_FRAME else None


def _is_consequence(trace: Sequence[str]) -> bool:
    """True when the first exception of the chain came from the loss of another process."""
    for text in trace:
        match = _EXCEPTION.match(text)
        if match and not text.endswith(_TRACEBACK):
            return match["name"].rpartition(".")[2] in _CONSEQUENCES or _LATE.match(text) is not None
    return False


def _abridged(lines: list[str]) -> list[str]:
    if len(lines) <= _SHOWN_LINES:
        return lines
    head = _SHOWN_LINES // 4
    tail = _SHOWN_LINES - head
    return [*lines[:head], f"  … {len(lines) - _SHOWN_LINES} lines left out …", *lines[-tail:]]


def report(first: Failure, others: Sequence[Failure], *, colour: bool) -> str:
    """What is printed last: who failed, how, its traceback, and who failed after it."""
    bold, reset = ("\x1b[1;31m", "\x1b[0m") if colour else ("", "")
    lines = ["", f"{bold}{first.part} failed first: {first.how} (pid {first.pid}){reset}"]
    lines += [f"  {line}".rstrip() for line in first.excerpt] or ["  (it wrote nothing)"]
    after = sorted((other for other in others if other is not first), key=lambda other: other.at)
    lines += [f"after it: {other.part}: {other.how}: {other.cause[:160]}" for other in after]
    return "\n".join(lines)
