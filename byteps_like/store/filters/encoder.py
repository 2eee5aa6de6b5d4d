"""How what one rank pushes to one tensor becomes payloads, partition by partition."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Codec, Draw, Floats
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.arrays import Array, outgoing, shape_of
from byteps_like.store.filters.codec_filter import CodecFilter
from byteps_like.store.filters.factors import Factors
from byteps_like.store.filters.payloads import Payloads
from byteps_like.store.updates.update import ValueUpdate
from byteps_like.worker.api import TensorSpec


class FactorPair(NamedTuple):
    """Contiguous arrays of K x M and K x N, which stand for a matrix of M x N."""

    left: Array
    right: Array


Pushed = Array | FactorPair


class PartOf(NamedTuple):
    """Of a tensor, a partition: its number, and which elements it has, in C order."""

    number: int
    elements: slice


class Encoder:
    """Through filters, each partition by itself. One thread at a time."""

    def __init__(self, payloads: Payloads) -> None:
        self.payloads = payloads

    def taken(self, value: Any, spec: TensorSpec) -> Pushed:
        """What is pushed to a tensor, as it can be encoded. Raises InvalidArgumentError if it doesn't fit."""
        if isinstance(value, tuple):
            raise InvalidArgumentError(
                f"{spec.name!r} takes one array: two factors are for matrices of a store with combine='factors'"
            )
        if shape_of(value) != spec.shape:
            raise InvalidArgumentError(
                f"{spec.name!r} has the shape {list(spec.shape)}, not {list(shape_of(value))}: give one of its shape"
            )
        return outgoing(value, spec.dtype)

    def encode(self, part: PartOf, pushed: Pushed, draw: Draw, lr: float) -> NDArray[np.uint8]:  # noqa: ARG002
        """What stands for a partition. `lr`: of the push, NaN for the update's own. Raises InvalidArgumentError if it
        is too much to be sent."""
        return self.payloads.encode(_elements(part, pushed), draw)

    def rest(self, part: PartOf) -> Floats:
        """What was left out of contributions so far, and comes with the next. A copy."""
        return np.zeros(part.elements.stop - part.elements.start, np.float32)

    def owe(self, part: PartOf, rest: Floats) -> None:
        """That much is to come with the next contribution, instead. Dropped where nothing is ever left out."""

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
    def encode(self, part: PartOf, pushed: Pushed, draw: Draw, lr: float) -> NDArray[np.uint8]:
        rows = _elements(part, pushed)
        rest = self.rests.get(part.number)
        if rest is None:
            rest = self.rests[part.number] = np.zeros(rows.size, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            rest *= self._share * self._rescaling(part.number, lr)
            rest += rows.astype(np.float32, copy=False)
        payload = self._codec.encode_with_rest(rest, draw, rest)
        np.nan_to_num(rest, copy=False, nan=0.0, posinf=0.0, neginf=0.0)  # else it would come back for ever
        return self.payloads.encode_on(payload, draw)

    @override
    def rest(self, part: PartOf) -> Floats:
        found = self.rests.get(part.number)
        return super().rest(part) if found is None else found.copy()

    @override
    def owe(self, part: PartOf, rest: Floats) -> None:
        self.rests[part.number] = rest.copy()

    @override
    def begin_anew(self) -> None:
        self.rests.clear()
        self._rates.clear()

    def _rescaling(self, part: int, lr: float) -> np.float32:
        before, self._rates[part] = self._rates.get(part, math.nan), lr
        return np.float32(before / lr if lr > 0 and before > 0 else 1.0)


class FactorsEncoder(Encoder):
    """Of matrices that may come as two factors, by the first of the filters."""

    def __init__(self, payloads: Payloads, factors: Factors) -> None:
        super().__init__(payloads)
        self._factors = factors

    @override
    def taken(self, value: Any, spec: TensorSpec) -> Pushed:
        if not isinstance(value, tuple):
            return super().taken(value, spec)
        shapes = [shape_of(one) for one in value]
        if len(shapes) != 2 or [shape[-1:] for shape in shapes] != [(extent,) for extent in spec.shape] or (
            shapes[0][:-1] != shapes[1][:-1]
        ):  # fmt: skip
            rows, columns = spec.shape
            raise InvalidArgumentError(
                f"{spec.name!r}: factors of {rows} x {columns} are two arrays of the shapes [K, {rows}] and"
                f" [K, {columns}], not {', '.join(str(list(shape)) for shape in shapes)}"
            )
        left, right = (
            outgoing(one, spec.dtype).reshape(-1, shape[-1]) for one, shape in zip(value, shapes, strict=True)
        )
        return FactorPair(left, right)

    @override
    def encode(self, part: PartOf, pushed: Pushed, draw: Draw, lr: float) -> NDArray[np.uint8]:
        if not isinstance(pushed, FactorPair):
            return super().encode(part, pushed, draw, lr)
        begin, end = (place // self._factors.columns for place in (part.elements.start, part.elements.stop))
        return self.payloads.encode_on(self._factors.product(pushed.left[:, begin:end], pushed.right), draw)


def encoder_of(payloads: Payloads, share: float) -> Encoder:
    """Of a tensor whose contributions go through `payloads`; `share` as of a FeedbackEncoder."""
    first = payloads.first
    if isinstance(first, Factors):
        return FactorsEncoder(payloads, first)
    return FeedbackEncoder(payloads, first, share) if isinstance(first, CodecFilter) and share else Encoder(payloads)


def _elements(part: PartOf, pushed: Pushed) -> Array:
    assert not isinstance(pushed, FactorPair)  # since it was taken
    return pushed.reshape(-1)[part.elements]


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
