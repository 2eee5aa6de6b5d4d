"""nn.Embedding and nn.EmbeddingBag over a table: the same calls and results, with weights that servers keep."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from byteps_like.errors import InvalidArgumentError
from byteps_like.store.tables.table import Table
from byteps_like.torch.tables.looked_up import look_up

_MODES = ("sum", "mean", "max")


class Embedding(nn.Module):
    """Rows of a table by ids of any shape: [...] to [..., dim]. As torch.nn.Embedding, without a number of embeddings.

    Forward blocks until the rows that it needs are here, each once. Backward pushes their gradients, and does not wait;
    servers make the step, so no optimizer has to know of it, and the module has no parameters. Each forward that
    records gradients and is followed by a backward counts as one contribution of this rank.
    """

    def __init__(self, table: Table, *, padding_idx: int | None = None) -> None:
        """`padding_idx`: an id that stands for nothing: zeros, which no gradient changes."""
        super().__init__()
        self.table, self.padding_idx = table, padding_idx

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Ids, from 0 on. Raises InvalidArgumentError for what are none, and what an earlier push has failed with."""
        found = look_up(self.table, input, self.padding_idx)
        return F.embedding(found.places, found.weight, None if self.padding_idx is None else found.padding)

    def extra_repr(self) -> str:
        """What `print` shows."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.table.name!r}, dim={self.table.dim}{padding}"


class EmbeddingBag(nn.Module):
    """Sums, means or maxima of rows of a table, over bags of ids. As torch.nn.EmbeddingBag, without a number of
    embeddings; otherwise as Embedding."""

    def __init__(
        self,
        table: Table,
        mode: str = "sum",
        *,
        include_last_offset: bool = False,
        padding_idx: int | None = None,
    ) -> None:
        """`mode`: "sum", "mean" or "max"; `include_last_offset`, `padding_idx`: as torch.nn.EmbeddingBag's."""
        super().__init__()
        if mode not in _MODES:
            raise InvalidArgumentError(f"mode={mode!r}: there are {', '.join(_MODES)}")
        self.table, self.mode = table, mode
        self.include_last_offset, self.padding_idx = include_last_offset, padding_idx

    def forward(
        self,
        input: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Ids of shape [bags, n], or [n] with `offsets`, where each bag begins; `per_sample_weights` (mode "sum"): of
        the shape of the ids. To [bags, dim]. Raises as Embedding, and as torch does."""
        found = look_up(self.table, input, self.padding_idx)
        return F.embedding_bag(
            found.places, found.weight, offsets, mode=self.mode, per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=None if self.padding_idx is None else found.padding,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """What `print` shows."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.table.name!r}, dim={self.table.dim}, mode={self.mode!r}{padding}"
