"""The process-wide portable worker behind the functions of `byteps_like.portable`."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from byteps_like.config import Config
from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, NotInitializedError
from byteps_like.worker.api import TensorSpec, Worker
from byteps_like.worker.current import JobEntry, found_by

Array = npt.NDArray[Any]


@dataclass
class _Session:
    worker: Worker
    unnamed: itertools.count[int] = field(default_factory=itertools.count)


_lock = threading.Lock()
_session: _Session | None = None


def init(config: Config | None = None, **settings: Any) -> None:
    """Joins the job as a portable worker; blocks until its world has formed. Does nothing if that was done.

    Settings are those of `byteps_like.config.Config` (`scheduler="host:port"`, `rank=`, `world_size=`, `secret_file=`,
    …) and of the environment. A world of one without servers needs no other process. Raises RefusedError, DeadlineError
    (who is missing), PeerLostError, ConfigError.
    """
    global _session
    with _lock:
        if _session is None:
            _session = _Session(_connect(config or Config.from_env(**settings)))


def _connect(config: Config) -> Worker:
    from byteps_like.portable.join import join  # grpc and all: only a process that joins a job pays for it

    return join(config)


def shutdown() -> None:
    """Leaves the job in order. Idempotent; `init` may follow."""
    global _session
    with _lock:
        session, _session = _session, None
    if session is not None:
        session.worker.close()


def initialized() -> bool:
    """Whether this process is in a job."""
    return _session is not None


def rank() -> int:
    """Number of this worker, from 0."""
    return _current().worker.rank


def size() -> int:
    """Number of workers in the job."""
    return _current().worker.size


def local_rank() -> int:
    """Number of this worker among those of its host."""
    return _current().worker.local_rank


def local_size() -> int:
    """Number of workers on this host."""
    return _current().worker.local_size


def stats() -> dict[str, int]:
    """Counters: payload, bytes and frames, sent and received."""
    return _current().worker.stats()


def barrier(timeout: float | None = None) -> None:
    """Blocks until all ranks are here."""
    _current().worker.barrier(timeout)


def push_pull(array: npt.ArrayLike, average: bool = True, name: str | None = None, priority: int = 0) -> Array:
    """The average (or the sum) of `array` over all ranks, as a new array.

    Blocks until it is there. All ranks call with the same name, shape and dtype; without names the n-th call of one
    meets the n-th of the others. Takes NumPy's floats, integers and complex numbers, bool (sum: "or"), and ml_dtypes'
    bfloat16, float8_e4m3fn and float8_e5m2. Moves `nbytes` up and down. Raises MismatchError, StalledError,
    PeerLostError, and InvalidArgumentError for other dtypes.
    """
    result = np.array(array, order="C", copy=True)
    if result.dtype == np.bool_ and average:
        raise InvalidArgumentError("booleans have no average: use average=False, which gives their 'or'")
    return _run(result, Op.AVERAGE if average else Op.SUM, name, priority)


def broadcast(array: npt.ArrayLike, root: int = 0, name: str | None = None) -> Array:
    """The array of rank `root`, on every rank: all give one of the same shape and dtype. Errors as push_pull."""
    return _run(np.array(array, order="C", copy=True), Op.BROADCAST, name, 0, root)


def _run(array: Array, op: Op, name: str | None, priority: int, root: int = 0) -> Array:
    session = _current()
    if name is None:
        name = f"portable.{'broadcast' if op is Op.BROADCAST else 'push_pull'}.{next(session.unnamed)}"
    spec = TensorSpec(name, dtype_of(array), array.shape, priority)
    (declared,) = session.worker.declare([spec])
    session.worker.push_pull(declared, array.ctypes.data, op, root=root).wait()
    return array


def dtype_of(array: Array) -> DType:
    """The wire's code for an array's dtype. Raises InvalidArgumentError for one that has none."""
    name = array.dtype.name
    if name.upper() not in DType.__members__ or not array.dtype.isnative:
        raise InvalidArgumentError(f"arrays of {array.dtype} can't be sent; convert to one of float32, float64, …")
    return DType[name.upper()]


def _current() -> _Session:
    session = _session
    if session is None:
        raise NotInitializedError("call byteps_like.portable.init() first")
    return session


found_by("byteps_like.portable", JobEntry(initialized, lambda: _current().worker, _connect))
