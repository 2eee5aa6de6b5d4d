"""Entries of sparse tensors as rows of bytes: number and values, sorted, summed where a number comes again.

An entry's number is its place in the sparse dimensions, counted as a dense tensor lays them out. Its values are of the
dense dimensions, of which an embedding's gradient has one and an unmixed COO tensor none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError

_WIDE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}
_WHOLE = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_FLOATING = (torch.float32, torch.float64, *_WIDE, torch.complex64, torch.complex128)

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)

WIDE_ROWS = 64
"""Elements from which on a row is reduced at the speed of memory."""

SUMMED = (*_FLOATING, *_WHOLE)
"""Element types that torch has sparse sums of."""


Form = tuple[torch.dtype, torch.Size, int]
"""What entries belong to: element type, shape, sparse dimensions."""


@dataclass(frozen=True)
class Rows:
    """Entries of a sparse tensor of `shape`, whose first `sparse_dim` dimensions are sparse.

    `numbers`: int64, ascending, none twice. `values`: one row for each, of the shape's other dimensions.
    """

    numbers: torch.Tensor
    values: torch.Tensor
    shape: torch.Size
    sparse_dim: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Rows:
        """Those of a sparse COO tensor, coalesced or not."""
        shape, sparse_dim = tensor.shape, tensor.sparse_dim()
        indices, values = tensor._indices(), tensor._values()
        numbers = torch.zeros(indices.shape[1], dtype=torch.int64, device="cpu")
        for place, extent in zip(indices, shape[:sparse_dim], strict=True):
            numbers = numbers * extent + place
        if tensor.is_coalesced():
            return cls(numbers, values.contiguous(), shape, sparse_dim)
        return cls(*_merged(numbers, values), shape, sparse_dim)

    @classmethod
    def of_dense(cls, dense: torch.Tensor, sparse_dim: int) -> Rows:
        """Those of a contiguous dense tensor that aren't all zero."""
        shape, extents = dense.shape, dense.shape[:sparse_dim]
        rows = dense.view(math.prod(extents), *shape[sparse_dim:])
        numbers = _touched(rows.flatten(1)).nonzero().flatten() if rows.dim() > 1 else rows.nonzero().flatten()
        return cls(numbers, rows.index_select(0, numbers), shape, sparse_dim)

    def dense(self) -> torch.Tensor:
        """With all its zeros."""
        whole = self.values.new_zeros(self.places, *self.values.shape[1:])
        return whole.index_copy_(0, self.numbers, self.values).view(self.shape)

    def tensor(self) -> torch.Tensor:
        """As a coalesced sparse tensor."""
        places, left = [], self.numbers
        for extent in reversed(self.shape[: self.sparse_dim]):
            places.append(left % max(extent, 1))
            left = left // max(extent, 1)
        indices = torch.stack(places[::-1]) if places else torch.empty(0, len(left), dtype=torch.int64, device="cpu")
        device = self.values.device
        return torch.sparse_coo_tensor(
            indices, self.values, self.shape, device=device, is_coalesced=True, check_invariants=False
        )

    @property
    def form(self) -> Form:
        """What they are entries of."""
        return self.values.dtype, self.shape, self.sparse_dim

    @property
    def places(self) -> int:
        """Entries that there may be."""
        return math.prod(self.shape[: self.sparse_dim])

    @property
    def count(self) -> int:
        """Of the entries."""
        return len(self.numbers)

    @property
    def width(self) -> int:
        """Elements in an entry."""
        return math.prod(self.shape[self.sparse_dim :])

    @property
    def nbytes(self) -> int:
        """Of an entry as bytes."""
        return self._number_type.itemsize + self.width * self.values.element_size()

    @property
    def _number_type(self) -> torch.dtype:
        return torch.int32 if self.places < 1 << 31 else torch.int64

    def packed(self) -> torch.Tensor:
        """Each entry as bytes: its number in 4 bytes (8 where the sparse dimensions need it), then its values."""
        packed, size = self.space(self.count), self._number_type.itemsize
        packed[:, :size] = self.numbers.to(self._number_type).view(torch.uint8).view(self.count, size)
        packed[:, size:] = self.values.contiguous().view(-1).view(torch.uint8).view(self.count, self.nbytes - size)
        return packed

    def space(self, count: int) -> torch.Tensor:
        """Room for so many entries of this kind as bytes."""
        return torch.empty(count, self.nbytes, dtype=torch.uint8, device="cpu")

    def unpacked(self, packed: torch.Tensor, merged: bool = True) -> Rows:
        """The entries that were `packed` somewhere, in any order; with `merged` False, none of them twice."""
        kind = self._number_type
        # Cloned, because a slice of a single entry counts as contiguous and keeps its offset, which may not be aligned.
        parts = packed[:, : kind.itemsize], packed[:, kind.itemsize :]
        numbers, raw = (part.clone(memory_format=torch.contiguous_format).view(-1) for part in parts)
        numbers, raw = numbers.view(kind).to(torch.int64), raw.view(self.values.dtype)
        values = raw.view(len(packed), *self.shape[self.sparse_dim :])
        if merged:
            return Rows(*_merged(numbers, values), self.shape, self.sparse_dim)
        numbers, order = torch.sort(numbers)
        return Rows(numbers, values.index_select(0, order), self.shape, self.sparse_dim)

    def dealt(self, ranks: int) -> tuple[Rows, list[int]]:
        """The entries by who sums them, and how many of each: at random by their numbers, since frequent ones may be
        neighbours, or regularly spaced. (No longer ascending as a whole.)"""
        owners = (self.numbers * _GOLDEN >> 33 & 0x3FFFFFFF) % ranks
        order = torch.argsort(owners, stable=True)
        counts: list[int] = torch.bincount(owners, minlength=ranks).tolist()
        chosen = self.numbers.index_select(0, order), self.values.index_select(0, order)
        return Rows(*chosen, self.shape, self.sparse_dim), counts

    def divided(self, op: Op, ranks: int) -> Rows:
        """The sum of `ranks` ranks as `op` has it; whole numbers are rounded down."""
        if op is not Op.AVERAGE or ranks == 1:
            return self
        mode = "floor" if self.values.dtype in _WHOLE else None
        return Rows(self.numbers, torch.div(self.values, ranks, rounding_mode=mode), self.shape, self.sparse_dim)

    def scaled(self, factor: float) -> Rows:
        """Times `factor`. Raises InvalidArgumentError for a factor on whole numbers."""
        if factor == 1.0:
            return self
        if self.values.dtype in _WHOLE:
            raise InvalidArgumentError(
                f"prescale and postscale factors need a floating-point tensor, not {self.values.dtype}"
            )
        return Rows(self.numbers, self.values * factor, self.shape, self.sparse_dim)


def _touched(rows: torch.Tensor) -> torch.Tensor:
    """Which aren't all zero. The two extremes of a wide row are there several times as soon as torch's `any`."""
    if rows.shape[1] < WIDE_ROWS or rows.is_complex():
        return rows.any(1)
    return rows.amax(1).ne(0).logical_or_(rows.amin(1).ne(0))


def _merged(numbers: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Ascending numbers, and the sums of what has the same one, in the order in which it came; halves in float32."""
    found, place = torch.unique(numbers, return_inverse=True)
    wide = _WIDE.get(values.dtype, values.dtype)
    sums = torch.zeros(len(found), *values.shape[1:], dtype=wide, device="cpu")
    return found, sums.index_add_(0, place, values.to(wide)).to(values.dtype)
