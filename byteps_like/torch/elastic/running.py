"""`run`: calls a training function again whenever the world has changed."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, overload

from byteps_like.control.calls.leaving import exit_code
from byteps_like.errors import (
    CapacityError,
    CorruptError,
    DeviceError,
    MismatchError,
    OperationError,
    SystemCallError,
)
from byteps_like.store.saving.carrying import ValuesLostError
from byteps_like.torch.elastic.agreement import dismissal
from byteps_like.torch.elastic.carrying import Carried, lost_with_world, reopened
from byteps_like.torch.elastic.catching_up.arriving import come_in
from byteps_like.torch.elastic.catching_up.feeding import feeding
from byteps_like.torch.elastic.cuts.loading import load
from byteps_like.torch.elastic.cuts.saver import Saver
from byteps_like.torch.elastic.interrupts import DrainedExit, HostsUpdatedInterrupt
from byteps_like.torch.elastic.rejoining import rejoin
from byteps_like.torch.elastic.state import State, duties_of
from byteps_like.torch.elastic.termination import leaves_when_terminated
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.membership import shutdown
from byteps_like.torch.ops.objects import allgather_object

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Train = Callable[..., Result]

_TO_STAY = (MismatchError, CapacityError, DeviceError)
"""What the next world would meet again: the script's mistakes, and what the host lacks."""

_OF_FILES = (CorruptError, SystemCallError)
"""The same, before the function is called for the first time: what a cut lacks."""

_MOST_IDLE = 5
"""Worlds in a row in which nothing is committed: the next one would fail in the same way."""


_NO_CUT = ", and there is no cut to go on from: see save_to= of bps.elastic.run"

Directory = str | os.PathLike[str]


@overload
def run(train: Train[Result]) -> Train[Result]: ...


@overload
def run(
    train: None = ...,
    *,
    reset_limit: int | None = ...,
    save_to: Directory | None = ...,
    save_every: int | None = ...,
    keep: int = ...,
) -> Callable[[Train[Result]], Train[Result]]: ...


def run(
    train: Train[Any] | None = None,
    *,
    reset_limit: int | None = None,
    save_to: Directory | None = None,
    save_every: int | None = None,
    keep: int = 2,
) -> Any:
    """Decorates a training function `train(state, ...)` that goes on when workers come and go.

    First the state is synchronized: all ranks take that of rank 0. If an operation fails since a member was lost, the
    state of the last commit is restored; if `commit()` finds that others wait to join, the state stays. In both cases
    this process leaves, joins the next world, calls the state's reset callbacks, synchronizes the state and calls
    `train` again, with the same arguments. Returns what `train` returns. A worker that was asked to leave (`byteps-like
    worker drain`, SIGTERM) does so at the same place, and raises DrainedExit. What servers keep of the state goes along
    to the servers of the next world; after a failure it is that of the newest cut, as all else is then.

    `save_to`: a directory that all ranks reach, from whose newest cut the job goes on when it begins, if it has one.
    Every `save_every`th commit becomes a cut there, and `keep` of them stay: see `save`.

    Raises TooFewWorkersError if too few come to the next world; after `reset_limit` such changes, or five in a row
    without a commit between them, what would have been the next one's cause; CorruptError if the newest cut is damaged;
    PeerLostError if what servers kept is lost, and in no cut; at once what `train` raises else, mistakes of the script
    (MismatchError) among it. All collective operations belong inside: a worker that joins later makes only those that
    are made here.
    """
    if train is None:
        return functools.partial(run, reset_limit=reset_limit, save_to=save_to, save_every=save_every, keep=keep)
    directory = None if save_to is None else Path(save_to)

    @functools.wraps(train)
    @leaves_when_terminated()
    def going_on(state: State, *arguments: Any, **named: Any) -> Any:
        come_in(state)
        if directory is not None:
            duties_of(state).saver = Saver(directory, save_every, keep)
        with feeding(state):
            return _run(train, state, arguments, named, directory, reset_limit)

    return going_on


