"""Local peers by a backend of torch's own: NCCL. See peers.LocalPeers."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.errors import BytePSLikeError, ShutdownError
from byteps_like.worker.engine.shares import slice_of

_SCATTER, _GATHER, _END = 1, 2, 3
_FOR_EVER = 1e8  # seconds: a turn comes when the program makes it


class GroupPeers:
    """Those of `backend`, among the ranks of `lane`. It has one communicator, so that kernels run one after the other.

    Reduce-scatters are launched by the program's thread and all-gathers by another, when something has come from the
    network: at a time of its own on each rank. Two kernels of NCCL that start in another order on another rank may
    each keep the other's processors, so rank 0's order is that of all (Turns).
    """

    def __init__(self, name: str, backend: Any, lane: Group) -> None:
        self.name = name
        self._backend, self._turns = backend, Turns(lane)
        self._rank, self._size = lane.rank, lane.size

    def takes(self, dtype: torch.dtype) -> bool:
        """Floating-point numbers that NCCL sums on all devices: those of 8 bits need the newest."""
        return dtype.is_floating_point and dtype.itemsize > 1

    def reduce_scatter(self, whole: torch.Tensor, own: torch.Tensor, average: bool) -> None:
        """See LocalPeers. A copy, where slices aren't of one size."""
        share = len(slice_of(whole.numel(), self._size, 0))
        source, target = whole, own
        if whole.numel() < share * self._size:
            source = whole.new_zeros(share * self._size)
            source[: whole.numel()].copy_(whole)
            target = whole.new_empty(share)
        with self._turns.take(_SCATTER):
            self._backend._reduce_scatter_base(target, source).wait()
        if target is not own:
            own.copy_(target[: own.numel()])
        if average:
            own.div_(self._size)

    def all_gather(self, whole: torch.Tensor, own: torch.Tensor) -> None:
        """See LocalPeers. A copy, where slices aren't of one size."""
        share = len(slice_of(whole.numel(), self._size, 0))
        source, target = own, whole
        if whole.numel() < share * self._size:
            source = whole.new_zeros(share)
            source[: own.numel()].copy_(own)
            target = whole.new_empty(share * self._size)
        with self._turns.take(_GATHER):
            self._backend._allgather_base(target, source).wait()
        if target is not whole:
            whole.copy_(target[: whole.numel()])

    def check(self) -> None:
        """torch's backend raises by itself."""

    def close(self) -> None:
        """See LocalPeers."""
        self._turns.close()
        self._backend.shutdown()


class Turns:
    """The order of two kinds of launches, the same on all ranks of a lane: that in which rank 0 comes to them.

    On the wire: a byte from rank 0 to each other rank for each launch. Calls of a kind come in one order by themselves.
    """

    def __init__(self, lane: Group) -> None:
        self._lane = lane
        self._changed = threading.Condition()
        self._kinds = {kind: ctypes.create_string_buffer(bytes([kind]), 1) for kind in (_SCATTER, _GATHER, _END)}
        self._next = ctypes.create_string_buffer(1)
        self._told = 0
        self._error: BytePSLikeError | None = None
        if lane.rank:
            self._listen()

    @contextmanager
    def take(self, kind: int) -> Iterator[None]:
        """Within the block it is this kind's turn. Blocks until then: rank 0 has come, and what it launched before has
        been launched here. Raises what ended the turns; what fails within the block ends them."""
        with self._changed:
            if self._lane.rank == 0:
                self._tell(kind)
            else:
                self._changed.wait_for(lambda: self._told in (kind, _END))
            if self._told == _END:
                raise self._error or ShutdownError("the reductions among the ranks of this host have ended")
            try:
                yield
            except BaseException:
                self._told = _END
                raise
            else:
                if self._lane.rank:
                    self._listen()
            finally:
                self._changed.notify_all()

    def _tell(self, kind: int) -> None:
        if self._told != _END:
            self._told = kind
            for peer in range(1, self._lane.size):
                self._lane.send(ctypes.addressof(self._kinds[kind]), 1, peer, options=_OPTIONS)

    def _listen(self) -> None:
        self._told = 0
        operation = self._lane.receive(ctypes.addressof(self._next), 1, 0, options=_OPTIONS)

        def heard() -> None:
            with self._changed:
                self._error = operation.error()
                self._told = _END if self._error is not None else self._next.raw[0]
                self._changed.notify_all()

        operation.on_done(heard)

    def close(self) -> None:
        """No more turns; who waits for one raises ShutdownError."""
        with self._changed:
            if self._lane.rank == 0:
                with suppress(BytePSLikeError):  # the world has ended
                    self._tell(_END)
            self._told = _END
            self._changed.notify_all()


_OPTIONS = CallOptions(timeout=_FOR_EVER, traffic=Traffic.CONTROL)
