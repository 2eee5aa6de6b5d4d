"""The elements of largest magnitude: exactly k of them, or about k by a threshold from a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw, Floats, PayloadPlan, ReencodeCodec, check_length
from byteps_like.compression.sparse.sparse import checked_indices, largest, magnitudes
from byteps_like.errors import CorruptError

_TRIES = 10


@dataclass(frozen=True)
class TopK(ReencodeCodec):
    """`ratio` of the elements, at least one: 64 bits for each. Wants error feedback.

    `select` "exact": k = floor(ratio * numel), of equal magnitudes the first ones; error at most (1 - k/numel) of the
    square of the norm. "sampled": 0.8 to 1.3 k, those above a threshold that 1 % of the elements give, in at most ten
    tries (then exact), never zeros. Payload: indices, ascending, as 32-bit numbers, then values; "sampled" has their
    number before them. Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (EMNLP 2017); Lin et
    al., "Deep Gradient Compression" (ICLR 2018).
    """

    name: ClassVar[str] = "topk"
    id: ClassVar[int] = 12
    source: ClassVar[str] = "Aji and Heafield, EMNLP 2017; Lin et al. (DGC), ICLR 2018"

    ratio: float = 0.01
    select: str = "exact"

    def __post_init__(self) -> None:
        if not 0 <= self.ratio <= 1 or self.select not in ("exact", "sampled"):
            raise ValueError("ratio must be from 0 to 1, select exact or sampled")

    @property
    @override
    def variable(self) -> bool:  # type: ignore[override]
        return self.select == "sampled"

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        size = self._head() + 8 * self._most(numel)
        return PayloadPlan(payload=size, result=size, accumulator=4 * numel)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        wanted = self._wanted(x.size)
        if self.select == "exact":
            chosen = largest(magnitudes(x), wanted).astype(np.uint32)
            return chosen.tobytes() + x[chosen].tobytes()
        chosen = _about(magnitudes(x), wanted).astype(np.uint32)
        return np.uint32(chosen.size).tobytes() + chosen.tobytes() + x[chosen].tobytes()

    @override
    def decode_one(self, payload: bytes, numel: int, factor: float) -> Floats:
        count = self._wanted(numel)
        if self.select == "sampled":
            count = int(np.frombuffer(payload[:4], np.uint32)[0]) if len(payload) >= 4 else 0
            if count > self._most(numel):
                raise CorruptError(f"{self.name}: {count} elements are more than {self._most(numel)}")
        check_length(self.name, payload, self._head() + 8 * count)
        indices = np.frombuffer(payload, np.uint32, count, self._head())
        out = np.zeros(numel, np.float32)
        out[checked_indices(self.name, indices, numel)] = np.frombuffer(
            payload, np.float32, count, self._head() + 4 * count
        )
        return np.float32(factor) * out

    def _head(self) -> int:
        return 4 if self.select == "sampled" else 0

    def _wanted(self, numel: int) -> int:
        return max(1, int(self.ratio * numel))

    def _most(self, numel: int) -> int:
        wanted = self._wanted(numel)
        return min(numel, max(wanted, wanted * 13 // 10)) if self.select == "sampled" else wanted


def _about(keys: NDArray[np.uint32], wanted: int) -> NDArray[np.int64]:
    """Indices of about `wanted` large keys: see TopK."""
    sample = np.sort(keys[:: max(1, min(100, keys.size // 256))])[::-1]
    rank = max(1, wanted * sample.size // keys.size)
    for _ in range(_TRIES):
        if not 1 <= rank <= sample.size:
            break
        least = max(1, int(sample[rank - 1]))
        found = int((keys >= least).sum())
        enough = 10 * found >= 8 * wanted or least == 1
        if enough and 10 * found <= 13 * wanted:
            return np.flatnonzero(keys >= least)
        if least == 1:
            break
        following = rank * wanted // max(found, 1)
        rank = (rank - 1 if enough else rank + 1) if following == rank else max(following, 1)
    return largest(keys, wanted)
