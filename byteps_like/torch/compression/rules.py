"""Which gradient travels how: `compression=` in all its forms, read once, and asked for each parameter."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import torch

from byteps_like.compression.codec import Codec
from byteps_like.compression.registry import CODECS, SHORT
from byteps_like.compression.spec import parse
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.casts import CASTS, Compressor, NoneCompressor, is_cast, is_own
from byteps_like.torch.compression.params import from_attributes, from_params
from byteps_like.torch.compression.policy import RAW, Auto, ByRows, Compress, LowRank
from byteps_like.torch.compression.public import Compression
from byteps_like.torch.job import runtime as _runtime

MIN_BYTES = 64 << 10
"""Parameters of fewer bytes in float32 stay raw, unless a rule names them."""

_ALL = "*"


class Rules:
    """Patterns of parameters' names, as a shell's, and how what they match travels; the first that matches counts.

    "*" leaves out parameters of one dimension (norms, biases) and of fewer than `min_bytes`, other patterns don't;
    casts are for all. What no rule matches, and what is not a real floating-point number, travels as it is. Attributes
    that BytePS's users set on a parameter come first. `plain`: see Compress.resolved.
    """

    def __init__(
        self, ways: Iterable[tuple[str, Compress]] = (), *, plain: bool = False, min_bytes: int = MIN_BYTES
    ) -> None:
        self._plain, self._min_bytes = plain, min_bytes
        self.ways = tuple((pattern, way.resolved(plain)) for pattern, way in ways)
        """Pattern and way, in order."""

    @property
    def codecs(self) -> bool:
        """Whether there is more than casts."""
        return any(way.is_coded or way.low_rank or way.by_rows or way.auto for _, way in self.ways)

    @property
    def by_name(self) -> bool:
        """Whether names of parameters count."""
        return any(pattern != _ALL for pattern, _ in self.ways)

    @property
    def none(self) -> bool:
        """Whether all travels as it is."""
        return all(way == RAW for _, way in self.ways)

    def for_shares(self) -> Rules:
        """These, but raw where gradients can't go to shares: as factors of whole matrices, and by rows."""
        ways = [(pattern, RAW if way.low_rank or way.by_rows else way) for pattern, way in self.ways]
        return Rules(ways, plain=self._plain, min_bytes=self._min_bytes)

    def of(self, name: str, parameter: torch.Tensor) -> Compress:
        """How the gradient of `parameter` travels; the same on all ranks."""
        own = from_attributes(parameter)
        if own is not None:
            return _fitting(own.resolved(self._plain), parameter)
        for pattern, way in self.ways:
            if fnmatchcase(name, pattern):
                spared = pattern == _ALL and (parameter.dim() < 2 or 4 * parameter.numel() < self._min_bytes)
                return RAW if spared and not isinstance(way.codec, type) else _fitting(way, parameter)
        return RAW

    def asks_for(self, name: str, parameter: torch.Tensor) -> bool:
        """Whether a rule for its name, not one for all, or an attribute asks for how the gradient is to be encoded."""
        if from_attributes(parameter) is not None:
            return True
        found = next(((pattern, way) for pattern, way in self.ways if fnmatchcase(name, pattern)), (_ALL, RAW))
        return found[0] != _ALL and found[1] != RAW

    def check_names(self, names: Iterable[str]) -> None:
        """Warns of patterns that match none of `names`: they may be misspelt."""
        known = list(names)
        for pattern, _ in self.ways:
            if pattern != _ALL and not any(fnmatchcase(name, pattern) for name in known):
                some = ", ".join(known[:3])
                warnings.warn(
                    f"compression: the rule {pattern!r} matches no parameter; their names are {some}, ..."
                    " (pass named_parameters for names of your own)",
                    stacklevel=4,
                )


def _fitting(way: Compress, parameter: torch.Tensor) -> Compress:
    kind = way.codec
    fits = not isinstance(kind, LowRank | ByRows) or kind.fits(parameter.shape)
    if not parameter.is_floating_point() or not parameter.numel() or not fits:
        return RAW
    return way


def rules_of(compression: object, *, plain: bool = False, min_bytes: int = MIN_BYTES) -> Rules:
    """Reads `compression`. `plain`: see Compress.resolved. Raises InvalidArgumentError, saying what can be given.

    A cast, a codec or its text, a Compress, BytePS's dictionary, or rules: a dictionary of patterns, whose values are
    any of these or None; as a text, for the setting: "embed* -> rows; *.bias -> none; * -> thc4".
    """
    if isinstance(compression, str) and "->" in compression:
        compression = _split(compression)
    if isinstance(compression, Mapping) and "compressor" not in compression:
        ways = [(str(pattern), way_of(value)) for pattern, value in compression.items()]
    else:
        ways = [(_ALL, way_of(compression))]
    return Rules(ways, plain=plain, min_bytes=min_bytes)


