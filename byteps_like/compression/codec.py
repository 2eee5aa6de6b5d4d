"""What a codec is: its parameters, and a slow, obvious reference in NumPy of what the native one does.

The native twin (csrc/codec/codec.h has the same contract) gives the same bytes. One round of one partition of fp32, on
a worker: `prepare`, the prelude reduced over all ranks to `agreed`, `encode`, `residual`, and for the result `decode`;
on a server, for what plain addition can't sum: `reset`, `accumulate` per contribution in any order, `emit`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.spec import canonical
from byteps_like.dtypes import DType, Op
from byteps_like.errors import CorruptError

Floats = NDArray[np.float32]


class Trait(IntEnum):
    """How payloads are summed: it decides which routes a codec may take. Mirrors csrc/codec/codec.h."""

    OPAQUE = 0
    """They aren't: gathered, sent from one to one."""
    DENSE = 1
    """Linear: an array of `PayloadPlan.dense`, which any reduction sums as it is."""
    WIDENING = 2
    """Linear, in a wider type than they come in."""
    VOTE = 3
    """Counted, then decided."""
    MERGE = 4
    """A payload of the same kind, but larger: variable sizes."""
    REENCODE = 5
    """Decoded, summed in fp32, encoded again."""


SERVER_RANK = 0xFFFFFFFF
"""`Draw.rank` of what a server draws itself."""


@dataclass(frozen=True)
class Draw:
    """What random numbers derive from, beside the codec's own seed. Draws that all ranks share leave `rank` out."""

    key: int = 0
    round: int = 0
    rank: int = 0


@dataclass(frozen=True)
class PayloadPlan:
    """Sizes in bytes for a partition; bounds, but for the prelude's. 0 prelude: nothing to agree on beforehand."""

    payload: int
    result: int
    accumulator: int = 0
    prelude: int = 0
    prelude_dtype: DType = DType.FLOAT32
    prelude_op: Op = Op.MAX
    dense: DType | None = None


@dataclass(frozen=True)
class Codec(ABC):
    """Parameters of a codec, fields of the subclass, and its reference. Arrays are C-contiguous; bytes little-endian.

    `world` is the number of contributions to a full round. Methods raise CorruptError for bytes that can't be right.
    """

    name: ClassVar[str]
    id: ClassVar[int]
    """In the header of every encoded payload; never reused. docs/how-to/compression.md lists all of them."""
    trait: ClassVar[Trait]
    biased: ClassVar[bool] = True
    """Whether the expectation of what comes out differs from what went in: error feedback helps such codecs."""
    variable: ClassVar[bool] = False
    """Whether payloads and results may be shorter than the plan says."""
    source: ClassVar[str]
    """The paper it is from."""

    @property
    def waits(self) -> bool:
        """Whether a server answers a partition only when all contributions to it are whole."""
        return self.trait in (Trait.WIDENING, Trait.VOTE, Trait.REENCODE)

    @property
    def whole(self) -> int:
        """Elements, beginning at multiples of so many, that two partitions would both send if they were cut."""
        return 1

    def spec(self) -> str:
        """All parameters in canonical form: what the native core makes its twin from, and both ends compare."""
        return canonical(self)

    @abstractmethod
    def plan(self, numel: int, world: int) -> PayloadPlan:
        """Sizes for a partition of `numel` elements (at least 1)."""

    def prepare(self, x: Floats, draw: Draw, world: int) -> NDArray[Any]:
        """The prelude, elements of `plan().prelude_dtype`. Not called where there is none."""
        return np.zeros(0, x.dtype)

    @abstractmethod
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        """The payload. `agreed`: the prelude as reduced over all ranks; empty where there is none."""

    @abstractmethod
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        """`x` minus what `payload`, made from it, says of it."""

    @abstractmethod
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        """`factor` times the sum of the `count` contributions in a result."""

    def reset(self, numel: int, world: int) -> Any:
        """A fresh accumulator; of a kind that `accumulate` and `emit` know. Not for DENSE and OPAQUE."""
        raise NotImplementedError(f"{self.name} is not summed by servers")

    def accumulate(self, accumulator: Any, payload: bytes, numel: int, world: int) -> Any:
        """The accumulator with one contribution more."""
        raise NotImplementedError(f"{self.name} is not summed by servers")

    def emit(self, accumulator: Any, count: int, draw: Draw, numel: int, world: int) -> bytes:
        """The result of `count` contributions."""
        raise NotImplementedError(f"{self.name} is not summed by servers")


@dataclass(frozen=True)
class ReencodeCodec(Codec):
    """A codec whose payload any receiver can decode alone: the sum is made in fp32 and encoded again."""

    trait: ClassVar[Trait] = Trait.REENCODE

    @abstractmethod
    def decode_one(self, payload: bytes, numel: int, factor: float) -> Floats:
        """`factor` times what one payload says."""

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return x + self.decode_one(payload, x.size, -1.0)

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        return np.float32(0) + self.decode_one(result, numel, factor)

    def reset(self, numel: int, world: int) -> Any:
        """Zeros in fp32."""
        return np.zeros(numel, np.float32)

    @override
    def accumulate(self, accumulator: Any, payload: bytes, numel: int, world: int) -> Any:
        return accumulator + self.decode_one(payload, numel, 1.0)

    @override
    def emit(self, accumulator: Any, count: int, draw: Draw, numel: int, world: int) -> bytes:
        return self.encode(accumulator, draw, np.zeros(0, np.float32), world)


def check_length(name: str, payload: bytes, wanted: int) -> None:
    """Raises CorruptError if a payload has not `wanted` bytes."""
    if len(payload) != wanted:
        raise CorruptError(f"{name}: a payload of {len(payload)} bytes, {wanted} were expected")
