"""Has servers run a function on tensors that they keep, and adds up what comes of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from byteps_like.store.functions.registry import check_name
from byteps_like.wire.call import TENSOR_SHIFT, ServerCall, decode_figures, encode_call
from byteps_like.worker.api import Declared
from byteps_like.worker.keeping import CallHandle, Keeps, check_together
from byteps_like.worker.tables import KeptTable

_OF_NOTHING: Mapping[str, Mapping[str, float]] = {"dot": {"dot": 0.0}}
"""By function, what has come of it before its first partition; nothing of the others."""


def begin_call(worker: Keeps, tensors: Sequence[Declared], function: str, scalars: Mapping[str, float]) -> CallHandle:
    """Never blocks. Raises as Store.call."""
    check_together(tensors)
    numbers = [one.partitions[0].key >> TENSOR_SHIFT for one in tensors if one.partitions]
    return worker.call(tensors, encode_call(ServerCall(check_name(function), numbers, _floats(scalars))))


def begin_call_on_rows(
    tables: Sequence[KeptTable], rows: tuple[int, int], function: str, scalars: Mapping[str, float], *, since: int = 0
) -> CallHandle:
    """On rows of the first table, of versions beyond `since`, and those of the same ids of the others, which lie beside
    it. Never blocks. Raises as KV.push_range."""
    numbers = [table.declared.partitions[0].key >> TENSOR_SHIFT for table in tables]
    return tables[0].call(encode_call(ServerCall(check_name(function), numbers, _floats(scalars), rows, since)))


def _floats(scalars: Mapping[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in scalars.items()}


def end_call(function: str, handle: CallHandle) -> dict[str, float]:
    """The numbers of all shards, by name, each added up without rounding in between. Blocks. Raises as Store.call."""
    handle.wait()
    found = [_OF_NOTHING.get(function, {}), *map(decode_figures, handle.answers())]
    names = dict.fromkeys(name for figures in found for name in figures)
    return {name: math.fsum(figures.get(name, 0.0) for figures in found) for name in names}
