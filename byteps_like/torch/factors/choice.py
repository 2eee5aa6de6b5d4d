"""Whether a Linear's gradient goes as its factors or as the matrix: bytes and time by closed forms. No torch here.

After Poseidon (Zhang et al., ATC'17), whose rule is on bytes; the times are by the measured link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FactorLink:
    """What was measured, the slowest rank's: seconds at the start of an operation, and seconds per byte of it.

    For a matrix these are bytes of the matrix before a codec encodes it, for factors bytes that a rank gets from the
    others. `multiply_add` is seconds of one in a matrix product on this processor. All zeros leave the choice to the
    bytes.
    """

    dense_start: float = 0.0
    dense_byte: float = 0.0
    factors_start: float = 0.0
    factors_byte: float = 0.0
    multiply_add: float = 0.0


@dataclass(frozen=True)
class MatrixCost:
    """Bytes per element of a matrix: `item` as it is handed to the network, `up` and `down` as that carries it."""

    item: float = 4.0
    up: float = 4.0
    down: float = 4.0
    codec: str = ""
    """What encodes it on its way, as TensorSpec.codec has it; "": nothing does."""

    @classmethod
    def plain(cls, item: float) -> MatrixCost:
        """Of a matrix that travels as it is."""
        return cls(item, item, item)


@dataclass(frozen=True)
class FactorExchange:
    """One weight of `outputs` x `inputs` in one step: `rows[r]` of batch on rank r; bytes per element either way."""

    outputs: int
    inputs: int
    rows: tuple[int, ...]
    route: str = "allreduce"
    matrix: MatrixCost = MatrixCost()
    factor_item: int = 4

    @property
    def ranks(self) -> int:
        """How many take part."""
        return len(self.rows)

    @property
    def others(self) -> float:
        """Rows that a rank gets from the others, on average."""
        return sum(self.rows) * (self.ranks - 1) / self.ranks

    @property
    def factor_bytes(self) -> float:
        """Sent and received by a rank: 2 K (P-1) (M+N) elements, where all have K rows."""
        return 2 * self.others * (self.outputs + self.inputs) * self.factor_item

    @property
    def matrix_bytes(self) -> float:
        """Sent and received by a rank: 2 (P-1)/P M N (up + down) by an all-reduce, M N (up + down) by servers."""
        nbytes = self.outputs * self.inputs * (self.matrix.up + self.matrix.down)
        return nbytes if self.route == "server" else 2 * (self.ranks - 1) / self.ranks * nbytes

    def factor_seconds(self, link: FactorLink) -> float:
        """Seconds of the exchange, and of the products of the others' rows, which the matrix comes without."""
        product = self.others * self.outputs * self.inputs * link.multiply_add
        return link.factors_start + self.factor_bytes / 2 * link.factors_byte + product

    def matrix_seconds(self, link: FactorLink) -> float:
        """Seconds to exchange the matrix."""
        return link.dense_start + self.outputs * self.inputs * self.matrix.item * link.dense_byte


def by_factors(exchange: FactorExchange, link: FactorLink, wanted: bool | str) -> bool:
    """The choice. Never where a rank's rows are more than the rank of the matrix can be, min(M, N).

    "auto": where factors are no more bytes, and take no longer. True: wherever they may be used.
    """
    if not 0 < max(exchange.rows) <= min(exchange.outputs, exchange.inputs) or exchange.ranks < 2:
        return False
    if wanted is True:
        return True
    fewer = exchange.factor_bytes <= exchange.matrix_bytes
    return fewer and exchange.factor_seconds(link) <= exchange.matrix_seconds(link)


def next_rows(agreed: Sequence[int], seen: Sequence[int]) -> tuple[int, ...]:
    """How many rows each rank has room for in the next step: as many as now; where it had fewer, an eighth less."""
    return tuple(max(now, before - max(1, before // 8)) for before, now in zip(agreed, seen, strict=True))
