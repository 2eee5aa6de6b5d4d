"""Contributions to matrices that come as two factors: what is combined are their products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from byteps_like.store.combining.combining import Combining
from byteps_like.store.filters.factors import Factors
from byteps_like.store.filters.filter import PayloadFilter
from byteps_like.store.ledger import Version
from byteps_like.store.policies.policy import Policy


@dataclass(frozen=True)
class Products(Combining):
    """As `by` combines gradients. To servers factors are a filter: they combine what comes out of it."""

    by: Combining

    @property
    @override
    def adds_integers(self) -> bool:
        return False

    @override
    def text(self) -> str:
        return self.by.text()

    @override
    def factors(self, version: Version) -> list[float]:
        return self.by.factors(version)

    @override
    def filters(self, shape: Sequence[int]) -> tuple[PayloadFilter, ...]:
        """Matrices come as factors, tensors of other dimensions as they are."""
        return (Factors(shape[1]),) if len(shape) == 2 and shape[1] else ()

    @override
    def check_weight(self, weight: float) -> float:
        return self.by.check_weight(weight)

    @override
    def check(self, policy: Policy, ranks: int) -> None:
        self.by.check(policy, ranks)

    @override
    def check_block(self, last: bool) -> None:
        self.by.check_block(last)

    @override
    def last(self, policy: Policy, ranks: int) -> Policy:
        return self.by.last(policy, ranks)
