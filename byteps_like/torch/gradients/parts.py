"""How an arena is cut: the tensors that it is declared as, and their partitions, numbered over all of them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from byteps_like.control.bounds import LONGEST_DETAILS
from byteps_like.dtypes import DType, Op
from byteps_like.torch.gradients.slot import Slot
from byteps_like.worker.api import Declared, TensorSpec, Tunable, Worker
from byteps_like.worker.layout import ArenaLayout, partitions_of, pieces

Named = tuple[str, torch.Tensor]


@dataclass(frozen=True)
class RoundTerms:
    """How the gradients of one round over `size` ranks are reduced."""

    size: int
    before: float
    """Factor before they are sent."""
    op: Op
    """What is asked of the network."""
    after: float
    """Factor when they have landed."""


@dataclass(frozen=True)
class Scaling:
    """How gradients are reduced. With `predivide` f an average becomes: divide by f, sum, multiply by f / size."""

    op: Op = Op.AVERAGE
    predivide: float = 1.0

    def terms(self, size: int) -> RoundTerms:
        """Those of a round over `size` ranks."""
        if self.predivide == 1.0:
            return RoundTerms(size, 1.0, self.op, 1.0)
        return RoundTerms(size, 1.0 / self.predivide, Op.AVERAGE, self.predivide)


@dataclass(frozen=True)
class Piece:
    """A part of an arena that is declared by itself: `parts` are its partitions' numbers there, `offset` its bytes."""

    declared: Declared
    parts: range
    offset: int


class Parts:
    """Those of an arena that is declared as `declared`, which lie one behind the other. Sizes are bytes, or elements
    where a method says so."""

    def __init__(self, declared: Sequence[Declared]) -> None:
        self.pieces: list[Piece] = []
        self.starts: list[int] = []
        offset = 0
        for item in declared:
            first = len(self.starts)
            self.starts += [offset + part.offset for part in item.partitions]
            self.pieces.append(Piece(item, range(first, len(self.starts)), offset))
            offset += item.spec.nbytes

    def __len__(self) -> int:
        return len(self.starts)

    def of(self, begin: int, end: int) -> range:
        """Those in which the bytes from `begin` to `end` lie."""
        return partitions_of(self.starts, begin, end)

    def elements(self, run: range, total: int) -> range:
        """The elements, of the first `total` of the arena, of neighbouring partitions."""
        itemsize = self.pieces[0].declared.spec.dtype.itemsize
        begin = self.starts[run.start] // itemsize
        end = self.starts[run.stop] // itemsize if run.stop < len(self.starts) else total
        return range(min(begin, total), min(end, total))

    def windows(self, total: int) -> list[range]:
        """The same of each partition that has any."""
        found = [self.elements(range(part, part + 1), total) for part in range(len(self))]
        return [window for window in found if window]


def specs_of(label: str, code: DType, layout: ArenaLayout, codec: str, apart: bool, fine: bool) -> list[TensorSpec]:
    """What an arena is declared as: its gradients, encoded by `codec`, then, if they go `apart`, its control elements.
    `fine`: in several tensors, with finer partitions towards its end (layout.pieces)."""
    body = layout.tail if apart else layout.total
    sizes = pieces(body, code.itemsize) if fine else [body]
    specs = [TensorSpec(f"{label}.{n}" if n else label, code, (size,), codec=codec) for n, size in enumerate(sizes)]
    if apart:
        specs.append(TensorSpec(f"{label}.control", code, (layout.total - body,)))
    return specs


def signature_of(label: str, slots: Sequence[Slot]) -> TensorSpec:
    """An empty tensor whose shape is a checksum of all names and shapes: ranks with other models don't match."""
    return signature(label, [(slot.name, slot.parameter.shape) for slot in slots])


def signature(label: str, parameters: Sequence[tuple[str, Sequence[int]]]) -> TensorSpec:
    """The same of names and shapes, in the order of backward."""
    lines = [f"parameter {name!r} {list(shape)}" for name, shape in reversed(parameters)]
    text = "\n".join(lines)
    shape = (0, len(parameters), zlib.crc32(text.encode()))
    name = f"{label}.(0, parameters, checksum of their names and shapes)"
    return TensorSpec(name, DType.UINT8, shape, details=text[:LONGEST_DETAILS])


def retire(worker: Worker, names: Sequence[Declared]) -> None:
    """They have moved to other names: what servers hold for these is freed."""
    if isinstance(worker, Tunable):
        for declared in names:
            worker.retire(declared)
