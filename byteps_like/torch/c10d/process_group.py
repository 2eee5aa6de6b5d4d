"""The process group behind `torch.distributed.init_process_group("byteps")`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from byteps_like.collectives.api import Group
from byteps_like.errors import InvalidArgumentError, ShutdownError
from byteps_like.torch.c10d.collectives import Collectives
from byteps_like.torch.c10d.device_calls import DeviceCalls, premultiplied
from byteps_like.torch.c10d.device_work import DeviceWork
from byteps_like.torch.c10d.futures import Callbacks
from byteps_like.torch.c10d.inner import InnerBackends, backend
from byteps_like.torch.c10d.lanes import Lanes
from byteps_like.torch.c10d.monitored import MonitoredBarrier
from byteps_like.torch.c10d.options import SHRINK_ABORT, CallDefaults, GroupOptions
from byteps_like.torch.c10d.p2p import PointToPoint
from byteps_like.torch.c10d.sparse import SparseSums
from byteps_like.torch.c10d.tensors import one, reduction
from byteps_like.torch.c10d.work import CoalescedWork, Work
from byteps_like.torch.calls.opaque import opaque
from byteps_like.torch.device import devices
from byteps_like.torch.device.api import Device
from byteps_like.torch.device.tensors import tensor_over
from byteps_like.torch.job.rendezvous import C10dWorld
from byteps_like.torch.local.shares import Ground, LocalShares, even_places

BACKEND_NAME = "byteps"


@dataclass(frozen=True)
class GroupMembership:
    """What a process group is made of. `ranks` are the world's, by group rank.

    `owns_world`: the world ends with this group. `prefix`: of the names of groups that are made of its ranks.
    """

    world: C10dWorld
    name: str
    ranks: tuple[int, ...]
    timeout: timedelta
    store: Any = None
    owns_world: bool = False
    prefix: str = ""

    def part(self, name: str, ranks: Sequence[int], timeout: timedelta, store: Any) -> GroupMembership:
        """That of a group of some of its ranks."""
        return GroupMembership(self.world, self.prefix + name, self._of_world(ranks), timeout, store)

    def without(self, ranks: Sequence[int], timeout: timedelta) -> GroupMembership:
        """That of all but some of its ranks, in the same order, in whose hands the world now is. Sends no message."""
        gone = set(self._of_world(ranks))
        name = f"{self.name}/without/{','.join(map(str, sorted(gone)))}"
        left = tuple(rank for rank in self.ranks if rank not in gone)
        store = None if self.store is None else PrefixStore(name, self.store)
        return GroupMembership(self.world, name, left, timeout, store, self.owns_world, f"{name}/")

    def _of_world(self, ranks: Sequence[int]) -> tuple[int, ...]:
        return tuple(self.ranks[rank] for rank in ranks)


def _barrier_name(membership: GroupMembership) -> str:
    return membership.name + "/monitored_barrier"


_Base: Any = dist.ProcessGroup  # whose stubs describe overloads, not what C++ calls


class ProcessGroup(PointToPoint, Collectives, _Base):  # type: ignore[misc]
    """Some ranks of a world. Calls are launched in the same order on all ranks of the group; groups are independent.

    Tensors on the CPU are used in place; those on devices go by `GroupOptions.inner`, or through page-locked memory.
    Thread-safe, as far as ranks agree on the order of calls.
    """

    def __init__(self, membership: GroupMembership, options: GroupOptions | None = None) -> None:
        # With a store the base class would make something that Python can't subclass.
        super().__init__(membership.ranks.index(membership.world.rank), len(membership.ranks))
        self.options = options or GroupOptions()
        self.defaults = CallDefaults(self.options, membership.timeout)
        self._name, self._desc = membership.name, "undefined"
        self._lock = threading.Lock()
        self._enter(membership)

    def _enter(self, membership: GroupMembership) -> None:
        """It is made of these ranks from here on."""
        self._membership, self.world = membership, membership.world
        self.lanes = Lanes(membership.world, membership.name, membership.ranks)
        self.callbacks = Callbacks()
        self._inner = InnerBackends(membership.store, self.lanes.first, self.options.inner, membership.timeout)
        self._monitored: MonitoredBarrier | None = None
        self._sparse: SparseSums | None = None
        self._coalescing: CoalescedWork | None = None
        self.aboard = None
        self._local: LocalShares | None = None

    # ---- who we are: C++ asks by these names

    def getBackendName(self) -> str:
        """ "byteps"."""
        return BACKEND_NAME

    name = _get_backend_name = getBackendName

    def getGroupName(self) -> str:
        """The name under which torch knows the group, equal on all its ranks."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """torch's; the lane keeps the name that the group was made with."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What the user said that the group is for."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:
        """torch's."""
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    @property
    def _device_types(self) -> list[torch.device]:
        return device_types()

    def get_group_store(self) -> Any:
        """The store that the group was made with."""
        return self._membership.store

    def set_timeout(self, timeout: timedelta) -> None:
        """The timeout of calls from here on that have none of their own."""
        self.defaults.set_timeout(timeout)

    _set_default_timeout = set_timeout

    # ---- devices

    def elsewhere(
        self, tensor: torch.Tensor, call: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Any:
        """A call with tensors that are not on the CPU: by the backend chosen for their device, or through host memory.

        `tensor` is one of them.
        """
        backend = self._inner.get(tensor.device)
        if backend is not None:
            return getattr(backend, call.__name__)(*arguments, **named)
        if tensor.layout is not torch.strided:
            return call(*arguments, **named)  # which has the host copy it, or refuses it
        device = devices.of(tensor)
        assert device is not None
        with self._lock:
            self.aboard = self.aboard or DeviceCalls()
        if call.__name__ == "allreduce" and (shares := self._shares(tensor, device)) is not None:
            options = named.get("opts", arguments[1] if len(arguments) > 1 else None)
            op = reduction(options, one(arguments[0], "allreduce", "tensors"), "allreduce")
            if shares.takes(tensor, op) and premultiplied(options, tensor) is tensor:
                devices.check_not_capturing(device, "allreduce")
                self.aboard.lane(self.lanes.current)
                passage = shares.all_reduce(tensor, op, self._options(options))
                return self._joined(DeviceWork(passage, [tensor], None, self.callbacks))
        return self.aboard.run(device, call, arguments, named)

    def _shares(self, tensor: torch.Tensor, device: Device) -> LocalShares | None:
        """Made when the first tensor of that kind of device comes, on all ranks alike."""
        name, lane = self.options.local.get(tensor.device.type), self.lanes.first
        places = even_places(lane.hosts)
        if name is None or places is None:
            return None
        with self._lock:
            if self._local is None:
                self._local = LocalShares(device, places, lane.rank, self._ground(), name)
            return self._local

    def _ground(self) -> Ground:
        member = self._membership

        def lane(name: str, ranks: Sequence[int]) -> Group:
            return self.world.group(f"{member.name}/local/{name}", [member.ranks[rank] for rank in ranks])

        def made(name: str, prefix: str, rank: int, size: int) -> Any:
            if member.store is None:
                raise InvalidArgumentError("a local backend needs the store of init_process_group")
            return backend(name, PrefixStore(prefix, member.store), rank, size, member.timeout)

        return Ground(lane, made, member.timeout.total_seconds())

    def _get_backend(self, device: torch.device) -> Any:
        return self._inner.get(device) or self

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False
    supports_reconfigure = False

    def supports_tensor_alloc(self, device: torch.device) -> bool:
        """Whether `allocate_tensor` has memory on `device`."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """A flat tensor in memory that ranks on this host share, so that collectives need not copy it."""
        if not self.supports_tensor_alloc(device):
            raise InvalidArgumentError(f"there is no shared memory on {device}")
        return tensor_over(self.world.empty_shared(size * dtype.itemsize), dtype)[:size]

    def sparse_sums(self) -> SparseSums:
        """The sums of sparse tensors, made when there is one."""
        with self._lock:
            if self._sparse is None:
                member = self._membership
                self._sparse = SparseSums(Lanes(self.world, member.name + "/sparse", member.ranks))
            return self._sparse

    # ---- several calls as one

    @opaque
    def _start_coalescing(self, device: torch.device | None = None) -> None:  # noqa: ARG002 - torch's
        self._coalescing = CoalescedWork(self.callbacks)

    @opaque
    def _end_coalescing(self, device: torch.device | None = None) -> Work:  # noqa: ARG002 - torch's
        work, self._coalescing = self._coalescing, None
        if work is None:
            raise InvalidArgumentError("_end_coalescing without _start_coalescing")
        return work.close()

    start_coalescing, end_coalescing = _start_coalescing, _end_coalescing

    # ---- beyond collectives

    @opaque
    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that raises DeadlineError on every rank that came, naming those that did not. Blocks.

        Without a `timeout`, which may be 0, the group's. torch.distributed.monitored_barrier comes here.
        """
        with self._lock:
            if self._monitored is None:
                lane = self.world.group(_barrier_name(self._membership), self._membership.ranks)
                self._monitored = MonitoredBarrier(lane)
        seconds = self.defaults.timeout if timeout is None else timeout.total_seconds()
        self._monitored(seconds, wait_all_ranks)

    def splitGroup(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,  # noqa: ARG002 - a group serves all of them
    ) -> ProcessGroup | None:
        """The group of these ranks of this one, without a message; None on the others."""
        if self.rank() not in new_ranks:
            return None
        ranks = [self._membership.ranks[rank] for rank in new_ranks]
        name = group_name or f"{self._name}:split:{','.join(map(str, ranks))}"
        limit = timeout or timedelta(seconds=self.defaults.timeout)
        membership = self._membership.part(name, new_ranks, limit, self._membership.store)
        part = ProcessGroup(membership, opts if isinstance(opts, GroupOptions) else self.options)
        part.setGroupDesc(group_desc or f"{self._desc}:split")
        return part

    split_group = splitGroup

    def part(self, name: str, ranks: Sequence[int], timeout: timedelta, store: Any, options: Any) -> ProcessGroup:
        """The group that torch calls `name`, of these ranks of this one; without a message."""
        return ProcessGroup(self._membership.part(name, ranks, timeout, store), options or self.options)

    def shrink(self, ranks_to_exclude: Sequence[int], shrink_flags: int = 0, opts: Any = None) -> ProcessGroup:
        """The group of all but these ranks of this one, which may have died; without a message. See `shrink_group`.

        This one has ended: its calls raise ShutdownError. What is in flight goes on, or, with SHRINK_ABORT, raises
        ShutdownError on all its ranks. Raises ShutdownError if it had ended before.
        """
        if self.lanes.ended:
            raise ShutdownError(f"shrink: process group {self._name!r} has ended", operation="shrink")
        why = f"process group {self._name!r} was shrunk"
        if shrink_flags == SHRINK_ABORT:
            self._cancel(ShutdownError(why))
        left = self._membership.without(ranks_to_exclude, timedelta(seconds=self.defaults.timeout))
        self._membership = replace(self._membership, owns_world=False)
        self._end(why)
        return ProcessGroup(left, opts or self.options)

    def _cancel(self, error: ShutdownError) -> None:
        self.lanes.cancel(error)
        if self._sparse is not None:
            self._sparse.cancel(error)
        self.world.cancel(_barrier_name(self._membership), error)

    def mergeRemoteGroup(self, *_: Any, **__: Any) -> NoReturn:
        """Not supported."""
        raise InvalidArgumentError("merge_remote_group is not supported by 'byteps': begin a new world instead")

    merge_remote_group = mergeRemoteGroup

    # ---- its end

    def shutdown(self) -> None:
        """Calls from here on raise ShutdownError; with the world's own group the world is left in order. Idempotent."""
        self._end(f"process group {self._name!r} was destroyed")

    def abort(self) -> None:
        """As shutdown, and what is in flight fails at once: in the whole world if this is its own group, else in this
        group, on all its ranks."""
        why = f"process group {self._name!r} was aborted"
        if not self.lanes.ended:
            if self._membership.owns_world:
                self.world.fail(ShutdownError(why))
            else:
                self._cancel(ShutdownError(why))
        self._end(why)

    def _end(self, why: str) -> None:
        if not self.lanes.end(why):
            return
        if self._local is not None:
            self._local.close()
        if self.aboard is not None:
            self.aboard.close()
        self.callbacks.close()
        if self._sparse is not None:
            self._sparse.close(why)
        self._inner.close()
        if self._membership.owns_world:
            self.world.close()
            return
        self.lanes.release()
        if self._sparse is not None:
            self._sparse.release()
        if self._monitored is not None:
            self.world.release(_barrier_name(self._membership))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise InvalidArgumentError("a process group can't be copied or pickled")


def device_types() -> list[torch.device]:
    """What this process's tensors can be on."""
    accelerator = torch._C._get_accelerator()
    cpu = torch.device("cpu")
    return [cpu] if accelerator.type == "cpu" else [cpu, torch.device(accelerator.type)]
