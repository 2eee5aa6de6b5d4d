"""Tensors of one rank for all others, without those that all have already: bits are compared by digests.

The root hands round its digests, each rank marks the tensors that differ from them, and the sum of the marks tells all
ranks alike which tensors to send. Both messages have as many bytes for two ranks as for thousands.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.job.trees import bytes_of
from byteps_like.torch.ops.differentiable import push_pull
from byteps_like.torch.ops.packed import broadcast_packed
from byteps_like.wire.crc32c import crc32c

logger = logging.getLogger(__name__)

Digest = tuple[int, int]

_NAME = "byteps_like.differing"
_BLOCK_BYTES = 1 << 20
"""Read twice while it is in a cache. A multiple of a word."""
_WORD = np.dtype(np.uint64)


def broadcast_differing(runtime: Runtime, tensors: Sequence[torch.Tensor], root: int) -> None:
    """Overwrites `tensors` with those of rank `root`, as `broadcast_packed` does in the whole world. Blocks.

    All ranks give as many tensors, of the same shapes and types. Those whose bits are the root's on all ranks are
    neither sent nor written. Tensors of devices are copied to the host, one at a time, to be compared.

    On the wire, per tensor: 16 bytes up from the root and down to all others, and 4 bytes each way on every rank; then
    the bytes of those that differ. Steps: a broadcast, a sum, and a broadcast if any differ. Raises what these raise.
    """
    if not tensors:
        return
    own = _table(tensors)
    expected = own.clone()
    broadcast_packed(runtime, [expected], root)
    marks = (own != expected).any(dim=1).to(torch.int32)
    counts = push_pull(marks, average=False, name=_NAME).tolist()
    differing = [tensor for tensor, count in zip(tensors, counts, strict=True) if count]
    logger.debug("%d of %d tensors differ from those of rank %d", len(differing), len(tensors), root)
    if differing:
        broadcast_packed(runtime, differing, root)


def digest(tensor: torch.Tensor) -> Digest:
    """96 bits of the bytes, shape and type of `tensor`: their CRC32C, and the sum of the bytes as 64-bit words.

    Two tensors of other bits have the same one by a chance of about 2^-96, unless somebody has sought them. Any dense
    tensor will do: any element type, strides and device.
    """
    data = bytes_of(tensor.cpu()).numpy()
    crc, total = crc32c(f"{tensor.dtype} {tuple(tensor.shape)}".encode()), 0
    for start in range(0, len(data), _BLOCK_BYTES):
        block = data[start : start + _BLOCK_BYTES]
        crc, total = crc32c(block, crc), total + _sum_of_words(block)
    return crc, total % (1 << 64)


def _sum_of_words(block: npt.NDArray[np.uint8]) -> int:
    """Modulo 2^64; zeros make the last word whole."""
    whole = len(block) // _WORD.itemsize * _WORD.itemsize
    return int(block[:whole].view(_WORD).sum()) + int.from_bytes(block[whole:].tobytes(), "little")


def _table(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A row of two words for each digest, in memory of its own."""
    return torch.from_numpy(np.array([digest(tensor) for tensor in tensors], _WORD).view(np.int64))