def rules_for_averages(compression: object) -> Rules:
    """`rules_of`, for who averages gradients and doesn't know the optimizer; None: as the settings say."""
    config = _runtime.settings()
    chosen = config.compression if compression is None else compression
    return rules_of(chosen, min_bytes=config.min_compress_bytes)


def way_of(compression: object) -> Compress:
    """Reads one way. Raises InvalidArgumentError."""
    if isinstance(compression, Compress):
        return compression
    if compression is None or compression == "":
        return RAW
    if is_own(compression):
        raise InvalidArgumentError(
            f"compression={compression!r} has a compress() of its own, which is for single tensors, allreduce and"
            " reducescatter; gradients take Compression.none, .fp16, .bf16 or a codec (docs/how-to/compression.md)"
        )
    if isinstance(compression, Codec | LowRank | ByRows | Auto) or is_cast(compression):
        return Compress(compression)  # type: ignore[arg-type]
    if isinstance(compression, str):
        return _from_text(compression)
    if isinstance(compression, Mapping):
        return from_params(compression)
    known = ", ".join(dict.fromkeys([*CASTS, *(kind.name for kind in CODECS), *SHORT, *_MADE, "rows", "auto"]))
    raise InvalidArgumentError(
        f"compression={compression!r} is not a compressor; use Compression.none, Compression.fp16, Compression.bf16, or"
        f" a codec by its name: {known}"
    )


_MADE = {"dgc": Compression.dgc, "powersgd": Compression.powersgd}
_PARAMETERS = {"ratio": float, "momentum": float, "steps": int, "clip": float, "rank": int, "feedback": bool}


def _from_text(text: str) -> Compress:
    name, _, rest = text.partition(":")
    if text.strip() == "rows":
        return Compress(ByRows())
    if name.strip() == "auto":
        return Compress(Auto.of(rest))
    if name.strip() not in _MADE:
        return Compress(text.strip())
    made: Any = _MADE[name.strip()]
    try:
        return made(**{key: _number(key, value) for key, value in parse(f":{rest}")[1].items()})  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(f"compression={text!r}: {error}") from None


def _number(key: str, value: str) -> Any:
    kind = _PARAMETERS[key]
    return value.lower() in ("1", "true") if kind is bool else kind(value)


def _split(text: str) -> dict[str, str]:
    rules = {}
    for item in filter(str.strip, text.split(";")):
        pattern, arrow, way = item.partition("->")
        if not arrow or not pattern.strip():
            raise InvalidArgumentError(
                f"compression={text!r}: {item.strip()!r} is not a rule of the form 'pattern -> codec'"
            )
        rules[pattern.strip()] = way.strip()
    return rules


def check_compression(compression: object) -> type[Compressor]:
    """`compression` if it is a cast or a user's own: for operations that no codec is for, of single tensors.

    Raises InvalidArgumentError.
    """
    if is_own(compression):
        return compression  # type: ignore[return-value]
    way = way_of(compression)
    if isinstance(way.codec, type):
        return way.codec
    raise InvalidArgumentError(
        f"compression={compression!r}: codecs are for sums and averages of push_pull, allreduce and gradients; here"
        " use Compression.none, Compression.fp16 or Compression.bf16"
    )


def check_gathered(compression: object) -> tuple[type[Compressor], Codec | None]:
    """`compression` of what is gathered: a cast, or none and a codec. Raises InvalidArgumentError for what can't be."""
    way = way_of(compression)
    if isinstance(way.codec, type):
        return way.codec, None
    if not isinstance(way.codec, Codec):
        raise InvalidArgumentError(
            f"compression={compression!r} is made for sums of gradients; to gather use a cast or a codec such as 'int8'"
        )
    if way.feedback or replace(way, feedback=None) != Compress(way.codec):
        raise InvalidArgumentError(
            f"{way}: gathered tensors keep no codec state between calls; leave out feedback, momentum, clip,"
            " two_way and warm-up"
        )
    from byteps_like.torch.compression.slot_codec import lone_codec  # needs the native core

    return NoneCompressor, lone_codec(way.codec, "compression", merged=True)
