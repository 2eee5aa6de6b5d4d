"""`byteps-like run`: puts directory, display and job together."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from byteps_like.config import ENCRYPTION, Config
from byteps_like.errors import InvalidArgumentError
from byteps_like.launch import environment
from byteps_like.launch.child import ChildPart
from byteps_like.launch.display import Display, TerminalDisplay, open_display, terminal_width
from byteps_like.launch.job import Job
from byteps_like.launch.jobdir import JobDirectory
from byteps_like.launch.monitor import Monitor
from byteps_like.launch.options import RunOptions
from byteps_like.timeline.parts import SUFFIX
from byteps_like.timeline.recorder import parts_directory

_MOST_MERGED = 16 << 20
"""Bytes of a timeline that are merged at the end of a job: some seconds' work."""


def run_job(options: RunOptions) -> int:
    """Runs one job and returns its exit code; blocks, main thread. See `byteps-like run --help` for the codes."""
    try:
        return _run_job(options)
    except BrokenPipeError:  # who read our output has gone: what is still buffered must not fail again at the exit
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            os.dup2(nowhere, stream.fileno())
        return 128 + signal.SIGPIPE


def _run_job(options: RunOptions) -> int:
    if shutil.which(options.command[0]) is None:
        print(f"byteps-like: there is no program {options.command[0]!r}", file=sys.stderr)
        return 127
    workers = options.workers if options.elastic is None else options.elastic.most
    parts = [ChildPart("worker", rank) for rank in range(workers)]
    parts += [ChildPart("server", rank) for rank in range(options.servers)]
    parts += [ChildPart("scheduler", 0)]
    display = open_display(parts, prefix=options.prefix)
    if sys.stdout.isatty():
        prefix_columns = max(len(str(part)) for part in parts) + 3 if options.prefix else 0
        options = replace(options, columns=terminal_width() - prefix_columns - 1)
    if not options.quiet:
        _say_threads(display, options)
    with JobDirectory() as directory, _timeline(options):
        watches = isinstance(display, TerminalDisplay) and not options.quiet
        monitor = partial(_monitor, os.environ | options.environment)
        return Job(options, directory, display, monitor if watches else None).run()


@contextmanager
def _timeline(options: RunOptions) -> Iterator[None]:
    """Of a job that is recorded: makes room for its parts, and one trace of them at the end."""
    environ = os.environ | options.environment
    path = environ.get("BYTEPS_LIKE_TRACE", "")
    if not path:
        yield
        return
    parts = parts_directory(path)
    for old in parts.glob(f"*{SUFFIX}"):
        old.unlink()
    try:
        yield
    finally:
        print(f"byteps-like: {_merge(path, parts)}", file=sys.stderr)


def _merge(path: str, parts: Path) -> str:
    from byteps_like.timeline.perfetto import merged, write  # by NumPy, which no other job has to wait for

    target = parts / "trace.json" if parts == Path(path) else Path(path)
    try:
        if sum(part.stat().st_size for part in parts.glob(f"*{SUFFIX}")) > _MOST_MERGED:
            return f"a long timeline in {parts}: byteps-like timeline merge {parts} -o {target}"
        write(merged(parts), target)
    except (OSError, InvalidArgumentError) as error:
        return f"no timeline: {error}"
    return f"timeline in {target}: byteps-like timeline report {path}"


def _say_threads(display: Display, options: RunOptions) -> None:
    if "OMP_NUM_THREADS" in os.environ or "OMP_NUM_THREADS" in options.environment:
        return
    threads = environment.threads_per_worker(options.workers)
    display.note(
        f"byteps-like: OMP_NUM_THREADS={threads} for each worker ({environment.cores()} cores, {options.workers} "
        "workers); set it to change this"
    )


def _monitor(environ: Mapping[str, str], scheduler: str, secret_file: Path, job: str) -> Monitor:
    config = Config.partly_from_env(ENCRYPTION, environ)
    return Monitor(replace(config, scheduler=scheduler, secret_file=str(secret_file), job=job))
