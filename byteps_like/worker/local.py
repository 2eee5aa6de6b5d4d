"""LocalWorker: a world of one. No threads, no processes; what comes back is what went in, as its codec leaves it;
every check is still made."""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from byteps_like.collectives.api import Group
from byteps_like.compression.registry import Coding
from byteps_like.dtypes import DType, Op
from byteps_like.errors import BytePSLikeError, InvalidArgumentError, MismatchError, ShutdownError
from byteps_like.worker.api import Declared, Feedback, Partition, Scatter, TensorSpec
from byteps_like.worker.coded import CodedLanes
from byteps_like.worker.local_group import LocalGroup
from byteps_like.worker.standing import ALONE, Stands

if TYPE_CHECKING:
    from byteps_like.worker.coded import CodedLanes

_PARTITION_BYTES = 4 << 20
_CODED = (Op.SUM, Op.AVERAGE, Op.BROADCAST)


class PrivateMemory:
    """Zero-filled, page-aligned memory of this process alone; given back to the system with its last owner."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, max(nbytes, 1))
        self._view = (ctypes.c_char * max(nbytes, 1)).from_buffer(self._map)
        self.address = ctypes.addressof(self._view)
        self.nbytes = nbytes


class CompletedHandle:
    """The handle of an operation that was over before its call returned."""

    def done(self) -> bool:
        """True."""
        return True

    def wait(self, timeout: float | None = None) -> None:
        """Returns at once."""

    def give_up(self, error: BytePSLikeError) -> None:
        """It is done."""


class DeclaredNames:
    """The names one worker has declared. Thread-safe.

    `declare` cuts a tensor into partitions of `partition_bytes` without asking anybody.
    """

    def __init__(self, partition_bytes: int = _PARTITION_BYTES) -> None:
        self._partition_bytes = partition_bytes
        self._lock = threading.Lock()
        self._known: dict[str, Declared] = {}
        self._next_id = 0

    def declare(self, spec: TensorSpec) -> Declared:
        """The entry of `spec`. Raises MismatchError if its name has another dtype, shape or codec already."""
        check_codec(spec)
        with self._lock:
            known = self._known.get(spec.name)
            if known is None:
                known = Declared(spec, self._next_id, self._cut(self._next_id, spec))
                self._next_id += 1
                self._known[spec.name] = known
        check_same(known.spec, spec)
        return known

    def forget(self, declared: Declared) -> None:
        """The name is not used any more."""
        with self._lock:
            self._known.pop(declared.spec.name, None)

    def _cut(self, tensor_id: int, spec: TensorSpec) -> tuple[Partition, ...]:
        step = spec.partition_bytes or self._partition_bytes
        return tuple(
            Partition(tensor_id << 16 | part, offset, min(step, spec.nbytes - offset), server=0, shard=0)
            for part, offset in enumerate(range(0, spec.nbytes, step))
        )


class LocalWorker(Stands):
    """A Worker (see worker.api) for a world of one: `push_pull` leaves the buffer as it is and is over at once."""

    route = "none"
    seal_key = b""
    standing = ALONE

    def __init__(self, partition_bytes: int = _PARTITION_BYTES) -> None:
        self._catalogue = DeclaredNames(partition_bytes)
        self._closed = False
        self._coded: CodedLanes | None = None
        self._groups: dict[str, LocalGroup] = {}

    def declare(self, specs: Sequence[TensorSpec]) -> list[Declared]:
        """Places the names. Raises MismatchError for a name that comes again with another dtype or shape."""
        self._check_open()
        return [self._catalogue.declare(spec) for spec in specs]

    def allocate(self, nbytes: int) -> PrivateMemory:
        """Memory for an arena."""
        self._check_open()
        return PrivateMemory(nbytes)

    empty_shared = allocate

    def group(self, name: str, ranks: Sequence[int] | None = None) -> Group:
        """A group of this rank alone."""
        self._check_open()
        if ranks is not None and tuple(ranks) != (0,):
            raise InvalidArgumentError(f"group {name!r}: {list(ranks)} are not ranks of a world of 1")
        return self._groups.setdefault(name, LocalGroup(name))

    def push_pull(
        self,
        declared: Declared,
        address: int,
        op: Op,
        *,
        root: int = 0,
        parts: range | None = None,
        priority: int | None = None,  # noqa: ARG002 - nothing waits here
    ) -> CompletedHandle:
        """Checks its arguments; what is at `address` is the result already, or after encoding and decoding."""
        self._check_open()
        check_push_pull(declared, address, op, parts)
        if op is Op.BROADCAST and root != 0:
            raise InvalidArgumentError(f"broadcast of {declared.spec.name!r} from rank {root} in a world of 1")
        if declared.spec.codec and op is not Op.BROADCAST:
            for part in declared.partitions if parts is None else declared.partitions[parts.start : parts.stop]:
                self._coding().run(declared, part, LocalGroup(declared.spec.name), address + part.offset, op)
        return CompletedHandle()

    def _coding(self) -> CodedLanes:
        if self._coded is None:
            self._coded = CodedLanes()
        return self._coded

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """See worker.api.Worker.compensate."""
        check_feedback(declared, feedback)
        self._coding().compensate(declared, feedback)

    def rescale(self, declared: Declared, factor: float) -> None:
        """See worker.api.Worker.rescale."""
        self._coding().rescale(declared, factor)

    def coded_scatter(self, group: Group, codec: str, rounds: int = 0) -> Scatter:
        """See worker.api.Scatters."""
        return self._coding().scatter(group, codec, rounds)

    def forget(self, declared: Declared) -> None:
        """See worker.api.Forgets."""
        self._catalogue.forget(declared)
        if self._coded is not None:
            self._coded.retire(declared)

    def placed(self, declared: Declared, follows: bool = True) -> Declared:  # noqa: ARG002 - nothing moves here
        """`declared`. See worker.api.Worker.placed."""
        return declared

    def note_route(self, name: str) -> None:
        """Nobody asks for the status of a world of one."""

    def barrier(self, timeout: float | None = None) -> None:  # noqa: ARG002 - alone here
        """Returns at once."""
        self._check_open()

    def close(self) -> None:
        """Later calls raise ShutdownError. Idempotent."""
        self._closed = True

    def stats(self) -> dict[str, int]:
        """The counters of worker.api, all 0: nothing is sent in a world of one."""
        names = ("payload_sent", "payload_received", "bytes_sent", "bytes_received", "frames_sent", "frames_received")
        return dict.fromkeys(names, 0)

    def _check_open(self) -> None:
        if self._closed:
            raise ShutdownError("this worker has been shut down; call init() again")


def check_push_pull(declared: Declared, address: int, op: Op, parts: range | None) -> None:
    """Raises InvalidArgumentError for partitions, a buffer or an operation on the dtype that don't exist."""
    count = len(declared.partitions)
    if parts is not None and len(parts) and not 0 <= min(parts) <= max(parts) < count:
        raise InvalidArgumentError(f"{declared.spec.name!r} has {count} partitions; {parts} are not all among them")
    if not address and declared.spec.nbytes:
        raise InvalidArgumentError(f"{declared.spec.name!r} has {declared.spec.nbytes} bytes, but no address was given")
    if declared.spec.codec and op not in _CODED:
        raise InvalidArgumentError(
            f"{declared.spec.name!r} has codec {declared.spec.codec!r}: it can be summed, averaged and broadcast, but"
            f" has no {op.name}"
        )
    if not op.supports(declared.spec.dtype):
        raise InvalidArgumentError(f"{declared.spec.name!r} is of {declared.spec.dtype.name}, which has no {op.name}")


