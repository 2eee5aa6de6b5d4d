"""One sum of sparse tensors among workers: what is sent when, over the lane of its name."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from byteps_like.collectives.api import CallOptions, CollectiveOperation, Group, Traffic
from byteps_like.dtypes import DType, Op
from byteps_like.torch.calls.headers import Headers
from byteps_like.torch.calls.two_steps import InFlight, Staged
from byteps_like.torch.sparse.rows import Rows

_FORM = "of a sparse tensor, as [0, operation, sparse dimensions, *shape]"


@dataclass(frozen=True)
class ExchangeLanes:
    """Where an exchange goes: its steps over `lane`; the headers over `first`, if another lane has the order of calls.

    `operation`: what the user has called. `timeout`: seconds of each step; None: the lane's.
    """

    lane: Group
    first: Group
    operation: str = "push_pull"
    timeout: float | None = None


class SparseExchange:
    """Headers; then either all entries to all (`gathers`), or each to its rank, the sums' number, the sums.

    The headers are on their way when it has been made, the rest goes after `start`.
    """

    def __init__(self, rows: Rows, op: Op, place: ExchangeLanes, gathers: bool) -> None:
        lane = place.lane
        self._rows, self._op, self._lane, self._gathers = rows, op, lane, gathers
        self._options = CallOptions(place.timeout, traffic=Traffic.GRADIENT)
        self._entries = 0
        dealt, counts = (rows, [rows.count] * lane.size) if gathers else rows.dealt(lane.size)
        self._packed = self._received = dealt.packed()
        shape = (0, int(op), rows.sparse_dim, *rows.shape)
        likeness = torch.empty(shape, dtype=rows.values.dtype, device="meta")
        what = f"{place.operation} {_FORM}"
        self._headers = Headers(place.first, what, [likeness], counts, timeout=place.timeout)

    def start(self) -> InFlight:
        """All of it."""
        return Staged(self._headers.operation, self._send)

    def _send(self) -> InFlight:
        self._headers.shapes(0)
        sent = self._headers.splits()
        if self._gathers:
            self._entries = sum(counts[0] for counts in sent)
            return self._gather(self._packed, [counts[0] for counts in sent])
        self._entries = sum(map(sum, sent))
        received = [counts[self._lane.rank] for counts in sent]
        self._received = self._rows.space(sum(received))
        size = self._rows.nbytes
        send, receive = ([count * size for count in one] for one in (sent[self._lane.rank], received))
        source, target = self._packed.data_ptr(), self._received.data_ptr()
        return Staged(self._lane.all_to_all(source, target, send, receive, DType.UINT8, self._options), self._count)

    def _count(self) -> InFlight:
        """How many sums everybody has."""
        self._sums = self._rows.unpacked(self._received).divided(self._op, self._lane.size)
        own, every = (
            torch.tensor([self._sums.count], device="cpu"),
            torch.empty(self._lane.size, dtype=torch.int64, device="cpu"),
        )
        self._held = own, every  # alive while they are read and written
        counts = [1] * self._lane.size
        counted = self._lane.all_gather(own.data_ptr(), every.data_ptr(), counts, DType.INT64, self._options)
        return Staged(counted, lambda: self._gather(self._sums.packed(), every.tolist()))

    def _gather(self, packed: torch.Tensor, counts: list[int]) -> CollectiveOperation:
        self._packed, self._received = packed, self._rows.space(sum(counts))
        size = [count * self._rows.nbytes for count in counts]
        return self._lane.all_gather(packed.data_ptr(), self._received.data_ptr(), size, DType.UINT8, self._options)

    def result(self) -> tuple[Rows, int]:
        """Once all have come: the sum, and how many entries all ranks had."""
        total = self._rows.unpacked(self._received, merged=self._gathers)
        if self._gathers:
            total = total.divided(self._op, self._lane.size)
        return total, self._entries
