"""How what one rank pushes to one tensor becomes payloads, partition by partition."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.codec_filter import CodecFilter
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.updates.update import ValueUpdate


class Encoder:
    """Through filters, each partition by itself. One thread at a time."""

    def __init__(self, payloads: Payloads) -> None:
        self.payloads = payloads

    def encode(self, part: int, rows: NDArray[Any], draw: Draw, lr: float) -> NDArray[np.uint8]:  # noqa: ARG002
        """What stands for partition `part`, whose elements are `rows`. `lr`: of the push, NaN for the update's own.
        Raises InvalidArgumentError if it is too much to be sent."""
        return self.payloads.encode(rows, draw)

    def begin_anew(self) -> None:
        """What is kept of contributions so far is dropped."""


class FeedbackEncoder(Encoder):
    """With error feedback: `share`, from 0 to 1, of what `codec`, the first of the filters, leaves out of a partition's
    contribution is added to its next one; scaled where the learning rate changes, so that updates add up.

    Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Zheng et al., "Communication-efficient
    distributed blockwise momentum SGD with error-feedback", NeurIPS 2019.
    """

    def __init__(self, payloads: Payloads, codec: CodecFilter, share: float) -> None:
        super().__init__(payloads)
        self._codec, self._share = codec, np.float32(share)
        self.rests: dict[int, Floats] = {}
        """What was left out last, by partition."""
        self._rates: dict[int, float] = {}

    @override
    def encode(self, part: int, rows: NDArray[Any], draw: Draw, lr: float) -> NDArray[np.uint8]:
        if not rows.size:
            return super().encode(part, rows, draw, lr)
        rest = self.rests.get(part)
        if rest is None:
            rest = self.rests[part] = np.zeros(rows.size, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            rest *= self._share * self._rescaling(part, lr)
            rest += rows.astype(np.float32, copy=False)
        payload = self._codec.encode_with_rest(rest, draw, rest)
        np.nan_to_num(rest, copy=False, nan=0.0, posinf=0.0, neginf=0.0)  # else it would come back for ever
        return self.payloads.encode_on(payload, draw)

    @override
    def begin_anew(self) -> None:
        self.rests.clear()
        self._rates.clear()

    def _rescaling(self, part: int, lr: float) -> np.float32:
        before, self._rates[part] = self._rates.get(part, math.nan), lr
        return np.float32(before / lr if lr > 0 and before > 0 else 1.0)


def encoder_of(payloads: Payloads, share: float) -> Encoder:
    """Of a tensor whose contributions go through `payloads`; `share` as of a FeedbackEncoder."""
    codec = payloads.codec
    return FeedbackEncoder(payloads, codec, share) if codec is not None and share else Encoder(payloads)


def codec_filter(codec: Codec | str) -> tuple[CodecFilter, ...]:
    """That codec, if there is one. Raises InvalidArgumentError for one that there isn't."""
    return (CodecFilter(codec_of(codec) if isinstance(codec, str) else codec),) if codec else ()


def feedback_share(wanted: float | None, codec: tuple[CodecFilter, ...], update: ValueUpdate) -> float:
    """How much of what a codec leaves out comes with the next contribution; None: all where it helps. Raises
    InvalidArgumentError for a share out of bounds, or of nothing."""
    if wanted is None:
        return 1.0 if update.adds_up and any(one.codec.biased for one in codec) else 0.0
    if not 0 <= wanted <= 1:
        raise InvalidArgumentError(f"feedback={wanted} of what a codec leaves out must be from 0 to 1")
    if wanted and not codec:
        raise InvalidArgumentError(f"feedback={wanted}: without a codec nothing is left out; name one, codec='int8'")
    return wanted
