"""Every error this package raises, in one tree. Each names what happened, the exact cause and what to do.

`Code` values cross the wire and the binding: below 64 they mirror csrc/base/status.h.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Outcome codes."""

    OK = 0
    INVALID = 1
    MISMATCH = 2
    STALLED = 3
    PEER_LOST = 4
    REFUSED = 5
    CORRUPT = 6
    TIMEOUT = 7
    CLOSED = 8
    CAPACITY = 9
    SYSTEM = 10
    DEVICE = 11
    TOO_FEW_WORKERS = 64
    """From 64 on: the control plane's own, which the native core doesn't know."""


class BytePSLikeError(RuntimeError):
    """Base of all. `rank` is the reporting rank; `peer`, `key`, `operation`, `elapsed` (seconds) where known."""

    code: Code = Code.SYSTEM

    def __init__(
        self,
        message: str = "",
        *,
        rank: int | None = None,
        peer: str | None = None,
        key: str | None = None,
        operation: str | None = None,
        elapsed: float | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.peer = peer
        self.key = key
        self.operation = operation
        self.elapsed = elapsed


class ConfigError(BytePSLikeError, ValueError):
    """A setting is unknown, malformed or contradicts another."""

    code = Code.INVALID


class InvalidArgumentError(BytePSLikeError, ValueError):
    """A caller's argument can't be used: not contiguous, unsupported dtype, unknown root rank, ..."""

    code = Code.INVALID


class NotInitializedError(BytePSLikeError, ValueError):
    """A call that needs `init()` came before it or after `shutdown()`. A ValueError, as Horovod's is."""

    code = Code.INVALID


class OperationError(BytePSLikeError):
    """An operation could not be carried out with the other ranks: base of all that one in flight can fail with."""


class MismatchError(OperationError):
    """Ranks disagree on a name's shape, dtype or operation, or wait for each other in different orders."""

    code = Code.MISMATCH


class StalledError(OperationError):
    """A contribution did not come before the deadline; names who is waited for, key and round."""

    code = Code.STALLED


class PeerLostError(OperationError):
    """A worker, a server or the scheduler died or can't be reached any more."""

    code = Code.PEER_LOST


class RefusedError(BytePSLikeError):
    """A join or a handshake was refused: wrong secret, job, epoch, version, rank or world size."""

    code = Code.REFUSED


class TooFewWorkersError(BytePSLikeError):
    """An elastic job has fewer workers than `min_workers`, and no others have come within `join_timeout`."""

    code = Code.TOO_FEW_WORKERS


class CorruptError(OperationError):
    """Bytes failed their checksum or their bounds and could not be repaired."""

    code = Code.CORRUPT


class DeadlineError(OperationError, TimeoutError):
    """A local wait ended at its deadline."""

    code = Code.TIMEOUT


def timed_out(seconds: float) -> str:
    """What the text of every DeadlineError of an operation holds: programs written for gloo or NCCL look for it."""
    return f"timed out after the timeout of {seconds:g} s"


class ShutdownError(OperationError):
    """The operation was cut off because this process, or the job, was shut down."""

    code = Code.CLOSED


class CapacityError(OperationError):
    """A memory or connection budget is used up."""

    code = Code.CAPACITY


class SystemCallError(OperationError):
    """The operating system refused; the message holds its reason."""

    code = Code.SYSTEM


class DeviceError(OperationError):
    """A GPU or its driver failed, or there is none; names CUDA's error."""

    code = Code.DEVICE


_BY_CODE: dict[Code, type[BytePSLikeError]] = {
    Code.INVALID: InvalidArgumentError,
    Code.MISMATCH: MismatchError,
    Code.STALLED: StalledError,
    Code.PEER_LOST: PeerLostError,
    Code.REFUSED: RefusedError,
    Code.CORRUPT: CorruptError,
    Code.TIMEOUT: DeadlineError,
    Code.CLOSED: ShutdownError,
    Code.CAPACITY: CapacityError,
    Code.SYSTEM: SystemCallError,
    Code.DEVICE: DeviceError,
    Code.TOO_FEW_WORKERS: TooFewWorkersError,
}


def from_code(code: int, message: str, **fields: object) -> BytePSLikeError:
    """The exception for a native status; unknown codes become the base class."""
    try:
        kind = _BY_CODE[Code(code)]
    except (KeyError, ValueError):
        kind = BytePSLikeError
    return kind(message, **fields)  # type: ignore[arg-type]
