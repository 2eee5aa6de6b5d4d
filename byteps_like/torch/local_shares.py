"""All-reduce of tensors on the devices of several hosts, of which each rank moves its own share between hosts.

Among the L ranks of a host another backend works on the devices themselves (NCCL): reduce-scatter, then the share of
each rank, 1/L, goes through its host's memory to the ranks of the same place on the other hosts, then all-gather. So a
host sends and receives each byte once, by all its ranks and their network cards at once: BytePS's use of them (Jiang et
al., OSDI 2020, section 4.1). Without it every rank sends what the algorithm has it send of the whole tensor.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from byteps_like.collectives.api import CallOptions, Group
from byteps_like.dtypes import Op
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.devices import Device
from byteps_like.torch.group_tensors import reducible
from byteps_like.torch.inner import backend
from byteps_like.torch.passage import Passage, Stage

_SUMMED = (Op.SUM, Op.AVERAGE)


def even_places(hosts: Sequence[int]) -> list[list[int]] | None:
    """Ranks by host, in their order; None unless there are several hosts with equally many ranks, at least two."""
    places = [[rank for rank, host in enumerate(hosts) if host == one] for one in dict.fromkeys(hosts)]
    counts = {len(ranks) for ranks in places}
    return places if len(places) > 1 and len(counts) == 1 and counts != {1} else None


class LocalShares:
    """Those of one process group and kind of device. Thread-safe; ranks make their calls in one order.

    `make_peers` gives the lane of some ranks. The local backend is `name`; two groups of it are made: another thread
    gathers what has landed while the program scatters the next. Blocks until the ranks of this host have come. Raises
    InvalidArgumentError if the backend can't be.
    """

    def __init__(self, group: Group, make_peers: Any, store: Any, name: str, timeout: Any) -> None:
        places = even_places(group.hosts)
        assert places is not None
        if store is None:
            raise InvalidArgumentError("a local backend needs the store of init_process_group")
        own = next(number for number, ranks in enumerate(places) if group.rank in ranks)
        self.size, self.rank = len(places[own]), places[own].index(group.rank)
        self._peers: Group = make_peers(self.rank, [ranks[self.rank] for ranks in places])
        self._scatter, self._gather = (
            backend(name, PrefixStore(f"byteps_like/local/{own}/{use}", store), self.rank, self.size, timeout)
            for use in ("scatter", "gather")
        )
        self._stages: dict[str, Stage] = {}
        self._lock = threading.Lock()

    def takes(self, tensor: torch.Tensor, op: Op) -> bool:
        """Whether it does this one: sums and averages of floating-point numbers."""
        return op in _SUMMED and tensor.is_floating_point() and tensor.numel() >= self.size

    def all_reduce(self, device: Device, tensor: torch.Tensor, op: Op, options: CallOptions) -> Passage:
        """Starts it, in place. Between hosts, per rank: an all-reduce of 1/L of the tensor, with one rank of each."""
        dtype = reducible(tensor, "allreduce")
        flat = tensor.data.reshape(-1)
        share = -(-flat.numel() // self.size)
        whole = flat if flat.numel() == share * self.size else flat.new_zeros(share * self.size)
        if whole is not flat:
            whole[: flat.numel()].copy_(flat)
        own = flat.new_empty(share)
        self._scatter._reduce_scatter_base(own, whole).wait()
        if op is Op.AVERAGE:
            own.div_(self.size)
        host = device.empty(own)

        def launch() -> Any:
            address = host.data_ptr()
            return self._peers.all_reduce(address, address, share, dtype, op, options._replace(waits=False))

        def finish() -> None:
            self._gather._allgather_base(whole, own).wait()
            if whole is not flat:
                flat.copy_(whole[: flat.numel()])

        stage = self._stage(device)
        for tensor in (whole, flat):
            device.keep(tensor, stage.up)
        return stage.start([(host, own)], [(own, host)], launch, finish)

    def _stage(self, device: Device) -> Stage:
        with self._lock:
            if device.name not in self._stages:
                self._stages[device.name] = Stage(device)
            return self._stages[device.name]

    def close(self) -> None:
        """Ends the threads and the local groups."""
        for stage in self._stages.values():
            stage.close()
        self._scatter.shutdown()
        self._gather.shutdown()
