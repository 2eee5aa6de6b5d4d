"""fp16 and bf16: arrays of 16-bit floats, which any reduction sums."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats, PayloadPlan, Trait, check_length
from byteps_like.dtypes import DType


@dataclass(frozen=True)
class Cast(Codec):
    """16 bits per element, to the nearest, ties to even; sums are made in fp32 and rounded once."""

    trait: ClassVar[Trait] = Trait.DENSE
    biased: ClassVar[bool] = False
    source: ClassVar[str] = "IEEE 754"
    dtype: ClassVar[DType]

    @staticmethod
    @abstractmethod
    def narrow(x: Floats) -> NDArray[Any]:
        """To 16 bits."""

    @staticmethod
    @abstractmethod
    def widen(payload: bytes) -> Floats:
        """From 16 bits."""

    @override
    def plan(self, numel: int, world: int) -> PayloadPlan:
        return PayloadPlan(payload=2 * numel, result=2 * numel, dense=self.dtype)

    @override
    def encode(self, x: Floats, draw: Draw, agreed: NDArray[Any], world: int) -> bytes:
        return bytes(self.narrow(x).tobytes())

    @override
    def residual(self, x: Floats, draw: Draw, agreed: NDArray[Any], payload: bytes, world: int) -> Floats:
        return x - self.widen(payload)

    @override
    def decode(
        self, result: bytes, count: int, draw: Draw, agreed: NDArray[Any], numel: int, world: int, factor: float = 1.0
    ) -> Floats:
        check_length(self.name, result, 2 * numel)
        return np.float32(factor) * self.widen(result)


@dataclass(frozen=True)
class Fp16(Cast):
    """11 bits of precision; beyond 65504 is infinity, which gradient scalers see."""

    name: ClassVar[str] = "fp16"
    id: ClassVar[int] = 1
    dtype: ClassVar[DType] = DType.FLOAT16

    @staticmethod
    @override
    def narrow(x: Floats) -> NDArray[Any]:
        return x.astype(np.float16)

    @staticmethod
    @override
    def widen(payload: bytes) -> Floats:
        return np.frombuffer(payload, np.float16).astype(np.float32)


@dataclass(frozen=True)
class Bf16(Cast):
    """8 bits of precision and the range of fp32: what every other codec has to be compared with."""

    name: ClassVar[str] = "bf16"
    id: ClassVar[int] = 2
    dtype: ClassVar[DType] = DType.BFLOAT16

    @staticmethod
    @override
    def narrow(x: Floats) -> NDArray[Any]:
        bits = x.view(np.uint32)
        rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        return np.where(np.isnan(x), np.uint32(0x7FC0), rounded).astype(np.uint16)

    @staticmethod
    @override
    def widen(payload: bytes) -> Floats:
        return (np.frombuffer(payload, np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)
