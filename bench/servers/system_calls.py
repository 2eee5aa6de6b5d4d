"""How many system calls processes make, as the kernel's own tracepoint counts them: they run as fast as ever."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

_EVENT = "raw_syscalls:sys_enter"


class SystemCalls:
    """Those of `processes` and all their threads, within the blocks of `counted`. Where there is no perf, or it may
    not, nothing is counted. To be closed, by `total`."""

    def __init__(self, processes: Sequence[int]) -> None:
        self._ends = ExitStack()
        self._report = Path(self._ends.enter_context(tempfile.TemporaryDirectory(prefix="perf-"))) / "report.csv"
        self._orders = self._answers = -1
        self._perf = self._attached(processes) if processes and shutil.which("perf") else None

    def _attached(self, processes: Sequence[int]) -> subprocess.Popen[bytes]:
        told, self._orders = os.pipe()
        self._answers, says = os.pipe()
        command = ["perf", "stat", "-x,", "-e", _EVENT, "-o", str(self._report), "-p", ",".join(map(str, processes))]
        command += ["--delay", "-1", "--control", f"fd:{told},{says}"]
        perf = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(told, says))
        for end in (told, says):
            os.close(end)
        for end in (self._orders, self._answers):
            self._ends.callback(os.close, end)
        return perf

    @contextmanager
    def counted(self) -> Iterator[None]:
        """What they do within the block counts. It begins when perf has said that it counts."""
        self._order(b"enable\n")
        yield
        self._order(b"disable\n")

    def _order(self, text: bytes) -> None:
        if self._perf is not None:
            try:
                os.write(self._orders, text)
            except BrokenPipeError:
                return
            os.read(self._answers, 16)  # or its end, if perf may not

    def total(self) -> int | None:
        """The count; None: there is none."""
        if self._perf is not None:
            self._perf.send_signal(signal.SIGINT)
            self._perf.wait(timeout=30)
        count = read_report(self._report.read_text()) if self._report.exists() else None
        self._ends.close()
        return count


def read_report(text: str) -> int | None:
    """The count in what `perf stat -x,` has written; None: it could not count."""
    for line in text.splitlines():
        fields = line.split(",")
        if _EVENT in fields and fields[0].isdigit():
            return int(fields[0])
    return None
