"""A policy decides what becomes of each push to a store key, when the next version is made, and who may read it.

Policies are pure: they decide by what the key's ledger shows them, and keep nothing. Servers run twins of these in C++.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.gradient_estimate import GradientEstimate

ROUNDS = 20
"""Policies look back on so many."""
NOTHING = -1
"""The base of who has pushed nothing yet."""


class PushVerdict(Enum):
    """What becomes of a push."""

    COUNT = "count"
    """It is part of the next version."""
    LATE = "late"
    """It is never applied, and its source is told so."""
    HOLD = "hold"
    """It is asked about again when the next version has been made."""


@dataclass(frozen=True)
class Contribution:
    """A contribution to a key."""

    source: int
    clock: int
    """How many the source has made before it."""
    base: int
    """The version that it was computed on."""
    weight: float = 1.0
    loss: float = field(default=math.nan, compare=False)
    """Of its source's step; NaN: not told."""
    idle: bool = field(default=False, compare=False)
    """It brings nothing: its source goes on to its next clock."""
    last: bool = True
    """It is all of what its source has set out to bring, or the last block of that: others of the same version may
    follow a block that isn't."""
    function: int = 0
    """Of the key's, from 1: what is done with it instead of the update; 0: that."""


@dataclass
class PushPace:
    """How fast something happens, in seconds of any one clock."""

    last: float = 0.0
    """When it happened last."""
    interval: float | None = None
    """Between the last two; None before there are two."""


@dataclass
class Open:
    """What the next version will be made of."""

    since: float = 0.0
    """When the last one was made."""
    pushes: list[Contribution] = field(default_factory=list)
    """In the order in which they came. Those of one source are blocks, of which no other is behind the last."""
    finished: dict[int, float] = field(default_factory=dict)
    """When the last blocks came, by source, in this order."""

    @property
    def sources(self) -> set[int]:
        """Of what is here."""
        return {push.source for push in self.pushes}


@dataclass
class StoreRound:
    """What came of one version, for whoever looks back."""

    began: float
    """When the version was made."""
    times: list[float] = field(default_factory=list)
    """Seconds from then on until last blocks came that were computed on it, ascending, also those that were late."""


class Key(Protocol):
    """What a policy sees of a key. See ledger.Ledger, which is one."""

    @property
    def version(self) -> int:
        """How many updates were made."""

    @property
    def clocks(self) -> Mapping[int, int]:
        """By live source, how many of its contributions are behind it: applied, or late."""

    @property
    def least(self) -> int:
        """The smallest of them."""

    @property
    def open(self) -> Open:
        """The next version so far."""

    @property
    def paces(self) -> Mapping[int, PushPace]:
        """By source, of its pushes."""

    @property
    def gap(self) -> float | None:
        """Seconds between two last blocks, from whomever, on average of late; None if there were no two."""

    @property
    def rounds(self) -> Sequence[StoreRound]:
        """Of the newest versions, ROUNDS before the one in force, and of that, as far as there are so many since a
        policy `observes`; the oldest first."""

    @property
    def estimates(self) -> Sequence[GradientEstimate]:
        """Of the newest versions of which that is known, ROUNDS at the most, the oldest first: under a policy that
        `observes`, of those made of at least two contributions. That of the version in force isn't among them."""

    @property
    def unfinished(self) -> Set[int]:
        """Live sources that have pushed a block, and not the last one yet."""

    @property
    def bases(self) -> Mapping[int, int]:
        """By source, that of its last push; NOTHING if there was none."""

    @property
    def leads(self) -> Mapping[int, float]:
        """By source, what `lead` has said after its last push."""


class Policy(ABC):
    """One consistency. Subclasses are frozen dataclasses; their fields are the keys of their text form."""

    name: str
    """In texts."""
    has_rounds = True
    """Versions are made of several contributions."""

    @property
    def observes(self) -> bool:
        """Whether it looks back on `rounds` and `estimates`, which takes memory, and a pass over contributions."""
        return False

    def check(self, ranks: int) -> None:  # noqa: B027 - most have nothing to check
        """Raises InvalidArgumentError if so many ranks can't use it."""

    def least(self, ranks: int) -> int:  # noqa: ARG002 - for those who make no such promise
        """Of how many contributions at the least, all computed on one version, each version is made while so many ranks
        live; 0: that isn't said."""
        return 0

    @abstractmethod
    def on_push(self, key: Key, push: Contribution) -> PushVerdict:
        """What becomes of a push: asked when it has come, and again after each version if it is held. Of a source whose
        last block is in the open version, or that has another one held, it is held unasked."""

    @abstractmethod
    def ready_at(self, key: Key) -> float | None:
        """From when on the next version may be made of what is open; None: not before something more comes. Asked when
        anything has changed."""

    @abstractmethod
    def may_read(self, key: Key, reader: int) -> bool:
        """Whether a source may read the version in force, or has to wait. Once true it stays so until the source pushes
        again."""

    def lead(self, key: Key, source: int) -> float:  # noqa: ARG002 - for those who have a bound
        """By how many clocks `source`, which has just pushed, may be ahead of the slowest when it reads. The ledger
        keeps it for `may_read`."""
        return float("inf")


NOW = float("-inf")
"""When a version is made that need not wait."""


def whole(name: str, value: object) -> int:
    """`value` of a policy's field. Raises InvalidArgumentError unless it is a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidArgumentError(f"{name}={value!r} is no whole number")
