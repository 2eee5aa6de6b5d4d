"""Bytes of many tensors from one rank to all: for start-up and objects, where sizes differ from call to call.

A name has one size for ever, so the bytes are cut into chunks of at most `CHUNK_BYTES` and each chunk travels in the
smallest of a fixed series of capacities that holds it (four per octave: at most a quarter of it is padding). However
often this is called, there are no more names than capacities times `WINDOW`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

import torch

from byteps_like.dtypes import DType, Op
from byteps_like.torch.job.routes import Request, Scope
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.job.shadows import BUFFERS, PACKED
from byteps_like.torch.job.trees import bytes_of
from byteps_like.worker.api import Handle, TensorSpec

CHUNK_BYTES = 16 << 20
WINDOW = 2
"""Chunks in flight: one on its way up while the one before comes down."""

_SMALLEST = 256

Chunk = list[torch.Tensor]


def capacity(nbytes: int) -> int:
    """The smallest size of the series 256, 320, 384, 448, 512, 640, ... that holds `nbytes`."""
    step = _SMALLEST // 4
    while step * 8 < nbytes:
        step *= 2
    return max(_SMALLEST, -(-nbytes // step) * step)


def chunks(flat: Sequence[torch.Tensor], limit: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """Slices of the byte tensors `flat`, in order, in lists of `limit` bytes; the last may be shorter."""
    chunk: Chunk = []
    room = limit
    for tensor in flat:
        start = 0
        while start < tensor.numel():
            piece = tensor[start : start + room]
            chunk.append(piece)
            start += piece.numel()
            room -= piece.numel()
            if room == 0:
                yield chunk
                chunk, room = [], limit
    if chunk:
        yield chunk


def broadcast_packed(runtime: Runtime, tensors: Sequence[torch.Tensor], root: int, process_set: object = None) -> None:
    """Overwrites `tensors` with those of world rank `root`, of which all ranks know the shapes and types. Blocks.

    Any dense tensor will do: any element type, strides and device. On the wire: their bytes, up to a quarter of
    padding on the last chunk, up from the root and down to all others.
    """
    scope = runtime.scope(process_set)
    place = scope.root(root)
    if runtime.joiner is not None:
        runtime.joiner.check("broadcast", scope.ranks)
    with torch.no_grad(), runtime.bulk_lock:
        hosts = [tensor.detach().cpu().contiguous() for tensor in tensors]
        flat = [bytes_of(host) for host in hosts if host.numel()]
        _stream(scope, flat, place, f"{PACKED}{runtime.generation}.")
        if scope.rank == place:
            return
        for tensor, host in zip(tensors, hosts, strict=True):
            if tensor.data_ptr() != host.data_ptr():
                tensor.copy_(host)
            elif not tensor.is_inference():
                torch.autograd.graph.increment_version(tensor)


def broadcast_buffers(runtime: Runtime, tensors: Sequence[torch.Tensor], root: int) -> None:
    """As `broadcast_packed` over the world, also while ranks have joined (see join). Blocks.

    If `root` has joined, whose part is zeros then, all others keep what they have.
    """
    scope = runtime.scope(None)
    with torch.no_grad(), runtime.bulk_lock:
        present = torch.full((1,), scope.rank == root, dtype=torch.uint8, device="cpu")
        hosts = [tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        flat = [bytes_of(host) for host in hosts if host.numel()]
        _stream(scope, [present, *flat], root, BUFFERS)
        if scope.rank != root and present.item():
            for tensor, host in zip(tensors, hosts, strict=True):
                tensor.copy_(host)


def _stream(scope: Scope, flat: Sequence[torch.Tensor], root: int, label: str) -> None:
    in_flight: deque[tuple[Handle, torch.Tensor, Chunk]] = deque()
    is_root = scope.rank == root
    for number, chunk in enumerate(chunks(flat)):
        if len(in_flight) == WINDOW:
            _land(in_flight, is_root)
        nbytes = sum(piece.numel() for piece in chunk)
        staging = torch.zeros(capacity(nbytes), dtype=torch.uint8, device="cpu")
        if is_root:
            torch.cat(chunk, out=staging[:nbytes])
        name = f"{label}{staging.numel()}.{number % WINDOW}"
        (declared,) = scope.route.declare([TensorSpec(name, DType.UINT8, (staging.numel(),))])
        handle = scope.route.push_pull(declared, staging.data_ptr(), Op.BROADCAST, Request(root))
        in_flight.append((handle, staging, chunk))
    while in_flight:
        _land(in_flight, is_root)


def _land(in_flight: deque[tuple[Handle, torch.Tensor, Chunk]], is_root: bool) -> None:
    handle, staging, chunk = in_flight[0]
    handle.wait()
    in_flight.popleft()
    if not is_root:
        sizes = [piece.numel() for piece in chunk]
        for piece, landed in zip(chunk, torch.split(staging[: sum(sizes)], sizes), strict=True):
            piece.copy_(landed)
