"""All codecs by name. A new one is a file pair (byteps_like/compression/NAME.py and compression/NAME.cc) and a row here
and in compression/registry.cc."""

from __future__ import annotations

from dataclasses import dataclass

from byteps_like.compression.codec import Codec, Trait
from byteps_like.compression.quantised.casts import Bf16, Fp16
from byteps_like.compression.quantised.dithering import Dithering
from byteps_like.compression.quantised.eden import Eden
from byteps_like.compression.quantised.fixed import Fixed
from byteps_like.compression.quantised.fp8 import Fp8
from byteps_like.compression.quantised.int import Int
from byteps_like.compression.quantised.natural import Natural
from byteps_like.compression.quantised.onebit import Onebit
from byteps_like.compression.quantised.qsgd import Qsgd
from byteps_like.compression.quantised.sign import Sign
from byteps_like.compression.quantised.ternary import Ternary
from byteps_like.compression.quantised.thc import Thc
from byteps_like.compression.sparse.bitmap import Bitmap
from byteps_like.compression.sparse.blocksparse import BlockSparse
from byteps_like.compression.sparse.chunktopk import ChunkTopK
from byteps_like.compression.sparse.coo import Coo
from byteps_like.compression.sparse.randomk import RandomK
from byteps_like.compression.sparse.sketch import Sketch
from byteps_like.compression.sparse.sparseloco import SparseLoco
from byteps_like.compression.sparse.topk import TopK
from byteps_like.compression.spec import built, parse
from byteps_like.errors import InvalidArgumentError
from byteps_like.worker.api import TWOWAY

CODECS: tuple[type[Codec], ...] = (
    Fp16,
    Bf16,
    Fp8,
    Fixed,
    Int,
    Onebit,
    Sign,
    Qsgd,
    Natural,
    Ternary,
    Dithering,
    TopK,
    RandomK,
    ChunkTopK,
    Eden,
    Thc,
    Bitmap,
    Sketch,
    BlockSparse,
    Coo,
    SparseLoco,
)
"""In the order of their ids."""

SHORT: dict[str, Codec] = {
    "fp8-e5m2": Fp8(format="e5m2"),
    "fixed32": Fixed(),
    "fixed16": Fixed(bits=16),
    "int8": Int(),
    "int4": Int(bits=4, rounding="stochastic"),
    "eden4": Eden(),
    "eden3": Eden(bits=3),
    "eden2": Eden(bits=2),
    "eden1": Eden(bits=1),
    "thc4": Thc(),
    "thc3": Thc(bits=3),
    "thc2": Thc(bits=2, clamp=16),
    "uhc4": Thc(table="uniform"),
}
"""Names for a codec with parameters other than its defaults."""


def codec_of(text: str) -> Codec:
    """The codec that a name ("onebit"), a short name or a text with some parameters ("onebit:block=256") means.

    Raises InvalidArgumentError, naming what there is.
    """
    if text in SHORT:
        return SHORT[text]
    try:
        name, values = parse(text)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from None
    kinds = {kind.name: kind for kind in CODECS}
    if name not in kinds:
        raise InvalidArgumentError(f"there is no codec {name!r}; there are {', '.join([*kinds, *SHORT])}")
    return built(kinds[name], values, text, "codec")


@dataclass(frozen=True)
class Coding:
    """A codec by its canonical text as a tensor's spec has it; "twoway " before it asks who sums for error feedback."""

    spec: str
    two_way: bool
    trait: Trait
    variable: bool

    @classmethod
    def of(cls, text: str) -> Coding:
        """Raises InvalidArgumentError for a codec that there isn't, or that can't do two-way feedback."""
        spec = text.removeprefix(TWOWAY)
        codec = codec_of(spec)
        if codec.trait is Trait.OPAQUE:
            raise InvalidArgumentError(
                f"codec {spec}: its payloads can't be summed; use it for gathers or for a single receiver"
            )
        if spec != text and codec.trait is not Trait.REENCODE:
            raise InvalidArgumentError(f"{codec.name} takes no error feedback for sums, because its sums are exact")
        return cls(spec, spec != text, codec.trait, codec.variable)
