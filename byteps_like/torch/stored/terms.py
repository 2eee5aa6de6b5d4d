"""What a user asks of an optimizer whose weights servers keep."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.policy import Policy
from byteps_like.torch.adapt.tuning import OFF, Tune
from byteps_like.torch.stored.periods import Periods

APPLIES = ("auto", "server", "worker")
STORE_OPTIONS = ("age", "codec", "combine", "damp", "feedback", "filters", "on_loss", "replicas", "upper")
SYNCHRONOUS = "bsp"

Consistencies = Policy | str | Sequence[Policy | str]
"""One, or several to try."""


@dataclass(frozen=True)
class StoredTerms:
    """See DistributedOptimizer, whose arguments these are."""

    consistencies: tuple[Policy | str, ...]
    apply: str
    periods: Periods
    store: Mapping[str, Any]
    tune: Tune = OFF
    """How the one that stays is found, of several."""


def stored_terms(
    consistency: Consistencies, apply: str, periods: Periods, store: Mapping[str, Any], tune: Tune | None, setting: Tune
) -> StoredTerms | None:
    """The terms; None for synchronous training, whose weights ranks keep. `setting` is the job's, where `tune` is None.

    Raises InvalidArgumentError for values out of bounds, and for those that synchronous training can't have; TypeError
    for options that nobody knows.
    """
    unknown = [name for name in store if name not in STORE_OPTIONS]
    if unknown:
        raise TypeError(f"DistributedOptimizer() got an unexpected keyword argument {unknown[0]!r}")
    if apply not in APPLIES:
        raise InvalidArgumentError(f"apply={apply!r} is none of {', '.join(APPLIES)}")
    if not isinstance(consistency, Policy | str):
        return StoredTerms(tuple(consistency), apply, periods, store, _trying(consistency, tune, setting))
    if consistency != SYNCHRONOUS:
        if tune is not None and os.fspath(tune) != OFF:
            raise InvalidArgumentError(
                f"tune finds the fastest of several consistencies, and {consistency!r} is one: pass a list, as"
                " consistency=['bsp', 'ssp:s=3'], or leave tune out"
            )
        return StoredTerms((consistency,), apply, periods, store)
    given = {"apply": apply != "auto", "push_every, pull_every or periods": periods != Periods()}
    for name in [*(name for name, wanted in given.items() if wanted), *store]:
        raise InvalidArgumentError(
            f"{name} has no meaning where every step is everybody's: choose another consistency, as"
            " consistency='asp' (docs/how-to/consistency.md)"
        )
    return None


def _trying(consistencies: Sequence[Policy | str], tune: Tune | None, setting: Tune) -> Tune:
    wanted = setting if tune is None else tune
    if os.fspath(wanted) == OFF:
        raise InvalidArgumentError(
            f"consistency={list(consistencies)!r} are several, which are tried with tune='on' or a path; pass that, or"
            " one of them"
        )
    if len(consistencies) < 2 or len({repr(one) for one in consistencies}) < len(consistencies):
        raise InvalidArgumentError(f"consistency={list(consistencies)!r}: give two or more, each once, to try them")
    return wanted
