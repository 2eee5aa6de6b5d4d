"""Memory that all ranks of a world have mapped, where they are on one host: what one writes, the others read at once.

Rank 0 makes it and tells the others by which process and descriptor they find it in /proc. It has no name in any file
system, so nothing of it is left behind, however ranks end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
from collections.abc import Sequence
from contextlib import ExitStack

from byteps_like.dtypes import DType, Op
from byteps_like.errors import InvalidArgumentError, SystemCallError
from byteps_like.worker.api import TensorSpec, Worker

_KEEPER = 0
"""The rank that makes it."""
_PAGE = mmap.PAGESIZE
_NOTHING = (0, 0, 0)


def common_memory(worker: Worker, name: str, nbytes: int) -> memoryview:
    """`nbytes` of zeros, the same on all ranks, freed when the last of them has let go of it. All ranks call it; blocks
    until all have mapped it.

    Raises on all ranks: SystemCallError where there is not so much memory, InvalidArgumentError, naming them, where
    ranks can't map it.
    """
    with ExitStack() as until_mapped:
        told = _made(until_mapped, nbytes) if worker.rank == _KEEPER else _NOTHING
        process, descriptor, mark_or_error = _exchanged(worker, f"{name}/where", told, Op.BROADCAST)
        if descriptor < 0:
            raise SystemCallError(
                f"rank {worker.rank}: {name!r} needs {nbytes} bytes of shared memory, which rank {_KEEPER} could not"
                f" get: {os.strerror(mark_or_error)}"
            )
        mapped = _mapped(process, descriptor, mark_or_error, nbytes)
        missing = _missing(worker, name, mapped is None)  # nobody has it before all have come
    if missing or mapped is None:
        raise InvalidArgumentError(
            f"rank {worker.rank}: {name!r} is to be in memory that all ranks share, but"
            f" {_listed(missing)} can't map that of rank {_KEEPER}: all must be processes of one host and one user",
            rank=worker.rank,
            key=name,
        )
    return memoryview(mapped)[_PAGE : _PAGE + nbytes]


def _made(until_mapped: ExitStack, nbytes: int) -> tuple[int, int, int]:
    """Where as much memory is: process, descriptor, and a number at its beginning, by which others know that it is this
    that they have found. Without any, a descriptor of -1, and the error's number."""
    try:
        descriptor = os.memfd_create("byteps_like_common", os.MFD_CLOEXEC)
        until_mapped.callback(os.close, descriptor)
        os.posix_fallocate(descriptor, 0, _PAGE + nbytes)  # or a write to it might end the process later
    except OSError as error:
        return os.getpid(), -1, error.errno or 0
    mark = secrets.randbits(62) | 1
    os.pwrite(descriptor, mark.to_bytes(8, "little"), 0)
    return os.getpid(), descriptor, mark


def _mapped(process: int, descriptor: int, mark: int, nbytes: int) -> mmap.mmap | None:
    """None: it isn't there, or a process of this host has the same number as that of another."""
    try:
        found = os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if os.pread(found, 8, 0) != mark.to_bytes(8, "little"):
            return None
        return mmap.mmap(found, _PAGE + nbytes)
    except (OSError, ValueError):
        return None
    finally:
        os.close(found)


def _missing(worker: Worker, name: str, own: bool) -> list[int]:
    """The ranks that say so."""
    by_rank = [int(own) if rank == worker.rank else 0 for rank in range(worker.size)]
    return [rank for rank, says in enumerate(_exchanged(worker, f"{name}/missing", by_rank, Op.SUM)) if says]


def _exchanged(worker: Worker, name: str, numbers: Sequence[int], op: Op) -> list[int]:
    (declared,) = worker.declare([TensorSpec(name, DType.INT64, (len(numbers),))])
    array = (ctypes.c_int64 * len(numbers))(*numbers)
    worker.push_pull(declared, ctypes.addressof(array), op, root=_KEEPER).wait()
    return list(array)


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
