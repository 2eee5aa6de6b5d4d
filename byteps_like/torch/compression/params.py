"""BytePS's way of asking for compression: a dictionary `compression_params`, or attributes of parameters.

    {"compressor": "onebit", "scaling": True, "ef": "vanilla", "momentum": "nesterov", "momentum_mu": 0.9}
    {"compressor": "topk" | "randomk", "k": 0.01, "seed": 1, ...}
    {"compressor": "dithering", "k": 8, "partition": "linear" | "natural", "normalize": "max" | "l2"}

`k` below 1 is a share of the elements. Its servers keep feedback of their own where workers do; so do ours, for codecs
that they encode again. `seed` is randomk's; other random numbers here are drawn by counters and need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from byteps_like.compression.codec import Trait
from byteps_like.compression.registry import codec_of
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.compression.policy import Compress

PARTITION = 1_024_000
"""Elements of a partition of BytePS, of which it sends k, where k is a count."""

_KEYS = {
    "compressor", "k", "ef", "momentum", "momentum_mu", "scaling", "seed", "partition", "normalize",
}  # fmt: skip

_ATTRIBUTES = {
    "compressor": "byteps_compressor_type",
    "k": "byteps_compressor_k",
    "scaling": "byteps_compressor_onebit_scaling",
    "ef": "byteps_ef_type",
    "momentum": "byteps_momentum_type",
    "momentum_mu": "byteps_momentum_mu",
    "seed": "byteps_seed",
    "partition": "byteps_dithering_partition",
    "normalize": "byteps_dithering_normalize",
}
"""Key of the dictionary -> attribute of a parameter. BytePS writes values as texts there, and 0 and 1 for choices."""

_CHOICES = {"partition": {"0": "linear", "1": "natural"}, "normalize": {"0": "max", "1": "l2"}}


def from_params(params: Mapping[str, Any]) -> Compress:
    """What BytePS's dictionary asks for. Raises InvalidArgumentError for what is not offered, saying what is."""
    unknown = sorted(params.keys() - _KEYS)
    if unknown:
        raise InvalidArgumentError(f"compression_params: {unknown[0]!r} is none of {', '.join(sorted(_KEYS))}")
    name = params.get("compressor")
    if name not in _TEXTS:
        raise InvalidArgumentError(f"compression_params: compressor={name!r} is none of {', '.join(_TEXTS)}")
    codec = codec_of(_TEXTS[str(name)](params))
    feedback = _one_of(params, "ef", "vanilla")
    two_way = feedback and codec.trait is Trait.REENCODE
    return Compress(codec, feedback, _momentum(params), nesterov=True, two_way=two_way)


def from_attributes(parameter: torch.Tensor) -> Compress | None:
    """What the attributes that BytePS's trainer sets on a parameter ask for; None without any.

    Also `byteps_compression_params`, a whole dictionary.
    """
    whole = getattr(parameter, "byteps_compression_params", None)
    if whole is not None:
        return from_params(whole)
    found = {key: getattr(parameter, name) for key, name in _ATTRIBUTES.items() if hasattr(parameter, name)}
    if "compressor" not in found:
        return None
    for key, choices in _CHOICES.items():
        if key in found:
            found[key] = choices.get(str(found[key]), found[key])
    return from_params(found)


def _onebit(params: Mapping[str, Any]) -> str:
    if str(params.get("scaling", True)).lower() in ("false", "0"):
        raise InvalidArgumentError(
            "compression_params: onebit has a scale here (scaling=True); for signs alone use compression='sign'"
        )
    return "onebit"


def _topk(params: Mapping[str, Any]) -> str:
    return f"topk:ratio={_ratio(params, 'topk')}"


def _randomk(params: Mapping[str, Any]) -> str:
    # Without feedback it has to be unbiased.
    scale = int(not _one_of(params, "ef", "vanilla"))
    return f"randomk:ratio={_ratio(params, 'randomk')},scale={scale},seed={int(params.get('seed') or 0)}"


def _ratio(params: Mapping[str, Any], codec: str) -> float:
    k = float(_needed(params, "k", codec))
    return k if k < 1.0 else min(k / PARTITION, 1.0)


def _dithering(params: Mapping[str, Any]) -> str:
    levels = int(float(_needed(params, "k", "dithering")))
    return (
        f"dithering:levels={levels},partition={params.get('partition', 'linear')},norm={params.get('normalize', 'max')}"
    )


_TEXTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "onebit": _onebit, "topk": _topk, "randomk": _randomk, "dithering": _dithering,
}  # fmt: skip


def _needed(params: Mapping[str, Any], key: str, what: str) -> Any:
    if params.get(key) is None:
        raise InvalidArgumentError(f"compression_params: {what} needs {key!r}")
    return params[key]


def _one_of(params: Mapping[str, Any], key: str, only: str) -> bool:
    wanted = params.get(key)
    if wanted not in (None, "", only):
        raise InvalidArgumentError(f"compression_params: {key}={wanted!r} must be {only!r}, or left out")
    return wanted == only


def _momentum(params: Mapping[str, Any]) -> float:
    if not _one_of(params, "momentum", "nesterov"):
        return 0.0
    return float(_needed(params, "momentum_mu", "momentum='nesterov'"))