def check_same(known: TensorSpec, spec: TensorSpec) -> None:
    """Raises MismatchError if one name stands for two shapes, element types or codecs."""
    if (known.dtype, known.shape, known.codec) != (spec.dtype, spec.shape, spec.codec):
        raise MismatchError(
            f"{spec.name!r} was declared as {describe(known)} but now as {describe(spec)}: use another name",
            key=spec.name,
        )


def describe(spec: TensorSpec) -> str:
    """What ranks have to agree on, in words."""
    codec = f" by codec {spec.codec}" if spec.codec else ""
    return f"{spec.dtype.name.lower()} of shape {list(spec.shape)}{codec}"


def check_codec(spec: TensorSpec) -> None:
    """Raises InvalidArgumentError for a codec that there isn't, whose payloads can't be summed, or not on fp32."""
    if spec.codec:
        Coding.of(spec.codec)
    if spec.codec and spec.dtype is not DType.FLOAT32:
        raise InvalidArgumentError(
            f"{spec.name!r} is of {spec.dtype.name.lower()} and codec {spec.codec!r} encodes float32 only"
        )


def check_feedback(declared: Declared, feedback: Feedback | None) -> None:
    """Raises InvalidArgumentError for feedback that this tensor can't have."""
    name = declared.spec.name
    if not declared.spec.codec:
        raise InvalidArgumentError(f"{name!r} has no codec, so there is no error for feedback to compensate")
    if feedback is not None and feedback.masked and not (feedback.residual and feedback.momentum):
        raise InvalidArgumentError(f"{name!r}: masking needs the addresses of a residual and of a momentum")


def refuse_codec(spec: TensorSpec, where: str) -> None:
    """Raises InvalidArgumentError for a tensor with a codec: this worker has none."""
    if spec.codec:
        raise InvalidArgumentError(
            f"{spec.name!r} has codec {spec.codec!r}, but there are none {where}: use fp16 or bf16 casting, or none"
        )
