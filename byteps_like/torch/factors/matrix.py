"""What a weight's gradient costs as a matrix, by the way that it travels in its bucket."""

from __future__ import annotations

import torch

from byteps_like.compression.registry import codec_of
from byteps_like.torch.compression.policy import Compress
from byteps_like.torch.factors.choice import MatrixCost
from byteps_like.worker.api import TWOWAY

_LARGEST = 1 << 20
"""Elements of a partition, by which a codec's payload is reckoned."""


def matrix_cost(way: Compress, codec: str, parameter: torch.Tensor, world: int) -> MatrixCost:
    """Of a gradient that goes that `way`, encoded by `codec` ("": it isn't) among so many ranks.

    PowerSGD's two factors of rank r count as the r (M+N) elements that they are.
    """
    if way.low_rank is not None:
        wide = torch.promote_types(parameter.dtype, torch.float32).itemsize
        return MatrixCost.plain(wide * way.low_rank.rank * sum(parameter.shape) / parameter.numel())
    if not codec:
        return MatrixCost.plain(way.wire_dtype(parameter.dtype).itemsize)
    numel = min(parameter.numel(), _LARGEST)
    plan = codec_of(codec.removeprefix(TWOWAY)).plan(numel, world)
    return MatrixCost(4.0, plan.payload / numel, plan.result / numel, codec)
