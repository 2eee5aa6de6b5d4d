"""All-reduce of tensors on devices, of which each rank moves its own share between hosts.

Among the L ranks of a host the devices themselves reduce and scatter (local_peers: NCCL, or CUDA IPC); then the share
of each rank, 1/L, goes through its host's memory to the ranks of the same place on the other hosts, or to servers, and
the shares are gathered on the devices again. So a host sends and receives each byte once, by all its ranks and their
network cards at once: BytePS's use of them (Jiang et al., OSDI 2020, section 4.1). Without it every rank sends what the
algorithm has it send of the whole tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from byteps_like.collectives.api import CallOptions, Group
from byteps_like.collectives.together import Waitable
from byteps_like.dtypes import Op
from byteps_like.errors import BytePSLikeError
from byteps_like.torch.device.api import Device, Event
from byteps_like.torch.device.staged_copy import Stage, StagedCopy
from byteps_like.torch.device.tensors import reducible
from byteps_like.torch.local.choice import make_peers
from byteps_like.torch.local.peers import LocalPeers, exchange
from byteps_like.worker.engine.shares import slice_of

_SUMMED = (Op.SUM, Op.AVERAGE)
Move = Callable[[torch.Tensor], Waitable]
"""Starts what is done between hosts with this rank's share, which is in its host's memory, where the result goes."""


def even_places(hosts: Sequence[int]) -> list[list[int]] | None:
    """Ranks by host, in their order; None unless all hosts have equally many ranks, at least two."""
    places = [[rank for rank, host in enumerate(hosts) if host == one] for one in dict.fromkeys(hosts)]
    counts = {len(ranks) for ranks in places}
    return places if len(counts) == 1 and counts != {1} else None


@dataclass(frozen=True)
class Ground:
    """What local shares stand on: `lane(name, ranks)` makes a lane of some ranks, `backend(name, prefix, rank, size)`
    one of torch's own; seconds that a rank waits for another."""

    lane: Callable[[str, Sequence[int]], Group]
    backend: Callable[[str, str, int, int], Any]
    timeout: float


class LocalShares:
    """Those of some ranks, on one device of each. Thread-safe; ranks make their calls in one order."""

    def __init__(self, device: Device, places: list[list[int]], rank: int, ground: Ground, wanted: str) -> None:
        """`places`: ranks by host. Blocks until all ranks have come. Raises InvalidArgumentError if what is wanted
        can't be; where "auto" finds nothing on some host, `usable` says so on all ranks."""
        own = next(number for number, ranks in enumerate(places) if rank in ranks)
        self.size, self.rank = len(places[own]), places[own].index(rank)
        self._host = ground.lane(f"host/{own}", places[own])
        self._across = ground.lane(f"place/{self.rank}", [ranks[self.rank] for ranks in places])
        everybody = ground.lane("all", sorted(one for ranks in places for one in ranks))

        def backend(name: str) -> Any:
            return ground.backend(name, f"byteps_like/local/{own}", self.rank, self.size)

        self._peers: LocalPeers | None = make_peers(wanted, device, self._host, backend, ground.timeout)
        self.usable = all(one["by"] for one in exchange(everybody, {"by": getattr(self._peers, "name", "")}))
        everybody.release()
        self._device = device
        self._stage: Stage | None = None
        self._closed = False
        self._lock = threading.Lock()

    def takes(self, tensor: torch.Tensor, op: Op) -> bool:
        """Whether it does this one: sums and averages of floating-point numbers."""
        enough = op in _SUMMED and tensor.numel() >= self.size
        return self.usable and enough and self._peers is not None and self._peers.takes(tensor.dtype)

    def all_reduce(self, tensor: torch.Tensor, op: Op, options: CallOptions) -> StagedCopy | Queued:
        """Starts it, in place. Between hosts, per rank: an all-reduce of 1/L of the tensor, with one rank of each."""
        return self._start(tensor.data.reshape(-1), None, op, partial(self._reduce_across, op, options))

    def reduce_placed(
        self, data: torch.Tensor, host: torch.Tensor, op: Op, options: CallOptions, move: Move | None = None
    ) -> StagedCopy | Queued:
        """As `all_reduce`, of a flat tensor on the device by way of its mirror, of which the own share is used. `move`
        does what is done between hosts in another way than by an all-reduce."""
        return self._start(data, host, op, move or partial(self._reduce_across, op, options))

    def _reduce_across(self, op: Op, options: CallOptions, own: torch.Tensor) -> Any:
        address, dtype = own.data_ptr(), reducible(own, "allreduce")
        return self._across.all_reduce(address, address, own.numel(), dtype, op, options._replace(waits=False))

    def _start(self, flat: torch.Tensor, mirror: torch.Tensor | None, op: Op, move: Move) -> StagedCopy | Queued:
        reducible(flat, "allreduce")
        peers, device = self._peers, self._device
        assert peers is not None
        stage = self._started()
        part = slice_of(flat.numel(), self.size, self.rank)
        stage.down.after(device.current().record())
        with device.using(stage.down):  # so the program's stream doesn't wait for the other ranks
            own = flat.new_empty(len(part)) if mirror is None else flat[part.start : part.stop]
            peers.reduce_scatter(flat, own, op is Op.AVERAGE)
            if self._across.size == 1:
                peers.all_gather(flat, own)
        for item in (flat, own):
            for stream in (stage.down, stage.up):
                device.keep(item, stream)
        if self._across.size == 1:
            return Queued(device, stage, peers)
        host = device.empty(own) if mirror is None else mirror[part.start : part.stop]

        def launch() -> Any:
            peers.check()
            return move(host)

        down, up = ([(host, own)], [(own, host)]) if len(part) else ([], [])
        return stage.start(down, up, launch, lambda: peers.all_gather(flat, own))

    def _started(self) -> Stage:
        with self._lock:
            self._stage = self._stage or Stage(self._device)
            return self._stage

    def close(self) -> None:
        """Ends the threads, what ranks of the host reduce by, and the lanes. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if self._stage is not None:
            self._stage.close()
        if self._peers is not None:
            self._peers.close()
        self._host.release()
        self._across.release()


class Queued:
    """A reduction that is the devices' alone, since all ranks are on one host. As a StagedCopy; thread-safe."""

    source = 0

    def __init__(self, device: Device, stage: Stage, peers: LocalPeers) -> None:
        self._device, self._stage, self._peers = device, stage, peers
        self._landed: Event = stage.down.record()

    def done(self) -> bool:
        """Whether the result is on the device; never blocks."""
        return self._landed.done()

    def wait(self, timeout: float | None = None) -> None:  # noqa: ARG002 - it doesn't block
        """The current stream waits for the result. Raises what the local peers have failed with."""
        self._peers.check()
        self._device.current().after(self._landed)

    def block(self) -> None:
        """As `wait`."""
        self.wait()

    def give_up(self, error: BytePSLikeError) -> None:
        """The devices' own: they end it."""

    def error(self) -> BytePSLikeError | None:
        """Why the local peers failed, or None."""
        try:
            self._peers.check()
        except BytePSLikeError as error:
            return error
        return None

    def on_done(self, callback: Callable[[], None]) -> None:
        """At once: `wait` doesn't block the host."""
        callback()

    def aside(self) -> AbstractContextManager[Any]:
        """Within the block this thread's current stream is another than the program's."""
        return self._device.using(self._stage.up)
