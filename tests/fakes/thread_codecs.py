"""Rounds of coded tensors in a world of threads, by the codecs' NumPy references: what the engine and servers do."""

from __future__ import annotations

import ctypes
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from byteps_like.compression.codec import SERVER_RANK, Codec, Draw, ReencodeCodec
from byteps_like.compression.registry import codec_of
from byteps_like.dtypes import Op
from byteps_like.worker.api import TWOWAY, Declared, Feedback, Partition
from tests.fakes.codec_rounds import by_reference

Floats = NDArray[np.float32]


def floats_at(address: int, part: Partition) -> Floats:
    """The memory of a partition of the tensor at `address`."""
    memory = (ctypes.c_float * (part.nbytes // 4)).from_address(address + part.offset)
    return np.frombuffer(memory, np.float32)


@dataclass
class Contribution:
    """What one rank encodes, and where what is left of it goes."""

    x: Floats
    residual: Floats | None = None
    momentum: Floats | None = None
    masked: bool = False

    def settle(self, left: Floats) -> None:
        """`left`: of x, what was not sent."""
        if self.residual is not None:
            self.residual[:] = np.where(np.isfinite(left), left, 0)
        if self.momentum is not None and self.masked:
            self.momentum[left != self.x] = 0


class RankCodecs:
    """Feedback of one rank. See worker.api.Worker.compensate."""

    def __init__(self) -> None:
        self.feedback: dict[str, Feedback] = {}
        self._scales: defaultdict[int, float] = defaultdict(lambda: 1.0)

    def compensate(self, declared: Declared, feedback: Feedback | None) -> None:
        assert declared.spec.codec
        self.feedback.pop(declared.spec.name, None)
        if feedback is not None:
            self.feedback[declared.spec.name] = feedback

    def rescale(self, declared: Declared, factor: float) -> None:
        for part in declared.partitions:
            self._scales[part.key] *= factor

    def contribution(self, declared: Declared, part: Partition, data: bytes) -> Contribution:
        x = np.frombuffer(data, np.float32).copy()
        known = self.feedback.get(declared.spec.name, Feedback())
        found = Contribution(x, masked=known.masked)
        if known.momentum:
            found.momentum = floats_at(known.momentum, part)
            mu = np.float32(known.mu)
            found.momentum[:] = mu * found.momentum + x
            x[:] = x + mu * found.momentum if known.nesterov else found.momentum
        if known.residual:
            found.residual = floats_at(known.residual, part)
            x += np.float32(self._scales.pop(part.key, 1.0)) * found.residual
        return found


class WorldCodecs:
    """Feedback of the servers of two-way codecs."""

    def __init__(self) -> None:
        self.owed: dict[int, Floats] = {}

    def round(self, text: str, op: Op, found: list[Contribution], key: int, number: int) -> bytes:
        """The result; what is left is with the ranks."""
        codec = codec_of(text.removeprefix(TWOWAY))
        factor = 1.0 / len(found) if op is Op.AVERAGE else 1.0
        done = by_reference(codec, [item.x for item in found], key, number, factor)
        for item, left in zip(found, done.residuals, strict=True):
            item.settle(left)
        if text.startswith(TWOWAY):
            return self._again(codec, done.payloads, found[0].x.size, Draw(key, number, SERVER_RANK), factor)
        return done.out.astype(np.float32).tobytes()

    def _again(self, codec: Codec, payloads: list[bytes], numel: int, draw: Draw, factor: float) -> bytes:
        assert isinstance(codec, ReencodeCodec)
        total = self.owed.get(draw.key, np.zeros(numel, np.float32)).copy()
        for payload in payloads:
            total = total + codec.decode_one(payload, numel, 1.0)
        result = codec.encode(total, replace(draw), np.zeros(0, np.float32), len(payloads))
        self.owed[draw.key] = total - codec.decode_one(result, numel, 1.0)
        return codec.decode_one(result, numel, factor).astype(np.float32).tobytes()
