"""Local shares of gradients: an arena's partitions, or the buckets of DDP's hook, of which a rank moves its own share.

Each partition is reduced among the ranks of a host on their devices, its shares travel between hosts, and are gathered
(local_shares). They travel among the workers, or to servers and back: a share is a key of its own there, to which the
ranks of one place contribute (worker.shares). The ranks of a host launch partitions in one order, that of their
numbers: an arena sends none before those that come before it. Each arena has memory and streams of its own for it, so
arenas don't wait for each other. CUDA IPC only: kernels of several NCCL communicators may wait for each other for ever.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from byteps_like.collectives.api import CallOptions, Group, Traffic
from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.buffer import DeviceBuffer
from byteps_like.torch.device.inflight import InFlightGroup
from byteps_like.torch.job.runtime import Runtime
from byteps_like.torch.local.choice import AUTO_IPC
from byteps_like.torch.local.shares import Ground, LocalShares, Move, even_places
from byteps_like.worker.api import Declared, Handle, MovesShares, Share, Worker


class ArenaShares:
    """Those of one arena, or of the buckets of one hook. Calls come in one order on all ranks."""

    def __init__(self, shares: LocalShares, worker: Worker) -> None:
        self._shares, self._worker = shares, worker
        self._sent: Sequence[bool] = ()
        self._complete: set[int] = set()
        weakref.finalize(self, shares.close)

    def takes(self, declared: Declared, place: DeviceBuffer, op: Op) -> bool:
        """Whether it reduces this tensor; the same on all ranks."""
        return not declared.spec.codec and self._shares.takes(place.data, op)

    def in_turn(self, parts: Sequence[int], sent: Sequence[bool]) -> range:
        """Those of `parts`, which are complete, and of those before, that may go now: in the order of their numbers.

        `sent` says which have gone in this round; it is another object in the next.
        """
        if sent is not self._sent:
            self._sent, self._complete = sent, set()
        self._complete.update(parts)
        first = last = next((part for part, gone in enumerate(sent) if not gone), len(sent))
        while last in self._complete:
            last += 1
        return range(first, last)

    def start(self, declared: Declared, place: DeviceBuffer, op: Op, parts: range | None, priority: int) -> Handle:
        """Reduces those partitions, each by itself: which are ready together differs from rank to rank."""
        options = CallOptions(priority=priority, traffic=Traffic.GRADIENT)
        if parts is None:
            declared = self._worker.placed(declared)
            parts = range(len(declared.partitions))
        flights = []
        for number in parts:
            part = declared.partitions[number]
            begin = part.offset // declared.spec.dtype.itemsize
            one = place.part(begin, begin + part.nbytes // declared.spec.dtype.itemsize)
            move = self._by_servers(declared, place, op, number, priority)
            flights.append(self._shares.reduce_placed(one.data, one.host, op, options, move))
        return InFlightGroup(flights)

    def _by_servers(self, declared: Declared, place: DeviceBuffer, op: Op, number: int, priority: int) -> Move | None:
        if self._worker.route != "server":
            return None
        push_pull: Any = self._worker.push_pull
        address, share = place.host.data_ptr(), Share(self._shares.rank, self._shares.size)

        def move(_: torch.Tensor) -> Any:
            parts = range(number, number + 1)
            return push_pull(declared, address, op, parts=parts, priority=priority, share=share)

        return move


def may_share(runtime: Runtime, worker: Worker, device: Device | None) -> bool:
    """Whether `find` is to be asked: somebody wants it (Config.local_shares), and `worker` could. Raises
    InvalidArgumentError where it can't, and "ipc" was asked for."""
    if device is None or runtime.config.local_shares == "off" or worker.route == "none":
        return False
    if worker.route == "allreduce" or (isinstance(worker, MovesShares) and worker.moves_shares()):
        return True
    return _missing(runtime, "a rank is a portable worker, which does not support local shares")


def find(runtime: Runtime, worker: Worker, device: Device | None, label: str) -> ArenaShares | None:
    """Those of the ranks of `worker` for what is called `label`; None where they can't be. All ranks make the call;
    blocks until they have. Raises InvalidArgumentError if what was asked for can't be."""
    places = even_places(worker.group("local").hosts)
    if places is None or device is None:
        _missing(runtime, "all hosts must have the same number of ranks, at least two")
        return None

    def lane(name: str, ranks: Sequence[int]) -> Group:
        return worker.group(f"local/{label}/{name}", ranks)

    wanted = "ipc" if runtime.config.local_shares == "ipc" else AUTO_IPC
    shares = LocalShares(device, places, worker.rank, Ground(lane, _no_backend, runtime.config.stall_timeout), wanted)
    if not shares.usable:
        shares.close()
        return None
    runtime.shares.add(shares)
    return ArenaShares(shares, worker)


def _missing(runtime: Runtime, why: str) -> bool:
    if runtime.config.local_shares == "ipc":
        raise InvalidArgumentError(f"local_shares='ipc' is not available: {why}; use 'auto' to do without it")
    return False


def _no_backend(*_: Any) -> NoReturn:
    raise InvalidArgumentError("gradients are reduced among the ranks of a host by CUDA IPC only")
