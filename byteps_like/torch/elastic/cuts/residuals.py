"""What ranks that there are no longer have left out, added to what another one has: nothing of a gradient is lost.

Pure. What codecs remember is that of a state_dict: see reduction.feedback_state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from byteps_like.torch.elastic.cuts.content import Owns
from byteps_like.torch.reduction.feedback_state import SHARED


def codec_state(owns: Owns) -> dict[str, Any] | None:
    """What this rank's codecs are to remember: what they did, and what those of missing ranks had left out. Of a new
    rank: what is the same on all. None: nothing."""
    if owns.first is None:
        return None
    found = owns.first if owns.mine is None else owns.mine
    rates = dict(found.get("rates", {}))
    parameters = {
        name: {kind: value for kind, value in kinds.items() if owns.mine is not None or kind in SHARED}
        for name, kinds in found["parameters"].items()
    }
    for missing in owns.missing:
        _add(parameters, rates, missing)
    return {"rounds": found["rounds"], "parameters": parameters, "rates": rates}


def _add(parameters: dict[str, dict[str, torch.Tensor]], rates: dict[str, float], missing: Mapping[str, Any]) -> None:
    for name, kinds in missing["parameters"].items():
        held = parameters.setdefault(name, {})
        theirs = missing.get("rates", {}).get(name)
        factor = theirs / rates[name] if theirs and rates.get(name) else 1.0
        if theirs is not None:
            rates.setdefault(name, theirs)
        for kind, value in kinds.items():
            if kind not in SHARED:
                held[kind] = held[kind] + value * factor if kind in held else value.clone()


def summed(owns: Iterable[Mapping[str, torch.Tensor] | None]) -> dict[str, torch.Tensor]:
    """By tensor, what all have left out."""
    found: dict[str, torch.Tensor] = {}
    for one in filter(None, owns):
        for name, residual in one.items():
            found[name] = found[name] + residual if name in found else residual
    return found
