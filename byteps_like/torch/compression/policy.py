"""How one gradient travels: a cast or a codec, and what is wrapped around a codec."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from byteps_like.compression.codec import Codec, Trait
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.casts import CASTS, Compressor, NoneCompressor
from byteps_like.worker.api import TWOWAY


@dataclass(frozen=True)
class LowRank:
    """PowerSGD's approximation: not of bytes but of matrices, so no codec of the registry. See low_rank."""

    rank: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise InvalidArgumentError(f"powersgd: rank={self.rank!r} must be a whole number from 1")

    def fits(self, shape: torch.Size) -> bool:
        """Whether a gradient of `shape`, as a matrix of its first dimension, is at least twice its two factors."""
        return len(shape) > 1 and 2 * self.rank * (shape[0] + shape[1:].numel()) <= shape.numel()


@dataclass(frozen=True)
class ByRows:
    """Rows that aren't all zero, of gradients that touch few: exact, and as they are where most are touched. No codec
    of the registry, since what travels is found before memory is laid out. See sparse_gradients."""

    def fits(self, shape: torch.Size) -> bool:
        """Whether a gradient of `shape` has rows."""
        return len(shape) > 1


@dataclass(frozen=True)
class Auto:
    """One of `candidates` or none, whichever is fastest for that many bytes on these machines: see selecting."""

    candidates: tuple[Codec, ...]

    @classmethod
    def of(cls, text: str) -> Auto:
        """By the candidates' names, with commas; "": the usual ones. Raises InvalidArgumentError."""
        names = [name.strip() for name in (text or AUTO_CANDIDATES).split(",")]
        return cls(tuple(codec_of(name) for name in names if name))


AUTO_CANDIDATES = "bf16,int8,thc4"
"""In the order of their errors; none has done harm to training (see docs/how-to/compression.md)."""

Kind = Codec | LowRank | ByRows | Auto | type[Compressor]


@dataclass(frozen=True)
class Compress:
    """Describes how a gradient is compressed: a codec or cast, plus optional error feedback, momentum and warm-up.

        bps.DistributedOptimizer(optimizer, named, compression=Compress("topk:ratio=0.01", momentum=0.9))

    Immutable. Codecs take gradients of any shape and floating-point dtype, and encode them from float32.
    docs/how-to/compression.md describes the codecs.

    codec: a codec of byteps_like.compression, its text ("topk:ratio=0.01"), or a cast ("bf16").
    feedback: error feedback, which adds what one round leaves out to the next gradient (Seide et al., Interspeech 2014;
        Karimireddy et al., ICML 2019); it is rescaled when the learning rate changes. None turns it on for biased
        codecs under torch's SGD and ASGD, and for PowerSGD. It has harmed training under adaptive optimizers.
    momentum: mu of the momentum m = mu m + g that is accumulated before the codec, from 0 (none) to less than 1. It
        replaces the optimizer's own momentum, which must be 0.
    nesterov: with momentum, encodes g + mu m, as BytePS does; False encodes m.
    masked: with momentum and feedback, resets the momentum of the elements that were sent (Deep Gradient Compression,
        Lin et al., ICLR 2018).
    two_way: servers also keep error feedback for the sums that they encode again; for codecs of trait REENCODE.
    clip: upper bound of the norm of each parameter's gradient, divided by the square root of the number of ranks;
        larger gradients are scaled down to it. 0 never clips.
    warmup: pairs (number of rounds, codec) to run through before `codec` takes over; a codec of None sends
        uncompressed.

    Raises InvalidArgumentError for an unknown codec, values out of range, or options that the codec doesn't support.
    """

    codec: Kind | str
    feedback: bool | None = None
    momentum: float = 0.0
    nesterov: bool = True
    masked: bool = False
    two_way: bool = False
    clip: float = 0.0
    warmup: tuple[tuple[int, Codec | None], ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.codec, str):
            object.__setattr__(self, "codec", CASTS.get(self.codec) or codec_of(self.codec))
        if not 0.0 <= self.momentum < 1.0 or self.clip < 0.0 or any(rounds < 1 for rounds, _ in self.warmup):
            raise InvalidArgumentError(
                f"{self}: momentum must be in [0, 1), clip not negative, warmup of 1 round or more"
            )
        wrapped = self.momentum or self.masked or self.two_way or self.clip or self.warmup
        if not self.is_coded and (wrapped or (self.feedback and not (self.low_rank or self.auto))):
            raise InvalidArgumentError(
                f"{self}: casts and rows take no feedback, momentum, clip, two_way or warm-up; auto and PowerSGD"
                " take feedback only"
            )
        if isinstance(self.codec, type):
            object.__setattr__(self, "feedback", None)
        if self.two_way and getattr(self.codec, "trait", None) is not Trait.REENCODE:
            raise InvalidArgumentError(f"{self}: two_way requires a codec whose sums are re-encoded by servers")

    @property
    def is_coded(self) -> bool:
        """Whether it has a codec of the registry."""
        return isinstance(self.codec, Codec)

    @property
    def low_rank(self) -> LowRank | None:
        """PowerSGD, if it is that."""
        return self.codec if isinstance(self.codec, LowRank) else None

    @property
    def by_rows(self) -> bool:
        """Whether only its rows travel, while they are few."""
        return isinstance(self.codec, ByRows)

    @property
    def auto(self) -> Auto | None:
        """The candidates, if it is still to be chosen."""
        return self.codec if isinstance(self.codec, Auto) else None

    @property
    def name(self) -> str:
        """Of the codec; for names of arenas."""
        if isinstance(self.codec, Codec):
            return self.codec.name
        return "powersgd" if self.low_rank else "rows" if self.by_rows else "auto" if self.auto else ""

    @property
    def cast(self) -> type[Compressor]:
        """The cast that it is, or none."""
        return self.codec if isinstance(self.codec, type) else NoneCompressor

    def wire_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The element type of an arena for gradients of `dtype`: codecs take float32."""
        return torch.float32 if self.is_coded else self.cast.wire_dtype(dtype)

    def text(self, rounds: int) -> str:
        """What the worker is to make of the payload after that many rounds: TensorSpec.codec."""
        codec: Kind | str | None = self.codec
        for length, early in self.warmup:
            if rounds < length:
                codec = early
                break
            rounds -= length
        return (TWOWAY if self.two_way else "") + codec.spec() if isinstance(codec, Codec) else ""

    def resolved(self, plain: bool) -> Compress:
        """With `feedback` decided: `plain` says whether the optimizer is one that it helps."""
        if self.feedback is not None or isinstance(self.codec, type):
            return self
        if self.auto:
            return self if plain else replace(self, feedback=False)
        return replace(
            self, feedback=self.low_rank is not None or (plain and bool(getattr(self.codec, "biased", False)))
        )


RAW = Compress(NoneCompressor)
