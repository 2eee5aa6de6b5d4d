"""All policies by name, and their text form, "name:key=value,key=value". A new one is a file in this folder, with a
subclass of Policy under `@policy`, imported here; a user's may be anywhere."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeVar, cast

from byteps_like.compression.spec import canonical, parse
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.policies.bounded import Asp, Dssp, Ssp
from byteps_like.store.policies.partial import Backup, KOfN
from byteps_like.store.policies.policy import Policy
from byteps_like.store.policies.synchronous import Bsp
from byteps_like.store.policies.unlocked import Hogwild

POLICIES: dict[str, type[Policy]] = {one.name: one for one in (Bsp, KOfN, Backup, Ssp, Dssp, Asp, Hogwild)}
"""By name."""

Kind = TypeVar("Kind", bound=type[Policy])


def policy(kind: Kind) -> Kind:
    """Decorates a frozen dataclass, a Policy, which can be asked for by its `name` from then on.

    Raises InvalidArgumentError for a name that another has.
    """
    if not is_dataclass(kind):
        raise InvalidArgumentError(
            f"the policy {kind.__name__} is no dataclass: its fields are the keys of its text form"
        )
    if POLICIES.setdefault(kind.name, kind) is not kind:
        raise InvalidArgumentError(f"there is a policy {kind.name!r} already: {POLICIES[kind.name].__qualname__}")
    return kind


def policy_of(wanted: Policy | str, ranks: int) -> Policy:
    """The policy of that text, for so many ranks. Raises InvalidArgumentError for one that isn't, or can't be."""
    found = _parsed(wanted) if isinstance(wanted, str) else wanted
    if not isinstance(found, Policy):
        raise InvalidArgumentError(
            f"consistency={wanted!r} is neither a policy nor the text of one, as {text_of(Ssp(3))!r}"
        )
    found.check(ranks)
    return found


def text_of(policy: Policy) -> str:
    """All its parameters, keys in the order of the alphabet: equal texts mean equal policies."""
    return canonical(policy)


def _parsed(text: str) -> Policy:
    try:
        name, given = parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"consistency={text!r}: {error}") from None
    kind: Any = POLICIES.get(name)
    if kind is None:
        raise InvalidArgumentError(f"there is no policy {name!r}; these are known: {', '.join(sorted(POLICIES))}")
    known = {one.name for one in fields(kind)}
    missing = [one.name for one in fields(kind) if one.default is MISSING and one.name not in given]
    if given.keys() - known:
        raise InvalidArgumentError(
            f"{text!r}: {name} has no {sorted(given.keys() - known)[0]!r}; it has {sorted(known)}"
        )
    if missing:
        raise InvalidArgumentError(f"{text!r} lacks {missing[0]}, as in {name}:{missing[0]}=1")
    return cast(Policy, kind(**{key: _value(value) for key, value in given.items()}))


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        if not math.isnan(value):
            return value
    return text
