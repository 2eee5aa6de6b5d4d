"""Rows on their way to summation servers: through a dense copy of zeros, of which a codec sends what isn't zero."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from byteps_like.compression.codec import Codec
from byteps_like.dtypes import DType, Op
from byteps_like.torch.job.routes import Request, Route
from byteps_like.torch.sparse.rows import Rows
from byteps_like.worker.api import Handle, TensorSpec

_DIGIT = 1 << 12
_TAIL = 2
"""Elements behind the rows: how many entries a rank has, in two digits whose sums are whole in float32."""


@dataclass(frozen=True)
class ShadowMeans:
    """How a twin travels. `name`: that of the sum. `partition_bytes`: of the tensor, zeros and all; 0: the job's."""

    name: str
    codec: Codec
    partition_bytes: int = 0

    @property
    def full(self) -> str:
        """Another for each codec and partition size, since a name stands for one of both."""
        return f"{self.name}.{self.codec.name}" + (f"/{self.partition_bytes}" if self.partition_bytes else "")


class DenseShadow:
    """As much memory as a tensor like `rows` takes when dense, all zero between two rounds.

    Each partition's payload has the rows in it, merged by its server; so servers own rows, as in Parallax (Kim et al.,
    EuroSys 2019), and all ranks get the union. Rows that are neighbours in the tensor, as frequent ones are in a
    vocabulary, lie far apart here, so that each partition has its part of them. The codec is lossless.

    Blocks while the name is new.
    """

    def __init__(self, rows: Rows, means: ShadowMeans, route: Route) -> None:
        """Raises MismatchError if the name stood for a tensor of another size before."""
        self._like, self._means, self._route = rows, means, route
        self._step = _coprime(rows.places)
        elements = rows.places * rows.width
        self._memory = torch.zeros(elements + _TAIL, device="cpu")
        self._rows = self._memory[:elements].view(rows.places, *rows.values.shape[1:])
        spec = TensorSpec(
            means.full, DType.FLOAT32, (elements + _TAIL,),
            partition_bytes=means.partition_bytes, codec=means.codec.spec(),
        )  # fmt: skip
        (self._declared,) = route.declare([spec])

    def serves(self, rows: Rows, means: ShadowMeans) -> bool:
        """Whether such rows can go through it, and so."""
        like = self._like
        return (like.shape, like.sparse_dim, self._means) == (rows.shape, rows.sparse_dim, means)

    def start(self, rows: Rows, request: Request, op: Op = Op.SUM) -> Handle:
        """Sends them, to be summed or averaged."""
        self._rows.index_copy_(0, rows.numbers * self._step % rows.places, rows.values)
        self._memory[-_TAIL:] = torch.tensor(divmod(rows.count, _DIGIT), dtype=torch.float32, device="cpu")
        return self._route.push_pull(self._declared, self._memory.data_ptr(), op, request)

    def finish(self, ranks: int = 1) -> tuple[Rows, int]:
        """Once the result has landed: it, and how many entries all ranks had. Then all is zero again. `ranks`: over
        which it is an average; some of them may have died, and not be in it."""
        found = Rows.of_dense(self._rows, 1)
        high, low = self._memory[-_TAIL:].tolist()
        self._rows.index_fill_(0, found.numbers, 0.0)
        self._memory[-_TAIL:].zero_()
        places, like = self._like.places, self._like
        numbers, order = torch.sort(found.numbers * pow(self._step, -1, places) % places)
        total = Rows(numbers, found.values.index_select(0, order), like.shape, like.sparse_dim)
        return total, round((high * _DIGIT + low) * ranks)


def _coprime(places: int) -> int:
    """From one row to the next: about the golden section of all, which spreads any run of rows evenly."""
    step = max(round(places * 0.6180339887), 1)
    while math.gcd(step, places) != 1:
        step += 1
    return step
