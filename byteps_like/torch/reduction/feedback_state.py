"""What codecs remember, as a state_dict has it: {"rank", "size", "rounds", "parameters": name -> Memory, "rates"}.

"rates": name -> the learning rate that the residual is in terms of; older ones have none, and aren't rescaled.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.reduction.api import Reducer

logger = logging.getLogger(__name__)

MEMORY = "byteps_like"
"""The key in a state_dict."""

SHARED = ("factor",)
"""Kinds of memory that are the same on all ranks."""


def saved(reducer: Reducer) -> dict[str, Any]:
    """For a state_dict; empty if there is nothing to remember. A residual is a rank's own, and says whose it is."""
    memories = reducer.codecs.recall()
    if not memories:
        return {}
    worker = reducer.route.worker
    codecs, own = reducer.codecs, {"rank": worker.rank, "size": worker.size}
    return {**own, "rounds": codecs.rounds, "parameters": memories, "rates": codecs.last_rates}


def restore(reducer: Reducer, memory: dict[str, Any] | None) -> None:
    """Takes what `saved` gave, or forgets what there is. All ranks must call it with the same rounds.

    What a rank has not sent yet is of no use to another rank, or among other ranks: it is dropped there. Without "rank"
    and "size" it was made for this one.
    """
    if not reducer.codecs.used:
        return
    found = memory or {"rounds": 0, "parameters": {}}
    if reducer.active:
        raise InvalidArgumentError("load_state_dict between backward and step: call it after step() or zero_grad()")
    worker = reducer.route.worker
    own = "rank" not in found or _whose(found) == (worker.rank, worker.size)
    if memory and not own:
        logger.info("rank %d of %d: residuals of rank %s of %s are dropped", worker.rank, worker.size, *_whose(found))
    kept = {
        name: {kind: value for kind, value in kinds.items() if own or kind in SHARED}
        for name, kinds in found["parameters"].items()
    }
    with torch.no_grad():
        reducer.codecs.remember(kept, found.get("rates", {}))
        if memory:
            reducer.codecs.recode(int(found["rounds"]))


def _whose(found: dict[str, Any]) -> tuple[Any, Any]:
    return found["rank"], found["size"]


def without_residuals(state: dict[str, Any]) -> dict[str, Any]:
    """A state_dict for other ranks."""
    if MEMORY not in state:
        return state
    shared = {
        name: {kind: value for kind, value in kinds.items() if kind in SHARED}
        for name, kinds in state[MEMORY]["parameters"].items()
    }
    return {**state, MEMORY: {**state[MEMORY], "parameters": shared}}


def with_residuals(state: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A state_dict of another rank, for this one: what its codecs have left out is as in `own`, which `saved` gave."""
    if MEMORY not in state:
        return state
    shared, mine = state[MEMORY]["parameters"], own["parameters"]
    parameters = {
        name: {
            **{kind: value for kind, value in mine.get(name, {}).items() if kind not in SHARED},
            **{kind: value for kind, value in shared.get(name, {}).items() if kind in SHARED},
        }
        for name in {**shared, **mine}
    }
    memory = {"rounds": state[MEMORY]["rounds"], "parameters": parameters, "rates": own["rates"]}
    return {**state, MEMORY: memory}
