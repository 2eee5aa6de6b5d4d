"""The text form of a codec's parameters, as compression/spec.h reads it: "name:key=value,key=value"."""

from __future__ import annotations

from dataclasses import fields
from typing import Any


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