def _run(
    train: Train[Any],
    state: State,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    directory: Path | None,
    reset_limit: int | None,
) -> Any:
    resets, idle, skips_sync, is_new, carried = 0, 0, False, True, Carried()
    while True:
        before = duties_of(state).count
        try:
            if not skips_sync and _begin(state, is_new, directory, carried):
                carried.end()
            else:
                _take_over(state, directory, carried)
            is_new = False
            result = train(state, *arguments, **named)
            state.finish_cut()
            return result
        except (OperationError, HostsUpdatedInterrupt) as cause:
            resets, idle = resets + 1, idle + 1 if duties_of(state).count == before else 0
            is_over = idle >= _MOST_IDLE or (reset_limit is not None and resets > reset_limit)
            is_over = is_over or isinstance(cause, ValuesLostError)
            if is_over or isinstance(cause, _TO_STAY) or (is_new and isinstance(cause, _OF_FILES)):
                raise
            # What servers kept may turn out to be lost as ranks leave, and all have to know.
            skips_sync = isinstance(cause, HostsUpdatedInterrupt) and cause.skip_sync and not state.kept_on_servers()
            carried = _go_on(state, cause, carried)


def _begin(state: State, is_new: bool, directory: Path | None, carried: Carried) -> bool:
    """All ranks have the same state then: of the newest cut if rank 0 begins, or a rank has lost what servers kept.
    Whether it is that of a cut."""
    every = allgather_object((is_new, carried.lost, carried.missed, bool(carried.shares)))
    nobody_has = not any(has for *_, has in every)
    lost = next((lost or missed for _, lost, missed, _ in every if lost or (missed and nobody_has)), "")
    from_cut = every[0][0] or bool(lost)
    if directory is not None and from_cut and load(directory, state) is not None:
        return True
    if lost:
        raise ValuesLostError(lost + _NO_CUT)
    state.sync()
    return False


def _take_over(state: State, directory: Path | None, carried: Carried) -> None:
    """What servers kept. All ranks know alike whether it is whole."""
    try:
        carried.into_world(state.kept_on_servers())
    except ValuesLostError as error:
        if directory is None or load(directory, state) is None:
            raise ValuesLostError(f"{error}{_NO_CUT}") from None
        carried.end()
        logger.warning("rank %d: %s; all go on from a cut", _runtime.rank(), error)


def _go_on(state: State, cause: Exception, before: Carried) -> Carried:
    """Into the next world, or out of the job, if this worker was asked to leave. What goes on there of what servers
    kept; that of the world `before`, where this one has ended before it could take it over."""
    interrupted, asked, kept = isinstance(cause, HostsUpdatedInterrupt), dismissal(), state.kept_on_servers()
    duties = duties_of(state)
    try:
        carried = Carried.from_world(kept, leaves=asked is not None) if interrupted else before.again(kept, cause)
    except OperationError as error:
        # Ranks that have left before it came to that have all of it.
        interrupted, cause, carried = False, error, Carried(missed=lost_with_world(kept, error).lost)
    if duties.feeding is not None:
        duties.feeding.end(in_order=interrupted, leaves=asked is not None)
    if asked is not None:
        logger.info("rank %d leaves: %s", _runtime.rank(), asked.why)
        if duties.saver is not None:
            duties.saver.wait()  # the others make a cut of what all have written
        shutdown()
        raise DrainedExit(exit_code(asked))
    logger.log(
        logging.INFO if interrupted else logging.WARNING,
        "rank %d: %s; joining the next world%s",
        _runtime.rank(),
        cause,
        "" if interrupted else " with the state of the last commit",
    )
    # Not before: updates of steps that were under way end with the old world, and must not change what was restored.
    rejoin(_nothing if interrupted else state.restore)
    if duties.feeding is not None:
        duties.feeding.enter()
    reopened(kept)
    state.on_reset()
    logger.info("now rank %d of %d", _runtime.rank(), _runtime.size())
    return carried


def _nothing() -> None:
    pass
