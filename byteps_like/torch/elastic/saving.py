"""`save`, `load` and `latest`: cuts of a state, for whoever calls them himself."""

from __future__ import annotations

import os
from pathlib import Path

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.elastic.cuts.loading import load as _load
from byteps_like.torch.elastic.cuts.manifest import newest
from byteps_like.torch.elastic.cuts.saver import Saver
from byteps_like.torch.elastic.state import State, duties_of

Directory = str | os.PathLike[str]


def save(directory: Directory, state: State, *, keep: int = 2, wait: bool = True) -> Path:
    """Commits the state and makes that a cut in `directory`, which all ranks reach by this path; the cut's own.

    All ranks call it at the same step boundary. A cut has the job as it is there: models, optimizers and samplers of
    the state, its plain values, the random states of each rank, what its codecs have left out, and what servers keep
    for it. `load` takes it, in a job of any numbers of workers and servers. The newest `keep` cuts stay.

    Ranks write equal shares. With `wait` it blocks until the cut is whole, or raises what this rank, or the one that
    makes a cut of all parts, has failed with; otherwise a thread writes while training goes on, later commits look
    whether all have written, and what fails is logged. Raises what `commit()` raises.
    """
    path = Path(directory)
    duties = duties_of(state)
    saver = duties.saver = duties.saver or Saver(path, keep=keep)
    if saver.directory != path:
        raise InvalidArgumentError(f"the cuts of this state are in {saver.directory}: give another one to {path}")
    state.finish_cut()
    saver.want()
    state.commit()
    if wait:
        state.finish_cut()
    return saver.begun(raises=wait)


def load(directory: Directory, state: State) -> Path | None:
    """Takes the newest cut in `directory`, or the one that it is; its path. None: there is none, and nothing changes.

    All ranks call it; each reads and checks what it needs before anything changes on any of them. Rank r goes on from
    what was rank r's own. What codecs of ranks that there are no longer had left out is added to what rank 0's have;
    ranks that are new begin with nothing left out, and with the random states that they have. Objects of the script's
    own types are unpickled: load only what you trust.

    Raises, on all ranks, CorruptError with the file and what is wrong with it, and MismatchError where the state has
    not what the cut has. An older cut is taken only if you name it.
    """
    return _load(Path(directory), state)


def latest(directory: Directory) -> Path | None:
    """The newest cut in `directory` that has become whole; None: there is none. Only looks for its manifest."""
    return newest(Path(directory))
