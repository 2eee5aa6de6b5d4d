"""What a CollectiveWorker keeps for tensors that travel encoded: partitions, their feedback, a thread to encode on."""

from __future__ import annotations

import ctypes
import hashlib
import threading

import numpy as np

from byteps_like.collectives.api import DEFAULT, CallOptions, Group
from byteps_like.collectives.coded import CodedPartition, Steps, coded_partition
from byteps_like.collectives.coded_hosts import HostsPartition, MakeGroup, suits
from byteps_like.collectives.coded_scatter import CodedScatter
from byteps_like.collectives.planning.stepper import Flight, Stepper
from byteps_like.compression.codec import Floats
from byteps_like.compression.feedback import Compensation
from byteps_like.compression.registry import Coding
from byteps_like.dtypes import Op
from byteps_like.worker.api import Declared, Feedback, Partition


class CodedLanes:
    """All coded partitions of one worker. Thread-safe, but for two exchanges of one partition at once."""

    def __init__(self) -> None:
        self._stepper = Stepper("byteps_like-codec")
        self._partitions: dict[int, CodedPartition | HostsPartition] = {}
        self._feedback: dict[int, Compensation] = {}  # by key of the partition, too
        self._lock = threading.RLock()  # destructors retire and compensate, on any thread and at any time

    def launch(
        self,
        declared: Declared,
        part: Partition,
        lane: tuple[Group, MakeGroup],
        address: int,
        op: Op,
        options: CallOptions,
    ) -> Flight:
        """Reduces the partition that lies at `address`, in place. `lane`: its group, and how to make parts of that."""
        steps = self._steps(declared, part, lane, address, op, options)
        return self._stepper.start(steps, options.priority, declared.spec.name)

    def run(self, declared: Declared, part: Partition, group: Group, address: int, op: Op) -> None:
        """The same over a group of one, whose operations are over at once."""
        for _ in self._steps(declared, part, (group, lambda *_: group), address, op, DEFAULT):
            pass

    def _steps(
        self,
        declared: Declared,
        part: Partition,
        lane: tuple[Group, MakeGroup],
        address: int,
        op: Op,
        options: CallOptions,
    ) -> Steps:
        with self._lock:
            partition = self._partitions.get(part.key)
            if partition is None:
                partition = self._partitions[part.key] = self._make(declared, part, *lane)
            feedback = self._feedback.setdefault(part.key, Compensation())
        return partition.exchange(_floats(address, part.nbytes), op, feedback, options)

    def _make(
        self, declared: Declared, part: Partition, group: Group, subgroup: MakeGroup
    ) -> CodedPartition | HostsPartition:
        # Not the partition's key: that is numbered in the order of declarations, which differs over the ranks.
        digest = hashlib.blake2b(f"{declared.spec.name}/{part.offset}".encode(), digest_size=8).digest()
        key = int.from_bytes(digest, "little") >> 2
        coding, numel = Coding.of(declared.spec.codec), part.nbytes // 4
        if suits(group, coding):
            return HostsPartition(group, coding, key, numel, subgroup)
        return coded_partition(group, coding, key, numel)

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """See worker.api.Worker.compensate."""
        whole = _compensation(feedback, declared.spec.nbytes)
        with self._lock:
            for part in declared.partitions:
                self._feedback[part.key] = whole.part(slice(part.offset // 4, (part.offset + part.nbytes) // 4))

    def rescale(self, declared: Declared, factor: float) -> None:
        """See worker.api.Worker.rescale."""
        with self._lock:
            for part in declared.partitions:
                if part.key in self._feedback:
                    self._feedback[part.key].scale *= factor

    def retire(self, declared: Declared) -> None:
        """Frees what is held for it."""
        with self._lock:
            for part in declared.partitions:
                self._partitions.pop(part.key, None)
                self._feedback.pop(part.key, None)

    def scatter(self, group: Group, codec: str, rounds: int) -> Scattering:
        """See worker.api.Scatters."""
        return Scattering(CodedScatter(group, codec, self._stepper, rounds))

    def close(self) -> None:
        """What is under way fails with ShutdownError."""
        self._stepper.close()


class Scattering:
    """See worker.api.Scatter."""

    def __init__(self, scatter: CodedScatter) -> None:
        self._scatter = scatter
        self.reduce_scatter = scatter.reduce_scatter

    def compensate(self, feedback: Feedback | None, numel: int) -> None:
        """See worker.api.Scatter."""
        self._scatter.feedback = _compensation(feedback, 4 * numel)

    def rescale(self, factor: float) -> None:
        """See worker.api.Scatter."""
        self._scatter.feedback.scale *= factor


def _compensation(feedback: Feedback | None, nbytes: int) -> Compensation:
    if feedback is None:
        return Compensation()
    residual, momentum = (
        _floats(address, nbytes) if address else None for address in (feedback.residual, feedback.momentum)
    )
    return Compensation(residual, momentum, feedback.mu, feedback.nesterov, feedback.masked)


def _floats(address: int, nbytes: int) -> Floats:
    return np.ctypeslib.as_array((ctypes.c_float * (nbytes // 4)).from_address(address))
