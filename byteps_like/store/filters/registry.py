"""All filters by name, and their text form, "name:key=value,key=value". A new one is a file in this room and a row
here; one of payloads has a native twin in server/store/filters. Codecs are filters, too, by their own names. Users
register theirs with `table_filter`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from byteps_like.compression.registry import CODECS, SHORT, codec_of
from byteps_like.compression.spec import parse
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.filters.codec_filter import CodecFilter
from byteps_like.store.filters.factors import Factors
from byteps_like.store.filters.filter import PayloadFilter, RowFilter
from byteps_like.store.filters.fixed_float import FixedFloat
from byteps_like.store.filters.kkt import Kkt
from byteps_like.store.filters.noise import Noise
from byteps_like.store.filters.significant import Significant
from byteps_like.store.filters.zlib_stream import Zlib

Filter = RowFilter | PayloadFilter

FILTERS: dict[str, type[Filter]] = {one.name: one for one in (Significant, Kkt, Noise, FixedFloat, Zlib)}
"""By name."""
_OF_CODECS = frozenset(one.name for one in CODECS) | SHORT.keys()

_NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}", re.ASCII)
_READ = {"int": int, "int | None": int, "float": float, "str": str}
"""What a value is read as, by how the parameter is annotated."""


AnyFilter = TypeVar("AnyFilter", bound=type[Filter])


def table_filter(kind: AnyFilter) -> AnyFilter:
    """Decorates a RowFilter or a PayloadFilter of a user, which `KV` then takes by its name, as text, too. A
    PayloadFilter, a frozen dataclass, has to be known to servers as well: import its module there.

    Raises InvalidArgumentError for a name that is taken, or can't be one.
    """
    if not _NAME.fullmatch(kind.name):
        raise InvalidArgumentError(
            f"a filter can't be called {kind.name!r}: a name has up to 64 letters, digits, '_', '.' and '-', and begins"
            " with a letter or '_'"
        )
    if kind.name in _OF_CODECS or kind.name == Factors.name:
        raise InvalidArgumentError(f"a filter can't be called {kind.name!r}: servers know one by that name")
    known = FILTERS.setdefault(kind.name, kind)
    if known is not kind:
        raise InvalidArgumentError(f"there is already a filter {kind.name!r}: {known!r}")
    return kind


def filter_of(wanted: Filter | str) -> Filter:
    """The filter of that text ("zlib", "float:bytes=2", or short "float:2"), or the codec ("int8", "topk:ratio=0.01").

    Raises InvalidArgumentError for unknown names and parameters, naming what there is, for what lacks one, and for
    values out of bounds.
    """
    if isinstance(wanted, (RowFilter, PayloadFilter)):
        return wanted
    if not isinstance(wanted, str):
        raise InvalidArgumentError(f"{wanted!r} is neither a filter nor the text of one, as 'float:bytes=3'")
    try:
        name, given = parse(_in_full(wanted))
    except ValueError as error:
        raise InvalidArgumentError(f"filter: {error}") from None
    if name in _OF_CODECS:
        return CodecFilter(codec_of(wanted))
    if name not in FILTERS:
        known = "; ".join(f"{one.name} ({one.about})" for one in [*FILTERS.values(), CodecFilter])
        raise InvalidArgumentError(f"there is no filter {name!r}; there are: {known}")
    return _built(FILTERS[name], given, wanted)


def filters_of(wanted: Sequence[Filter | str]) -> list[Filter]:
    """Each as `filter_of`, which also says what it raises; and for what is no sequence but one text."""
    if isinstance(wanted, str):
        raise InvalidArgumentError(f"filters={wanted!r} is one text: give a list of filters, ({wanted!r},)")
    return [filter_of(one) for one in wanted]


def _built(kind: Any, given: dict[str, str], text: str) -> Filter:
    takes = inspect.signature(kind).parameters
    unknown, missing = sorted(given.keys() - takes.keys()), [
        one.name for one in takes.values() if one.default is one.empty and one.name not in given
    ]  # fmt: skip
    if unknown:
        raise InvalidArgumentError(
            f"{unknown[0]!r} in {text!r} is not a parameter of {kind.name}, which has {', '.join(takes) or 'none'}"
        )
    if missing:
        raise InvalidArgumentError(f"{text!r} lacks {missing[0]}, as in {kind.name}:{missing[0]}=1")
    try:
        values = {key: _reader(takes[key])(value) for key, value in given.items()}
    except ValueError as error:
        raise InvalidArgumentError(f"filter {text!r}: {error}") from None
    made: Filter = kind(**values)
    return made


def _reader(parameter: inspect.Parameter) -> Callable[[str], Any]:
    """Raises ValueError where there is none."""
    kind = parameter.annotation
    name = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    if name not in _READ:
        raise ValueError(
            f"{parameter.name} can't be given as text, as it is annotated {name!r}: give the filter itself"
        )
    return _READ[name]


def _in_full(text: str) -> str:
    """With the name of the parameter that needs none."""
    name, _, rest = text.partition(":")
    kind = FILTERS.get(name.strip())
    return f"{name}:{kind.sole}={rest}" if kind and kind.sole and rest and "=" not in rest else text
