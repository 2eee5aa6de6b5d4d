"""Decoded gradients: what the ranks that are there have sent adds up to the gradient of the whole batch."""

from __future__ import annotations

from dataclasses import dataclass, field

from typing_extensions import override

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.combining.gradient_code import GradientCode
from byteps_like.store.combining.weighed import COMBINES
from byteps_like.store.ledger import Version
from byteps_like.store.policies.partial import Backup, KOfN
from byteps_like.store.policies.policy import Policy


@dataclass(frozen=True)
class Decoded(Combining):
    """The sum or the mean of the gradients of all parts of `code`, which ranks have as sources.

    Raises InvalidArgumentError for an unknown `combine`.
    """

    code: GradientCode
    combine: str = "mean"
    _known: dict[tuple[int, ...], list[float]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """By ranks that are there: each set is solved once."""

    def __post_init__(self) -> None:
        if self.combine not in COMBINES:
            raise InvalidArgumentError(f"coded gradients become a {' or a '.join(COMBINES)}, not {self.combine!r}")

    @property
    @override
    def adds_integers(self) -> bool:
        return False

    @override
    def text(self) -> str:
        """As "coded:combine=mean,n=4,s=1,seed=0"."""
        return f"coded:combine={self.combine},n={self.code.n},s={self.code.s},seed={self.code.seed}"

    @override
    def factors(self, version: Version) -> list[float]:
        ranks = tuple(sorted(push.source for push in version.pushes))
        if not ranks or ranks[-1] >= self.code.n:
            return []
        if ranks not in self._known:
            self._known[ranks] = self.code.decoded(ranks)
        by_rank = dict(zip(ranks, self._known[ranks], strict=False))
        divisor = self.code.n if self.combine == "mean" else 1
        return [by_rank[push.source] / divisor for push in version.pushes] if by_rank else []

    @override
    def check_weight(self, weight: float) -> float:
        if weight != 1:
            raise InvalidArgumentError(
                f"weight {weight}: the code says what a coded gradient counts, so its weight is 1"
            )
        return weight

    @override
    def check_block(self, last: bool) -> None:
        if not last:
            raise InvalidArgumentError(
                "a block of a coded gradient can't be decoded: contribute all of it at once, with last=True"
            )

    @override
    def last(self, policy: Policy, ranks: int) -> Policy:
        """Of fewer than n - s contributions nothing can be made: one under which nobody waits for who has come."""
        return Backup(self.code.s) if isinstance(policy, KOfN) else KOfN(ranks - self.code.s)

    @override
    def check(self, policy: Policy, ranks: int) -> None:
        if ranks != self.code.n:
            raise InvalidArgumentError(f"a gradient code of n={self.code.n} ranks can't be used by {ranks}")
        least = policy.least(ranks)
        if least < ranks - self.code.s:
            raise InvalidArgumentError(
                f"gradients coded against s={self.code.s} missing ranks need contributions of {ranks - self.code.s},"
                f" all computed on one version, and {policy.name} makes versions of {least or 'any'}: use"
                f" k_of_n:k={ranks - self.code.s}"
            )
