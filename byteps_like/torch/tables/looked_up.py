"""The rows of one forward, as a matrix that autograd knows: its gradient goes to the servers as soon as it is there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.tables.ids import Ids, places_of
from byteps_like.store.tables.table import Table


@dataclass(frozen=True)
class LookedUp:
    """`weight` has a row for each id that there is, and a last one of zeros, which is that of the padding; `places` are
    theirs, of the shape that the ids have."""

    weight: torch.Tensor
    places: torch.Tensor

    @property
    def padding(self) -> int:
        """The place of what is left out."""
        return len(self.weight) - 1


def look_up(table: Table, ids: torch.Tensor, padding: int | None) -> LookedUp:
    """Blocks until the rows are here. If gradients are recorded, the rows' go to the servers in backward; without any
    ids, too, since the others may wait for a contribution of this rank."""
    if ids.is_floating_point() or ids.is_complex() or ids.dtype is torch.bool:
        raise InvalidArgumentError(f"table {table.name!r}: ids are integers, not {ids.dtype}")
    flat = ids.detach().cpu().numpy()
    left_out = np.zeros(flat.shape, bool) if padding is None else flat == padding
    found = places_of(flat[~left_out])
    count = len(found.keys)
    weight = torch.zeros((count + 1, table.dim), dtype=torch.from_numpy(np.empty(0, table.dtype)).dtype)
    if count:
        table.pull_rows(found.keys, weight[:count]).wait()
    places = np.full(flat.shape, count, np.int64)
    places[~left_out] = found.rows
    weight = weight.to(ids.device)
    if torch.is_grad_enabled():
        weight.requires_grad_()
        after_backward: Any = weight.register_post_accumulate_grad_hook
        after_backward(partial(_push, table, found.keys))
    return LookedUp(weight, torch.from_numpy(places).to(ids.device))


def _push(table: Table, keys: Ids, rows: torch.Tensor) -> None:
    gradient, rows.grad = rows.grad, None
    assert gradient is not None
    table.push_rows(keys, gradient.detach()[: len(keys)].cpu().contiguous())
