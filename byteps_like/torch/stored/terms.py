"""What a user asks of an optimizer whose weights servers keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.policy import Policy
from byteps_like.torch.stored.periods import Periods

APPLIES = ("auto", "server", "worker")
STORE_OPTIONS = ("age", "combine", "damp", "upper")
SYNCHRONOUS = "bsp"


@dataclass(frozen=True)
class StoredTerms:
    """See DistributedOptimizer, whose arguments these are."""

    consistency: Policy | str
    apply: str
    periods: Periods
    store: Mapping[str, Any]


def stored_terms(
    consistency: Policy | str, apply: str, periods: Periods, store: Mapping[str, Any]
) -> StoredTerms | None:
    """The terms; None for synchronous training, whose weights ranks keep.

    Raises InvalidArgumentError for values out of bounds, and for those that synchronous training can't have; TypeError
    for options that nobody knows.
    """
    unknown = [name for name in store if name not in STORE_OPTIONS]
    if unknown:
        raise TypeError(f"DistributedOptimizer() got an unexpected keyword argument {unknown[0]!r}")
    if apply not in APPLIES:
        raise InvalidArgumentError(f"apply={apply!r} is none of {', '.join(APPLIES)}")
    if consistency != SYNCHRONOUS:
        return StoredTerms(consistency, apply, periods, store)
    given = {"apply": apply != "auto", "push_every, pull_every or periods": periods != Periods()}
    for name in [*(name for name, wanted in given.items() if wanted), *store]:
        raise InvalidArgumentError(
            f"{name} has no meaning where every step is everybody's: choose another consistency, as"
            " consistency='asp' (docs/how-to/consistency.md)"
        )
    return None
