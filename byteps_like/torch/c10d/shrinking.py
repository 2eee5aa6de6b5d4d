"""Shrinking: the ranks that are left of a group go on without the others.

torch's function of that name asks for a backend in C++. Ours has torch's signature, its errors, and does the same to
what torch knows of groups.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, distributed_c10d  # type: ignore[attr-defined]

from byteps_like.torch.c10d.options import SHRINK_ABORT, SHRINK_DEFAULT, checked
from byteps_like.torch.c10d.process_group import BACKEND_NAME, ProcessGroup

logger = logging.getLogger(__name__)

_c10d: Any = distributed_c10d
"""Whose tables of groups are private."""


def shrunk(ranks_to_exclude: list[int], group: Any, shrink_flags: int, pg_options: Any) -> ProcessGroup:
    """See backend.shrink_group."""
    _check(ranks_to_exclude, shrink_flags)
    target = group if group is not None else _c10d._get_default_group()
    excluded = _excluded(ranks_to_exclude, target)
    options = None if pg_options is None else checked(pg_options)
    if target not in _c10d._world.pg_map:  # of create_process_group: torch doesn't know it
        made: ProcessGroup = target.shrink(excluded, shrink_flags, options)
        return made
    return _replaced(target, excluded, shrink_flags, options)


def _check(ranks: object, flags: object) -> None:
    if not isinstance(ranks, list):
        raise TypeError(f"ranks_to_exclude must be a list of ranks, not {type(ranks).__name__}")
    if not ranks:
        raise ValueError("ranks_to_exclude is empty: name one rank at least")
    if not isinstance(flags, int) or flags not in (SHRINK_DEFAULT, SHRINK_ABORT):
        raise ValueError(
            f"shrink_flags={flags!r} is neither SHRINK_DEFAULT ({SHRINK_DEFAULT}) nor SHRINK_ABORT ({SHRINK_ABORT})"
        )


def _excluded(ranks: Sequence[Any], group: Any) -> list[int]:
    """In order. What is wrong with them is looked for in torch's order."""
    size = group.size()
    if size <= 1:
        raise ValueError(f"a group of {size} rank can't shrink: it must have two at least")
    if not isinstance(group, ProcessGroup):
        raise TypeError(f"the group is of the backend {group.name()!r}, not of {BACKEND_NAME!r}: use torch's function")
    for place, rank in enumerate(ranks):
        if not isinstance(rank, int):
            raise TypeError(f"ranks_to_exclude[{place}] must be an integer, not {type(rank).__name__}: {rank!r}")
        if not 0 <= rank < size:
            raise ValueError(
                f"ranks_to_exclude[{place}]={rank} is out of bounds: the group has the ranks 0..{size - 1}"
            )
        if rank in ranks[:place]:
            raise ValueError(f"ranks_to_exclude[{place}]={rank} is a duplicate")
    if len(ranks) == size:
        raise ValueError(f"all {size} ranks of the group are excluded: one must remain")
    if group.rank() in ranks:
        raise RuntimeError(f"rank {group.rank()} is excluded itself, and so must not call shrink_group")
    return sorted(ranks)


def _replaced(target: ProcessGroup, excluded: list[int], flags: int, options: Any) -> ProcessGroup:
    world = _c10d._world
    is_default = target is _c10d.GroupMember.WORLD
    name, (backend, store), config = world.pg_names[target], world.pg_map[target], world.pg_backend_config[target]
    ranks = [rank for rank, place in world.pg_group_ranks[target].items() if place not in excluded]
    made = target.shrink(excluded, flags, options)
    if is_default:
        _destroy_others(target)
    dist.destroy_process_group(target)
    made.setGroupDesc("default:shrunken" if is_default else f"{name}:shrunk")
    # What was agreed on under the store's old names is not what the smaller group will agree on.
    world.pg_map[made] = backend, PrefixStore(f"{made.group_name}/", store)
    world.pg_backend_config[made] = config
    world.pg_group_ranks[made] = {rank: place for place, rank in enumerate(range(len(ranks)) if is_default else ranks)}
    _name(made)
    if is_default:
        _c10d._update_default_pg(made)
    return made


def _name(group: ProcessGroup) -> None:
    """As torch does for those of new_group."""
    world, name = _c10d._world, group.group_name
    world.pg_names[group] = name
    _c10d._register_process_group(name, group)
    tag = world.pg_to_tag[group] = f"ptd:{name}"
    for known in ("", tag):
        world.tags_to_pg.setdefault(known, []).append(group)


def _destroy_others(default: ProcessGroup) -> None:
    """Groups whose ranks are numbered as those of the former default group."""
    others = [group for group in _c10d._world.pg_map if group is not default]
    if others:
        names = ", ".join(repr(_c10d._world.pg_names[group]) for group in others)
        logger.warning("the default group shrinks, and its ranks get other numbers: these groups end: %s", names)
    for group in others:
        if isinstance(group, ProcessGroup):
            group.abort()
        dist.destroy_process_group(group)
