"""The ways of combining by their texts: "sum", "mean:age=exp", "coded:n=4,s=1". A new one is a file in this folder and
a row here, and its native twin in server/store/combining. "factors" has none: it is one of these, of what a filter
makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from byteps_like.compression.spec import parse
from byteps_like.errors import InvalidArgumentError
from byteps_like.store.combining.combining import Combining
from byteps_like.store.combining.decoded import Decoded
from byteps_like.store.combining.gradient_code import GradientCode
from byteps_like.store.combining.products import Products
from byteps_like.store.combining.weighed import COMBINES, AgeFactor, Weighed

CODED, FACTORS = "coded", "factors"


def combining_of(text: str) -> Combining:
    """What a text means. Raises InvalidArgumentError for one that isn't."""
    try:
        name, given = parse(text)
    except ValueError as error:
        raise InvalidArgumentError(f"combining: {error}") from None
    make, keys = _MAKERS.get(name, _WEIGHED)
    if unknown := sorted(given.keys() - set(keys)):
        raise InvalidArgumentError(
            f"combining {text!r}: there is no {unknown[0]}; there are {', '.join(keys[:-1])} and {keys[-1]}"
        )
    return make(name, given)


def combining_by(combine: str, age: str | AgeFactor | None, damp: str | AgeFactor | None) -> Combining:
    """What arguments of a Store mean: a text, and, of sums and means, factors. Raises InvalidArgumentError."""
    if combine in COMBINES:
        return Weighed(combine, age, damp)
    if combine.partition(":")[0] == FACTORS:
        return Products(Weighed(_combine_of_factors(combine), age, damp))
    if age is not None or damp is not None:
        raise InvalidArgumentError(
            f"age={age!r}, damp={damp!r}: these are for combine='sum', 'mean' or 'factors', not {combine!r}"
        )
    return combining_of(combine)


def _combine_of_factors(text: str) -> str:
    try:
        given = parse(text)[1]
    except ValueError as error:
        raise InvalidArgumentError(f"combining: {error}") from None
    combine = given.pop("combine", "mean")
    if given:
        raise InvalidArgumentError(
            f"combining {text!r}: there is no {min(given)}; there is combine, as in {FACTORS}:combine=sum"
        )
    return combine


def _weighed(name: str, given: Mapping[str, str]) -> Combining:
    return Weighed(name, **{key: None if word == "none" else word for key, word in given.items()})


def _coded(name: str, given: Mapping[str, str]) -> Combining:
    numbers: dict[str, int] = {}
    for key in ("n", "s", "seed"):
        word = given.get(key, "0" if key == "seed" else "")
        if not word.isdecimal():
            raise InvalidArgumentError(f"combining {name}: {key}={word!r} is no number, as in coded:n=4,s=1")
        numbers[key] = int(word)
    return Decoded(GradientCode(**numbers), given.get("combine", "mean"))


_Row = tuple[Callable[[str, Mapping[str, str]], Combining], tuple[str, ...]]
_WEIGHED: _Row = (_weighed, ("age", "damp"))
_MAKERS: dict[str, _Row] = {CODED: (_coded, ("combine", "n", "s", "seed"))}
