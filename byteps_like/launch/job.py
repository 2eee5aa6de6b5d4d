"""One job on this host, from its first process to its last: a single-threaded loop over pipes, pidfds and signals."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from byteps_like.config import Config
from byteps_like.control.hosts.address import join_address
from byteps_like.control.records.sqlite import network_of
from byteps_like.errors import SystemCallError
from byteps_like.launch import environment
from byteps_like.launch.child import Child, ChildPart, Output
from byteps_like.launch.display import Display
from byteps_like.launch.elastic.crew import Crew
from byteps_like.launch.ending import failure
from byteps_like.launch.ending.stopping import Stopping, Why, steps_for
from byteps_like.launch.ending.verdict import JobEnding, verdict
from byteps_like.launch.hosts import gpus
from byteps_like.launch.jobdir import JobDirectory
from byteps_like.launch.monitor import Monitor
from byteps_like.launch.obituary import Obituary
from byteps_like.launch.options import RunOptions
from byteps_like.launch.replacing import Replacing
from byteps_like.launch.service import scheduler_command, server_command

READ_BYTES = 1 << 16
LIVE_SECONDS = 0.1
IDLE_SECONDS = 1.0
MonitorFactory = Callable[[str, Path, str], Monitor]
"""Makes the source of the summary line from (scheduler address, secret file, job)."""


class Job:
    """Runs the processes of `options` and returns the job's exit code. Main thread; use `run` once."""

    def __init__(
        self, options: RunOptions, directory: JobDirectory, display: Display, make_monitor: MonitorFactory | None
    ) -> None:
        self._options = options
        self._display = display
        self._make_monitor = make_monitor
        self._crew = None
        if options.elastic is not None:
            self._crew = Crew(options.elastic, options.workers, options.most_deaths)
        self._shape = environment.JobShape(
            job=options.job or f"run-{directory.path.name.rpartition('-')[2]}",
            workers=options.workers,
            servers=options.servers,
            shards=options.shards,
            secret_file=directory.secret_file,
            scheduler="127.0.0.1:0" if self._crew is None else join_address(self._crew.listening_host(), 0),
            elastic=self._crew is not None,
            scheduler_state=options.state or ("" if network_of(directory.path) else str(directory.path / "scheduler")),
        )
        self._selector = selectors.DefaultSelector()
        self._workers: list[Child] = []
        self._services: list[Child] = []
        self._logs: dict[ChildPart, BinaryIO] = {}
        self._monitor: Monitor | None = None
        self._stopping: Stopping | None = None
        self._signal: signal.Signals | None = None
        self._started = time.monotonic()
        self._address = b""
        self._replacing = Replacing(options.most_deaths)
        self._obituary = Obituary()
        self._attendant = options.attendant

    def run(self) -> int:
        """Starts everything, waits for the end and says why it came, last of all.

        Raises BrokenPipeError, with everything ended, if nobody reads our output any more.
        """
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._selector)
            stack.enter_context(self._signals())
            stack.callback(self._close)
            self._start_scheduler()
            while not self._step():
                pass
        failures = [found for child in self._children() if (found := failure.judge(child)) is not None]
        failures += self._crew.replaced if self._crew is not None else ()
        why = self._stopping.why if self._stopping is not None else Why.DONE
        code = verdict(JobEnding(why, failures, self._signal), self._options, self._display.note)
        self._display.flush()
        return code

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_scheduler(self) -> None:
        """The first, or another one in place of one that died, at its address and from where it stopped."""
        self._address = b""
        read_end, write_end = os.pipe()
        deaths = self._obituary.open()
        try:
            command = scheduler_command(write_end, deaths)
            self._spawn(ChildPart("scheduler", 0), command, pass_fds=(write_end, deaths))
        finally:
            os.close(write_end)
            os.close(deaths)
        self._selector.register(read_end, selectors.EVENT_READ, self._on_address)

    def _on_address(self, descriptor: int) -> None:
        """The scheduler has written its address, or died before it could: then its end is the first failure."""
        data = os.read(descriptor, 4096)
        self._address += data
        if data and b"\n" not in self._address:
            return
        self._selector.unregister(descriptor)
        os.close(descriptor)
        if self._address.endswith(b"\n") and self._stopping is None and not self._workers:
            self._shape = replace(self._shape, scheduler=self._address.decode().strip())
            self._start_members()

    def _start_members(self) -> None:
        for rank in range(self._options.servers):
            self._spawn(ChildPart("server", rank), server_command())
        if self._crew is not None:
            self._fill_slots(self._crew)
            self._crew.start()
        else:
            for rank in range(self._options.workers):
                self._spawn(ChildPart("worker", rank), self._options.command)
        if self._options.place is not None:
            return
        if not self._options.quiet:
            self._say_how_to_attach()
        # Threads only from here on: every process has been forked.
        if self._make_monitor is not None:
            self._monitor = self._make_monitor(self._shape.scheduler, self._shape.secret_file, self._shape.job)
            self._monitor.start()

    def _fill_slots(self, crew: Crew) -> None:
        """Starts workers where there is room; of those that they replace it is remembered how they failed."""
        for part in crew.due(time.monotonic(), self._attendant.held):
            for before in [child for child in self._workers if child.part == part]:
                if (found := failure.judge(before)) is not None:
                    crew.replaced.append(found)
                self._workers.remove(before)
                self._let_go(before)
            self._spawn(part, self._options.command)

    def _follow_crew(self, crew: Crew) -> None:
        gone = crew.look()
        for child in self._workers:
            if child.part in gone:
                self._display.note(f"byteps-like: {child.part} ends: its host is not there any more")
                child.signal(signal.SIGTERM)
        self._fill_slots(crew)

    def _say_how_to_attach(self) -> None:
        shape = self._shape
        secret = f"BYTEPS_LIKE_SECRET_FILE={shlex.quote(str(shape.secret_file))}"
        if Config.partly_from_env(("tls",), os.environ | self._options.environment).tls == "on":
            secret = f"BYTEPS_LIKE_TLS=on {secret}"
        where = f"--scheduler {shape.scheduler} --job {shlex.quote(shape.job)}"
        self._display.note(f"byteps-like: to monitor the job: {secret} byteps-like status {where}")
        self._display.note(f"byteps-like: to record its steps: {secret} byteps-like timeline record trace {where}")

    def _spawn(self, part: ChildPart, command: list[str], pass_fds: tuple[int, ...] = ()) -> None:
        base = os.environ | self._options.environment
        if part.role == "worker":
            variables = environment.of_worker(base, self._shape, part.rank, self._options.columns)
        else:
            variables = environment.of_service(base, self._shape, part.role, part.rank)
        if self._options.place is not None:
            command, variables = self._options.place(part, command, variables)
        told = b""
        if self._crew is not None and part.role == "worker":
            command, told = self._crew.order(part, command, variables)
        try:
            cores = self._cores(part, variables)
            child = Child(part, command, variables, pass_fds=pass_fds, cores=cores, told=told)
        except OSError as error:
            raise SystemCallError(f"can't start {part} ({shlex.join(command)}): {error.strerror}") from error
        (self._workers if part.role == "worker" else self._services).append(child)
        self._attendant.started(child, time.monotonic())
        self._obituary.began(child.process.pid)
        if self._options.log_dir is not None:
            name = f"{part.role}-{part.rank}.log" if part.role != "scheduler" else "scheduler.log"
            before = self._logs.pop(part, None)
            if before is not None:
                before.close()
            self._logs[part] = (self._options.log_dir / name).open("wb" if before is None else "ab")
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        for output in (child.stdout, child.stderr):
            os.set_blocking(output.pipe, False)
            self._selector.register(output.pipe, selectors.EVENT_READ, output)

    def _cores(self, part: ChildPart, variables: Mapping[str, str]) -> frozenset[int]:
        """Of a worker on a host with GPUs: those beside its own."""
        if part.role != "worker" or not self._options.pin or self._options.place is not None:
            return frozenset()
        allowed = frozenset(os.sched_getaffinity(0))
        return gpus.cores_for(part.rank, gpus.visible(gpus.cards(), variables), allowed)

    # -- the loop ------------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """Handles what has happened; True when the job is over."""
        for key, _ in self._selector.select(self._patience()):
            if isinstance(key.data, Output):
                self._read(key.data)
            elif isinstance(key.data, Child):
                self._on_end(key.data)
            elif callable(key.data):
                key.data(key.fd)
        now = time.monotonic()
        if self._stopping is None:
            if self._attendant.act(now):
                self._stop(Why.ENOUGH)
            self._replace_services()
            if self._crew is not None and self._workers:
                self._follow_crew(self._crew)
        over = self._decide(now)
        self._display.live(self._rows(), self._summary(now))
        self._display.flush()
        return over

    def _patience(self) -> float:
        now = time.monotonic()
        ends = [now + IDLE_SECONDS]
        if (next_at := self._attendant.next_at()) is not None:
            ends.append(next_at)
        if self._stopping is not None:
            ends.append(self._stopping.deadline)
        elif self._options.timeout is not None:
            ends.append(self._started + self._options.timeout)
        return max(0.0, min(ends) - now)

    def _read(self, output: Output) -> bool:
        """Passes on what a process wrote; False when there is nothing (more) to read."""
        if output.ended:
            return False  # drained at the end of its process, in the same batch of events
        try:
            data = os.read(output.pipe, READ_BYTES)
        except BlockingIOError:
            return False
        part = output.child.part
        if log := self._logs.get(part):
            log.write(data)
            log.flush()
        self._show(output, output.splitter.feed(data) if data else output.splitter.finish())
        if not data:
            output.ended = True
            self._selector.unregister(output.pipe)
        return bool(data)

    def _show(self, output: Output, lines: list[bytes]) -> None:
        now = time.monotonic()
        for line in lines:
            output.tail.add(line, now)
            if self._attendant.line(output.child, line, now):
                self._display.line(output.child.part, output.name, line)

    def _on_end(self, child: Child) -> None:
        for output in (child.stdout, child.stderr):
            while self._read(output):
                pass
            self._show(output, output.splitter.finish())
        child.reap(time.monotonic())
        self._obituary.ended(child.process.pid)
        self._selector.unregister(child.pidfd)
        self._attendant.ended(child, time.monotonic())
        if child.part.role != "worker":
            if self._may_replace(child):
                self._make_room(child)
            elif child.drained and self._stopping is None:
                self._display.note(f"byteps-like: {child.part} left, as it was asked to")
        elif self._crew is not None and self._stopping is None:
            self._leave_crew(self._crew, child)

    def _leave_crew(self, crew: Crew, child: Child) -> None:
        text = crew.ended(child, time.monotonic())
        if text:
            self._display.note(f"byteps-like: {text}")

    def _may_replace(self, dead: Child) -> bool:
        """A service, while there is a job that can go on with another one, and if they don't die one after the other:
        the scheduler where its state is kept, a server where workers join the next world when it is gone."""
        if not self._workers or self._stopping is not None:
            return False
        if dead.replace:
            self._replacing.left(dead.part)
        if dead.replace or not dead.exit_status:
            return dead.replace
        lasts = self._crew is not None if dead.part.role == "server" else bool(self._shape.scheduler_state)
        return lasts and self._replacing.died(dead.part, time.monotonic())

    def _make_room(self, dead: Child) -> None:
        then = "another one takes its place" if dead.part.role == "server" else "another one goes on where it stopped"
        how = "left, as it was asked to" if dead.drained else f"died ({failure.in_words(dead.exit_status or 0)})"
        name = "the scheduler" if dead.part.role == "scheduler" else str(dead.part)
        self._display.note(f"byteps-like: {name} {how}; {then}")
        self._services.remove(dead)
        self._let_go(dead)

    def _let_go(self, dead: Child) -> None:
        """What it has started may hold its streams still: nobody reads them any more."""
        for output in (dead.stdout, dead.stderr):
            if not output.ended:
                output.ended = True
                self._selector.unregister(output.pipe)
        dead.close()

    def _replace_services(self) -> None:
        for part in self._replacing.due(self._attendant.held):
            if part.role == "server":
                self._spawn(part, server_command())
            else:
                self._start_scheduler()

    def _decide(self, now: float) -> bool:
        if self._stopping is None:
            self._look_for_an_end(now)
        return self._stopping is not None and self._stopping.advance(self._workers, self._services, now)

    def _look_for_an_end(self, now: float) -> None:
        if self._have_workers_failed() or any(child.exit_status for child in self._services):
            self._stop(Why.FAILED)
        elif self._workers and not any(child.running for child in self._workers):
            self._stop(Why.DONE)
        elif any(not child.running for child in self._services if child.part.role == "scheduler") and not self._workers:
            self._stop(Why.FAILED)
        elif self._options.timeout is not None and now >= self._started + self._options.timeout:
            self._stop(Why.TIMED_OUT)

    def _have_workers_failed(self) -> bool:
        failed = [child for child in self._workers if child.exit_status]
        if self._crew is None:
            return len(failed) > self._options.expendable
        return self._crew.gave_up or (bool(failed) and len(failed) == len(self._workers))

    def _stop(self, why: Why, number: signal.Signals = signal.SIGINT) -> None:
        steps = steps_for(why, self._options.grace, self._options.settle, number)
        self._stopping = Stopping(why, steps, time.monotonic())

    def _children(self) -> Iterator[Child]:
        yield from self._workers
        yield from self._services

    # -- what is shown -------------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[ChildPart, bytes]]:
        running = [child for child in self._children() if child.running]
        outputs = [output for child in running for output in (child.stdout, child.stderr)]
        return [(output.child.part, output.splitter.partial) for output in outputs if output.splitter.partial.strip()]

    def _summary(self, now: float) -> str:
        if self._options.quiet:
            return ""
        text = self._monitor.text if self._monitor is not None and self._monitor.text else "starting"
        state = text if self._stopping is None else f"ending ({self._stopping.why.value})"
        return f"byteps-like · {now - self._started:.0f} s · {state}"

    # -- signals and the end -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turns signals into events of the loop while it runs."""
        wake, woken = socket.socketpair()
        with wake, woken:
            wake.setblocking(False)
            woken.setblocking(False)
            previous_fd = signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
            numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
            previous = {number: signal.signal(number, lambda *_: None) for number in numbers}
            self._selector.register(woken, selectors.EVENT_READ, lambda _: self._on_signals(woken))
            try:
                yield
            finally:
                for number, handler in previous.items():
                    signal.signal(number, handler)
                signal.set_wakeup_fd(previous_fd)

    def _on_signals(self, woken: socket.socket) -> None:
        for number in woken.recv(64):
            if number not in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                continue
            if self._signal is not None and self._stopping is not None:
                self._stopping.hurry(time.monotonic())
                continue
            self._signal = signal.Signals(number)
            self._display.note("byteps-like: ending the job; interrupt again to kill it at once")
            if self._stopping is None or self._stopping.why is Why.DONE:
                self._stop(Why.INTERRUPTED, self._signal)

    def _close(self) -> None:
        if self._monitor is not None:
            self._monitor.stop()
        if self._crew is not None:
            self._crew.close()
        for child in self._children():
            if child.running:
                child.process.kill()
                child.process.wait()
            child.close()
        self._obituary.close()
        for log in self._logs.values():
            log.close()
        self._display.close()
