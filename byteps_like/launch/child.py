"""One process of a job: started so that it can't outlive the launcher, with its output on pipes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from byteps_like.control.calls.leaving import DRAINED, REPLACED
from byteps_like.launch.lines import LineSplitter, Tail

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ChildPart:
    """Which part of the job a process plays."""

    role: str
    rank: int

    def __str__(self) -> str:
        return self.role if self.role == "scheduler" else f"{self.role} {self.rank}"


@dataclass
class Output:
    """One output stream of a child while it is read."""

    child: Child
    name: str
    splitter: LineSplitter = field(default_factory=LineSplitter)
    tail: Tail = field(default_factory=Tail)
    ended: bool = False

    @property
    def pipe(self) -> int:
        """The descriptor to read."""
        stream = self.child.process.stdout if self.name == "stdout" else self.child.process.stderr
        assert stream is not None
        return stream.fileno()


class Child:
    """A started process. Main thread only: the kernel's parent-death signal goes by the *thread* that forked."""

    def __init__(
        self,
        part: ChildPart,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        pass_fds: Sequence[int] = (),
        cores: Collection[int] = (),
        told: bytes = b"",
    ) -> None:
        """`cores`: those that it may run on; none: as the launcher. `told`: what its standard input begins with, which
        then ends with the launcher; nothing: it has none. Raises OSError when it can't be started."""
        self.part = part
        self.command = tuple(command)
        launcher = os.getpid()
        self.process = subprocess.Popen(
            self.command,
            env=dict(environment),
            stdin=subprocess.PIPE if told else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
            pass_fds=tuple(pass_fds),
            preexec_fn=lambda: _prepare(launcher, cores),
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended
                self.process.stdin.write(told)
        self.stdout = Output(self, "stdout")
        self.stderr = Output(self, "stderr")
        self.exit_status: int | None = None
        """As in subprocess: the exit code, or minus the signal's number; None while it runs."""
        self.drained = False
        """It has left the job, as it was asked to; that is no failure: `exit_status` is 0."""
        self.replace = False
        """So that another one takes its place."""
        self.ended_at: float | None = None
        self.signalled: signal.Signals | None = None
        """The last signal that the launcher itself sent."""

    @property
    def running(self) -> bool:
        """True until `reap` has seen the end."""
        return self.exit_status is None

    def reap(self, now: float) -> None:
        """Records the end of the process; call it when `pidfd` is readable."""
        if self.running and (status := self.process.poll()) is not None:
            self.drained, self.replace = status in (DRAINED, REPLACED), status == REPLACED
            self.exit_status = 0 if self.drained else status
            self.ended_at = now

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its group (its session leader's); nothing if it has ended."""
        if self.running:
            self.signalled = number
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def close(self) -> None:
        """Closes the descriptors; the process must have ended."""
        os.close(self.pidfd)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def _prepare(launcher: int, cores: Collection[int]) -> None:
    """Between fork and exec: asks for SIGKILL at the launcher's death, and dies if it is dead already."""
    if cores:
        os.sched_setaffinity(0, cores)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os.kill(os.getpid(), signal.SIGKILL)
