"""Where torch lets only its own backends in, ours is let in too; for all others these calls stay torch's.

`dist.monitored_barrier` asks for a group whose backend is called gloo, `dist.shrink_group` for one written in C++.
DDP's built-in hook that compresses to float16 asks, in C++, for a future that holds a list of tensors, which Python
can't make; the same hook in Python does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed import (  # type: ignore[attr-defined]
    BuiltinCommHookType,
    _register_comm_hook,
    distributed_c10d,
)
from torch.nn.parallel import DistributedDataParallel

from byteps_like.torch.c10d.options import SHRINK_DEFAULT


def let_in(shrink: Callable[..., Any]) -> None:
    """Once in a process. `shrink` is what our groups have for `dist.shrink_group`."""
    if hasattr(dist, "monitored_barrier"):
        wrapped: Any = _for_ours(dist.monitored_barrier)
        dist.monitored_barrier = distributed_c10d.monitored_barrier = wrapped
    if hasattr(dist, "shrink_group"):
        shrinking: Any = _shrinks_ours(dist.shrink_group, shrink)
        dist.shrink_group = distributed_c10d.shrink_group = shrinking
    if hasattr(DistributedDataParallel, "_register_builtin_comm_hook"):
        original: Any = DistributedDataParallel._register_builtin_comm_hook
        hook: Any = _with_hook_in_python(original)
        DistributedDataParallel._register_builtin_comm_hook = hook  # type: ignore[method-assign]


def _is_ours(group: object) -> bool:
    from byteps_like.torch.c10d.process_group import ProcessGroup

    return isinstance(group, ProcessGroup)


def _for_ours(original: Any) -> Any:
    @functools.wraps(original)
    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        used: Any = distributed_c10d.GroupMember.WORLD if group is None else group
        if not _is_ours(used):
            return original(group, timeout, wait_all_ranks)
        limit = timedelta(seconds=timeout) if isinstance(timeout, int | float) else timeout
        return used.monitored_barrier(limit, wait_all_ranks)

    return monitored_barrier


def _shrinks_ours(original: Any, ours: Callable[..., Any]) -> Any:
    @functools.wraps(original)
    def shrink_group(
        ranks_to_exclude: Any, group: Any = None, shrink_flags: Any = SHRINK_DEFAULT, pg_options: Any = None
    ) -> Any:
        used: Any = distributed_c10d.GroupMember.WORLD if group is None else group
        shrink = ours if _is_ours(used) else original
        return shrink(ranks_to_exclude, group, shrink_flags, pg_options)

    return shrink_group


def _with_hook_in_python(original: Any) -> Any:
    @functools.wraps(original)
    def _register_builtin_comm_hook(self: Any, comm_hook_type: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

        if comm_hook_type != BuiltinCommHookType.FP16_COMPRESS or not _is_ours(self.process_group):
            original(self, comm_hook_type)
            return
        self.logger._set_comm_hook_name(str(comm_hook_type))
        _register_comm_hook(self.reducer, self.process_group, fp16_compress_hook)

    return _register_builtin_comm_hook
