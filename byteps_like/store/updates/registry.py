"""All updates by name. A new one of ours is a class in this room, a row here, and its native twin in server/update; one
of a user is a class with the decorator `update` (docs/how-to/add-an-update.md)."""

from __future__ import annotations

from typing import TypeVar

from byteps_like.compression.spec import built, parse
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.updates.adagrad import Adagrad, RowAdagrad
from byteps_like.store.updates.adam import Adam, AdamW
from byteps_like.store.updates.function import FunctionUpdate
from byteps_like.store.updates.layerwise import Lamb, Lars
from byteps_like.store.updates.plain import Add, Assign, NoUpdate
from byteps_like.store.updates.proximal import Proximal
from byteps_like.store.updates.sgd import Momentum, Nesterov, Sgd
from byteps_like.store.updates.update import ValueUpdate

OURS: tuple[type[ValueUpdate], ...] = (
    NoUpdate,
    Assign,
    Add,
    Sgd,
    Momentum,
    Nesterov,
    Adagrad,
    RowAdagrad,
    Adam,
    AdamW,
    Lars,
    Lamb,
    Proximal,
)
"""Those with a native twin, in the order of server/update/updates.cc."""

UPDATES: dict[str, type[ValueUpdate]] = {kind.name: kind for kind in OURS} | {FunctionUpdate.name: FunctionUpdate}
"""Ours, functions of users, and those that `update` has added."""

Kind = TypeVar("Kind", bound=type[ValueUpdate])


def update(kind: Kind) -> Kind:
    """Decorates a frozen dataclass that is a `ValueUpdate`: makes it known by its name.

    Raises InvalidArgumentError where another class has the name.
    """
    if UPDATES.setdefault(kind.name, kind) is not kind:
        raise InvalidArgumentError(f"there is already an update {kind.name!r}: {UPDATES[kind.name].__qualname__}")
    return kind


def update_of(text: str) -> ValueUpdate:
    """The update that a name ("sgd") or a text with some parameters ("adam:lr=0.001,beta1=0.9") means; "function:mine"
    is short for "function:of=mine".

    Raises InvalidArgumentError for unknown names and parameters, naming what there is, and for values out of bounds.
    """
    try:
        name, values = parse(_in_full(text))
    except ValueError as error:
        raise InvalidArgumentError(f"update: {error}") from None
    if name not in UPDATES:
        raise InvalidArgumentError(f"there is no update {name!r}; there are {', '.join(UPDATES)}")
    return built(UPDATES[name], values, text, "update")


def _in_full(text: str) -> str:
    """With the name of the parameter that needs none."""
    name, _, rest = text.partition(":")
    kind = UPDATES.get(name.strip())
    return f"{name}:{kind.sole}={rest}" if kind and kind.sole and rest and "=" not in rest else text
