"""What a row of a table is before its first update: made of its id alone, so that it is the same whenever and wherever
it is made, and takes no memory before. Twin of server/store/content/first_values.h, to the last bit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from byteps_like.compression.codec import Draw
from byteps_like.compression.random import random_words, stream_of, to_unit
from byteps_like.compression.spec import built, canonical, parse
from byteps_like.errors import InvalidArgumentError

Values = NDArray[Any]

_PURPOSE = 0x524F5753  # "ROWS"


class FirstValues(ABC):
    """A frozen dataclass, whose fields are the keys of its text form."""

    name: ClassVar[str]

    @abstractmethod
    def of(self, row: int, width: int) -> NDArray[np.float64]:
        """The values of a row, before they are cast."""

    def takes(self, dtype: np.dtype[Any]) -> bool:
        """Whether rows of that type can begin so."""
        return dtype.kind == "f"

    def make(self, row: int, width: int, dtype: Any) -> Values:
        """The row of that id, of shape [1, width]."""
        return self.of(row, width).astype(dtype)[None]

    def text(self) -> str:
        """All its parameters, keys in the order of the alphabet."""
        return canonical(self)


@dataclass(frozen=True)
class Zeros(FirstValues):
    """Nothing but zeros."""

    name: ClassVar[str] = "zeros"

    @override
    def takes(self, dtype: np.dtype[Any]) -> bool:
        return True

    @override
    def of(self, row: int, width: int) -> NDArray[np.float64]:
        return np.zeros(width)


@dataclass(frozen=True)
class Uniform(FirstValues):
    """Random numbers in [-bound, bound), in 2^24 steps."""

    name: ClassVar[str] = "uniform"

    bound: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.name, "bound", self.bound, self.seed)

    @override
    def of(self, row: int, width: int) -> NDArray[np.float64]:
        return (2 * _units(self.seed, row, width) - 1) * self.bound


@dataclass(frozen=True)
class Normal(FirstValues):
    """Random numbers of mean 0 and standard deviation `std`, all within six of these: each the sum of 12 uniform ones,
    which comes to the same bits on every machine."""

    name: ClassVar[str] = "normal"

    std: float = 0.01
    seed: int = 0

    def __post_init__(self) -> None:
        _check(self.name, "std", self.std, self.seed)

    @override
    def of(self, row: int, width: int) -> NDArray[np.float64]:
        sums = np.zeros(width)
        for unit in _units(self.seed, row, 12 * width).reshape(width, 12).T:
            sums += unit
        return (sums - 6) * self.std


FIRST_VALUES: dict[str, type[FirstValues]] = {kind.name: kind for kind in (Zeros, Uniform, Normal)}
"""By name, as in server/store/content/first_values.cc."""


def first_values_of(wanted: FirstValues | str, dtype: Any) -> FirstValues:
    """What an argument means: "uniform", "normal:std=0.02". Raises InvalidArgumentError for what rows of that type
    can't begin as."""
    found = _parsed(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(found, FirstValues):
        raise InvalidArgumentError(f"init={wanted!r} is neither first values nor their text, as {Uniform().text()!r}")
    if not found.takes(np.dtype(dtype)):
        raise InvalidArgumentError(f"init={found.text()!r}: rows of {np.dtype(dtype)} begin as zeros")
    return found


def _parsed(text: str) -> FirstValues:
    try:
        name, given = parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"init={text!r}: {error}") from None
    if name not in FIRST_VALUES:
        raise InvalidArgumentError(f"init={text!r}: rows begin as {', '.join(FIRST_VALUES)}")
    return built(FIRST_VALUES[name], given, text, "init")


def _units(seed: int, row: int, count: int) -> NDArray[np.float64]:
    return to_unit(random_words(stream_of(seed, Draw(key=row), _PURPOSE, shared=True), count)).astype(np.float64)


def _check(name: str, key: str, value: float, seed: int) -> None:
    if not 0 <= value <= float(np.finfo(np.float32).max):
        raise InvalidArgumentError(f"init {name}: {key}={value} is no number from 0 to the largest float32")
    if not 0 <= seed < 1 << 63:
        raise InvalidArgumentError(f"init {name}: seed={seed} is no number from 0 to 2^63 - 1")
