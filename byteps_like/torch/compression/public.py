"""`Compression`: what users pass as `compression=`, by the names of BytePS, Horovod and the registry of codecs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import Any

from byteps_like.compression.codec import Codec
from byteps_like.compression.registry import CODECS, SHORT, codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.casts import BF16Compressor, FP16Compressor, NoneCompressor
from byteps_like.torch.compression.policy import ByRows, Compress, LowRank

DGC_WARMUP = (0.25, 0.0625, 0.015625, 0.004)
"""Shares of the gradient that are sent in the stages before the last, as in the paper."""

_WRAPPERS = {field.name for field in fields(Compress)} - {"codec"}


class _ByName(type):
    """Gives `Compression` a factory for each codec of the registry."""

    def __getattr__(cls, name: str) -> Callable[..., Compress]:
        for kind in CODECS:
            if kind.name == name:
                return partial(_made, kind)
        if name in SHORT:
            return partial(Compress, SHORT[name])
        raise AttributeError(f"there is no codec {name!r}; there are {', '.join(_names())}")

    def __dir__(cls) -> list[str]:
        return [*super().__dir__(), *_names()]


class Compression(metaclass=_ByName):
    """Builds the values of `compression=`: casts, codecs by name, and gradients by rows.

    `Compression.none`, `.fp16` and `.bf16` are casts. `.rows` sends only the rows that are not all zero, while they are
    few. `Compression.NAME(...)` is the codec called NAME. It takes the codec's parameters, in order or by name, and
    those of Compress by name: `Compression.topk(0.01, feedback=True)`, `Compression.onebit(two_way=True)`. Short names,
    such as int8, take only the latter: `Compression.int8(feedback=False)`.

    Codecs raise InvalidArgumentError for parameters that they don't have or that are out of range.
    """

    rows = Compress(ByRows())
    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor

    @staticmethod
    def dgc(
        ratio: float = 0.001,
        momentum: float = 0.9,
        *,
        warmup: Sequence[float] = DGC_WARMUP,
        steps: int = 0,
        clip: float = 0.0,
        nesterov: bool = False,
    ) -> Compress:
        """Deep Gradient Compression (Lin et al., ICLR 2018): the largest `ratio` of the accumulated velocity is sent.

        `momentum` stands for the optimizer's own, which must be 0; it is corrected and masked. With `steps`, the shares
        `warmup` are sent for so many steps each, before `ratio` is. `clip` scales each parameter's gradient down to
        this norm over the root of the number of ranks; the paper's norm is that of all gradients together.
        """
        early = tuple((steps, _topk(share)) for share in warmup) if steps else ()
        codec = _topk(ratio)
        return Compress(codec, True, momentum, nesterov, masked=True, clip=clip, warmup=early)

    @staticmethod
    def powersgd(rank: int = 4, *, feedback: bool = True) -> Compress:
        """PowerSGD (Vogels et al., NeurIPS 2019): a gradient of two or more dimensions travels as two factors.

        32 rank (rows + columns) bits. Linear: two rounds of plain sums, on any route. What saves less than half, and
        what has one dimension, goes as it is.
        """
        return Compress(LowRank(rank), feedback)


def _topk(ratio: float) -> Codec:
    return codec_of(f"topk:ratio={ratio}")


def _names() -> list[str]:
    return [*(kind.name for kind in CODECS), *SHORT]


def _made(kind: type[Codec], *values: Any, **named: Any) -> Compress:
    wrappers = _WRAPPERS - {field.name for field in fields(kind)}
    own = {name: value for name, value in named.items() if name not in wrappers}
    try:
        codec = kind(*values, **own)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(f"Compression.{kind.name}: {error}") from None
    return Compress(codec, **{name: value for name, value in named.items() if name in wrappers})
