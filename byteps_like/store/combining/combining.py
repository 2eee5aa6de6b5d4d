"""What a way of combining is: by what each contribution of a version is multiplied before they are added up.

Servers do it with twins of these (server/store/combining), which give the same bits: factors are fp64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.filter import PayloadFilter
from byteps_like.store.ledger import Version
from byteps_like.store.policies.bounded import Asp
from byteps_like.store.policies.policy import Policy

_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-149, 2.0**128 - 2.0**104
"""Of fp32, as which weights travel. So no product of a weight and an age factor is 0, and no sum infinite."""


class Combining(ABC):
    """One way. Subclasses are frozen dataclasses."""

    @property
    @abstractmethod
    def adds_integers(self) -> bool:
        """Whether every factor is the contribution's own weight."""

    @abstractmethod
    def text(self) -> str:
        """As servers read it, with all parameters: equal texts mean equal ways. Raises InvalidArgumentError for what
        servers don't know."""

    @abstractmethod
    def factors(self, version: Version) -> list[float]:
        """By what each contribution of `version` is multiplied: float64. None at all where nothing can be made of these
        contributions. Raises InvalidArgumentError for a weight or a factor that makes no sense."""

    def filters(self, shape: Sequence[int]) -> tuple[PayloadFilter, ...]:  # noqa: ARG002 - for those who need none
        """What contributions to a tensor of `shape` go through before all else."""
        return ()

    def check_weight(self, weight: float) -> float:
        """`weight` itself. Raises InvalidArgumentError if no contribution can have it."""
        return check_weight(weight)

    def check_block(self, last: bool) -> None:  # noqa: B027 - most are sums, of blocks, too
        """Raises InvalidArgumentError if contributions can't be cut into blocks, and this isn't the only one."""

    def check(self, policy: Policy, ranks: int) -> None:  # noqa: B027 - most go with all
        """Raises InvalidArgumentError if versions as `policy` makes them, of so many ranks, can't be combined so."""

    def last(self, policy: Policy, ranks: int) -> Policy:  # noqa: ARG002 - for those who can't have any
        """Another policy than `policy` by which what is left becomes a version when no more is to come."""
        return Asp()


def check_weight(weight: float) -> float:
    """`weight` itself. Raises InvalidArgumentError if nothing can be combined by it."""
    if not _LEAST_WEIGHT <= weight <= _MOST_WEIGHT:
        raise InvalidArgumentError(f"weight {weight}: it must be a number above 0 that fp32 can hold")
    return weight
