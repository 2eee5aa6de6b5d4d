"""The exit code of a job that has ended, and what is said of it last."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from byteps_like.launch.ending import failure
from byteps_like.launch.ending.stopping import Why
from byteps_like.launch.options import RunOptions

TIMEOUT_EXIT_CODE = 124


@dataclass(frozen=True)
class JobEnding:
    """Why a job has ended, and who has failed in it, those among them whose places others took."""

    why: Why
    failures: Sequence[failure.Failure]
    signal: signal.Signals | None = None
    """That the launcher got."""


def verdict(ending: JobEnding, options: RunOptions, say: Callable[[str], None]) -> int:
    """Says why the job has ended, if that needs to be said, and returns its exit code."""
    why, failures = ending.why, ending.failures
    if why is Why.INTERRUPTED and ending.signal is not None:
        say(f"byteps-like: ended by {failure.signal_name(ending.signal)}")
        return 128 + ending.signal
    if why is Why.TIMED_OUT:
        say(f"byteps-like: not finished after {options.timeout:g} s (--timeout)")
        return TIMEOUT_EXIT_CODE
    if why is Why.ENOUGH:
        return 0
    first = failure.root_cause(failures)
    if why is Why.DONE and 0 < len(failures) <= options.expendable and _are_of_workers(failures):
        return _outlived(failures, options, say)
    if first is None and why is Why.DONE:
        return 0
    if first is None:
        say("byteps-like: the job ended early, although no process reported a failure")
        return 1
    say(failure.report(first, failures, colour=sys.stderr.isatty()))
    return first.exit_code or 1


def _outlived(failures: Sequence[failure.Failure], options: RunOptions, say: Callable[[str], None]) -> int:
    """The job is done, although these have failed; its exit code."""
    for one in failures:
        if options.elastic is not None and one.consequence:
            continue  # a spare, for which there was nothing to do
        say(f"byteps-like: {one.part} failed ({one.how}: {one.cause[:160]}); the others finished")
    return 0


def _are_of_workers(failures: Sequence[failure.Failure]) -> bool:
    return all(one.part.startswith("worker") for one in failures)
