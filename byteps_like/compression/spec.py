"""The text form of the parameters of a codec, or of anything else that is chosen by name, as compression/spec.h reads
it: "name:key=value,key=value"."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from byteps_like.errors import InvalidArgumentError

Built = TypeVar("Built")


def canonical(codec: Any) -> str:
    """All parameters of `codec` (a dataclass with a `name`), keys in the order of the alphabet."""
    pairs = sorted((field.name, getattr(codec, field.name)) for field in fields(codec))
    text = ",".join(f"{key}={_value(value)}" for key, value in pairs)
    return f"{codec.name}:{text}" if text else str(codec.name)


def _value(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def parse(text: str) -> tuple[str, dict[str, str]]:
    """The name, and the keys with their values as texts. Raises ValueError for what is no key=value."""
    name, _, rest = text.partition(":")
    values: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals or key in values:
            raise ValueError(f"{item!r} in {text!r} is not key=value, or occurs twice")
        values[key.strip()] = value.strip()
    return name.strip(), values


def built(kind: type[Built], values: dict[str, str], text: str, noun: str) -> Built:
    """An object of `kind`, a dataclass with a `name` whose fields have defaults, with the `values` that `text` gives.

    Raises InvalidArgumentError, which calls it a `noun`, for unknown parameters and for values that it refuses.
    """
    known = {field.name: type(field.default) for field in fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(values.keys() - known.keys())
    if unknown:
        name = kind.name  # type: ignore[attr-defined]
        raise InvalidArgumentError(
            f"{unknown[0]!r} in {text!r} is not a parameter of {name}, which has {', '.join(known) or 'none'}"
        )
    try:
        return kind(**{key: _read(known[key], value) for key, value in values.items()})
    except ValueError as error:
        raise InvalidArgumentError(f"{noun} {text!r}: {error}") from None


def _read(kind: type, text: str) -> Any:
    if kind is bool:
        return {"0": False, "1": True, "false": False, "true": True}[text.lower()]
    return kind(text)
