"""Makes "byteps" known to torch.distributed: by importing byteps_like.torch, or by an entry point in newer torch."""

from __future__ import annotations

import atexit
import weakref
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from byteps_like.config import Config
from byteps_like.errors import InvalidArgumentError
from byteps_like.torch.c10d.options import SHRINK_DEFAULT, checked
from byteps_like.worker.meeting import MeetingSeat

if TYPE_CHECKING:
    from byteps_like.torch.c10d.process_group import ProcessGroup

_DEVICES = ["cpu", "cuda", "xpu", "mps"]
_TIMEOUT = timedelta(minutes=30)


def register(*_: object) -> None:
    """Registers the backend; the entry point's. Idempotent. Does nothing where torch has no distributed package."""
    if dist.is_available() and not hasattr(dist.Backend, "BYTEPS"):
        from byteps_like.torch.c10d.let_in import let_in  # which needs that package

        dist.Backend.register_backend("byteps", create, extended_api=True, devices=_DEVICES)
        let_in(shrink_group)
        named = Config.partly_from_env(("default_backend",)).default_backend
        if named:
            use_as_default(*named.split(","))


def use_as_default(*devices: str) -> None:
    """Makes "byteps" torch's default backend for `devices`, such as "cpu", where a script names no backend.

    Call it before `init_process_group()` or `init_device_mesh()`. The variable BYTEPS_LIKE_DEFAULT_BACKEND does the
    same when byteps_like.torch is imported. For a group without a named backend, torch takes the default of the
    machine's accelerator, or of "cpu" if there is none; older releases look at the defaults of all devices, and if one
    of these is "byteps", it serves the whole group. Sends nothing and does not block.

    Raises InvalidArgumentError for a device type other than cpu, cuda, xpu and mps.
    """
    for device in devices:
        if device.strip() not in _DEVICES:
            raise InvalidArgumentError(f"'byteps' serves {', '.join(_DEVICES)}, not {device.strip()!r}")
    if dist.is_available():
        dist.Backend.default_device_backend_map.update((device.strip(), "byteps") for device in devices)


def create(request: Any, options: Any = None) -> ProcessGroup:
    """The process group that torch asks for. The world's blocks until all ranks have come; others send no message.

    `request`: torch's DistributedBackendOptions. A sub-group stands on the default group's world; where the default
    group is another backend's, the ranks of the new group become a world of their own.
    """
    # Not at the top: most users of byteps_like.torch make no process group.
    from byteps_like.torch.c10d.process_group import ProcessGroup

    chosen = checked(options)
    ranks = tuple(request.global_ranks_in_group)
    changes = getattr(request, "enable_reconfigure", False)  # of torch 2.14
    parent = dist.distributed_c10d.GroupMember.WORLD if ranks else None
    if isinstance(parent, ProcessGroup):
        return parent.part(request.group_id, ranks, request.timeout, request.store, options and chosen)
    return create_process_group(
        request.store, request.group_rank, request.group_size,
        timeout=request.timeout, options=options, name=request.group_id, enable_reconfigure=changes,
    )  # fmt: skip


def create_process_group(
    store: Any, rank: int, world_size: int, *, timeout: timedelta = _TIMEOUT, options: Any = None, name: str = "0",
    enable_reconfigure: bool = False,
) -> ProcessGroup:  # fmt: skip
    """Creates a process group with connections of its own, without init_process_group.

    It is for programs that manage their groups themselves and create a new one when ranks are lost, as torchft's
    wrappers do. Several groups may be open at a time, also on the same `store`.

        group = bps.create_process_group(store, rank, world_size, timeout=timedelta(seconds=30))
        group.allreduce([tensor]).wait()
        group.shutdown()

    store: a torch.distributed.Store that all ranks share.
    rank, world_size: this rank, from 0, and the number of ranks.
    timeout: how long to wait for the other ranks, and the timeout of calls that have none of their own.
    options: a GroupOptions; None takes the defaults.
    name: identifies the group.
    enable_reconfigure: the group has no ranks at first. It gets them with each `group.reconfigure(...)`, from what
        `group.get_reconfigure_handle()` gives on each process, as torch 2.14's groups do. Nobody is waited for here,
        and `rank` and `world_size` may be of processes that never come.

    Blocks until all ranks have come to `store`. `shutdown()` closes the group in order; `abort()` makes calls in flight
    fail at once. Raises DeadlineError, which names the missing ranks; RefusedError, which names a rank that can't
    start; InvalidArgumentError for `options` of another type; ConfigError.
    """
    from byteps_like.torch.c10d.process_group import GroupMembership, ProcessGroup
    from byteps_like.torch.job.rendezvous import meet, meetable

    chosen, ranks = checked(options), tuple(range(world_size))
    seat = MeetingSeat(store, rank, world_size, timeout.total_seconds())
    if enable_reconfigure:
        from byteps_like.torch.c10d.reconfiguring import NoWorld, ReconfigurableGroup

        none_yet = GroupMembership(NoWorld(rank, world_size), name, ranks, timeout, store)
        return opened(ReconfigurableGroup(none_yet, chosen, meetable(seat)))
    membership = GroupMembership(meet(seat), name, ranks, timeout, store, owns_world=True)
    return opened(ProcessGroup(membership, chosen))


def shrink_group(
    ranks_to_exclude: list[int], group: Any = None, shrink_flags: int = SHRINK_DEFAULT, pg_options: Any = None
) -> ProcessGroup:
    """The process group of all ranks of `group` but `ranks_to_exclude`; torch.distributed.shrink_group for ours.

    Those who are left call it, each with the same arguments, and go on in the smaller group at once: ranks that are
    excluded may have died, hang or live, and take no part. Nobody waits for anybody: it sends no message.

    ranks_to_exclude: group ranks. The others keep their order, and are numbered from 0.
    group: the default group if None. That is replaced: all other groups are destroyed, `dist.get_rank()` and
        `dist.get_world_size()` are those of the smaller group from then on, and `dist.new_group` makes its parts.
    shrink_flags: SHRINK_DEFAULT, 0, lets operations in flight go on: those that need a dead rank raise PeerLostError.
        With SHRINK_ABORT, 1, they raise ShutdownError at once, on all ranks of `group`.
    pg_options: the smaller group's GroupOptions; None: those of `group`.

    `group` is destroyed. Raises TypeError for a list that isn't one of integers, or a group of another backend;
    ValueError for a rank that isn't in the group, that comes twice, for none or all of the ranks, a group of one rank,
    and flags that don't exist; RuntimeError on a rank that is excluded; InvalidArgumentError for `pg_options` of
    another type; ShutdownError if the group has ended.
    """
    from byteps_like.torch.c10d.shrinking import shrunk

    return opened(shrunk(ranks_to_exclude, group, shrink_flags, pg_options))


_open: weakref.WeakSet[Any] = weakref.WeakSet()


def opened(group: ProcessGroup) -> ProcessGroup:
    """`group`, with which a world may end: it is shut down at the end of the process, if not before."""
    _open.add(group)
    return group


@atexit.register
def _leave() -> None:
    """Worlds of processes that end without destroy_process_group are left in order."""
    groups = list(_open)
    for group in groups:
        group.shutdown()
    if groups:
        from byteps_like.torch.c10d.futures import end_all

        end_all()
