"""Codecs in a world of one: what comes back is what one contribution would be, so that a run alone shows what a codec
costs in precision. By the native core's codecs, step by step; the engine (csrc/engine) does the same for larger worlds.
"""

from __future__ import annotations

import ctypes
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import SERVER_RANK
from byteps_like.worker.api import Declared, Feedback, Partition

Floats = NDArray[np.float32]


class LocalCoding:
    """The coded tensors of a world of one. Not thread-safe for calls about one tensor at a time."""

    def __init__(self) -> None:
        self._codecs: dict[str, Any] = {}
        self._feedback: dict[int, Feedback] = {}
        self._rounds: Counter[int] = Counter()
        self._scales: defaultdict[int, float] = defaultdict(lambda: 1.0)
        """By key: what the residual is to be multiplied by at the next encode."""

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        """See worker.api.Worker.compensate."""
        self._feedback.pop(declared.tensor_id, None)
        if feedback is not None:
            self._feedback[declared.tensor_id] = feedback

    def rescale(self, declared: Declared, factor: float) -> None:
        """See worker.api.Worker.rescale."""
        for part in declared.partitions:
            self._scales[part.key] *= factor

    def skip(self, part: Partition) -> None:
        """A round of this partition went raw."""
        self._rounds[part.key] += 1

    def round(self, declared: Declared, part: Partition, address: int) -> None:
        """One round of one partition of the tensor at `address`, in place."""
        x = _floats(address, part)
        residual, momentum = self._compensated(x, declared, part)
        number = self._rounds[part.key]
        self._rounds[part.key] += 1
        codec = self._codec(declared.spec.codec_spec)
        plan, draw = codec.plan(x.size), (part.key, number, 0)
        agreed = np.zeros(plan["prelude"], np.uint8)
        if agreed.size:
            codec.prepare(x, draw, agreed)
        payload, error = np.empty(plan["payload"], np.uint8), np.empty_like(x)
        size = codec.encode_with_residual(x, draw, agreed, payload, error)
        _settle(x, error, residual, momentum, self._feedback.get(declared.tensor_id, Feedback()).masked)
        result = payload[:size]
        if "dense" not in plan:
            result = _summed(codec, plan, x.size, result, (part.key, number, SERVER_RANK))
        codec.decode(result, 1, draw, agreed, 1.0, x)

    def _codec(self, spec: str) -> Any:
        if spec not in self._codecs:
            import byteps_like._core as core

            self._codecs[spec] = core.Codec(spec, 1)
        return self._codecs[spec]

    def _compensated(self, x: Floats, declared: Declared, part: Partition) -> tuple[Floats | None, Floats | None]:
        """Momentum and residual, added to `x`; both as arrays, or None."""
        known = self._feedback.get(declared.tensor_id, Feedback())
        momentum = _floats(known.momentum, part) if known.momentum else None
        residual = _floats(known.residual, part) if known.residual else None
        if momentum is not None:
            mu = np.float32(known.mu)
            momentum *= mu
            momentum += x
            x[:] = x + mu * momentum if known.nesterov else momentum
        if residual is not None:
            x += np.float32(self._scales.pop(part.key, 1.0)) * residual
        return residual, momentum


def _floats(address: int, part: Partition) -> Floats:
    memory = (ctypes.c_float * (part.nbytes // 4)).from_address(address + part.offset)
    return np.ctypeslib.as_array(memory)


def _settle(x: Floats, error: Floats, residual: Floats | None, momentum: Floats | None, masked: bool) -> None:
    # What isn't finite is in this round's result, for a loss scaler to see; it must not come back for ever.
    if residual is not None:
        residual[:] = np.where(np.isfinite(error), error, 0)
    if momentum is not None:
        sent = error != x if masked else np.zeros(x.size, bool)
        momentum[sent | ~np.isfinite(momentum)] = 0


def _summed(
    codec: Any, plan: dict[str, int], numel: int, payload: NDArray[np.uint8], draw: tuple[int, int, int]
) -> Any:
    memory = np.empty(plan["accumulator"] + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    accumulator = memory[begin : begin + plan["accumulator"]]
    codec.reset(numel, accumulator)
    codec.accumulate(numel, payload, accumulator)
    result = np.empty(plan["result"], np.uint8)
    return result[: codec.emit(numel, 1, draw, accumulator, result)]
