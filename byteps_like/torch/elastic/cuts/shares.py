"""What all ranks hold alike, in the format of torch.distributed.checkpoint: each rank writes a share of the tensors.

Its planners and storage do the work, but ranks need not talk for it: since all have the same, each works out the whole
plan. The plain values are one text, `TREE`, in which tensors have places; the tensors are called after these.

Takes seconds to import: it is imported when a cut is written or read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_global_save_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, WriteItem
from torch.distributed.checkpoint.storage import WriteResult

from byteps_like.torch.elastic.cuts.index import CutShare
from byteps_like.torch.job.trees import flatten, places_of, unflatten

TREE = "byteps_like.tree"


def write_share(folder: Path, common: Mapping[str, Any], rank: int, ranks: int) -> CutShare:
    """Writes this rank's share. It is on the disk then. Raises what the file system raises."""
    entries = _entries(common)
    plans, metadata = _plans(entries, ranks)
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(entries, is_coordinator=rank == 0)
    writer = _writer(folder)
    writer.prepare_local_plan(plans[rank])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[rank])
    results = writer.write_data(plan, planner).wait() if plan.items else []
    return CutShare(_digest(metadata), results)


def conclude(folder: Path, common: Mapping[str, Any], results: Sequence[list[WriteResult]]) -> None:
    """All have written: makes a checkpoint of it. `results`: by rank."""
    writer = _writer(folder)
    _, metadata = _plans(_entries(common), len(results))
    writer.finish(metadata, list(results))


def read_common(folder: Path) -> dict[str, Any]:
    """All of it; its tensors are on the CPU. Objects in it are unpickled."""
    text: dict[str, Any] = {TREE: ""}
    _read(folder, text)
    tree, tensors = unflatten(text[TREE].encode())
    _read(folder, dict(zip(_names(tree), tensors, strict=True)))
    return dict(tree)


def _writer(folder: Path) -> FileSystemWriter:
    writer = FileSystemWriter(folder)
    writer.set_up_storage_writer(True)
    return writer


def _entries(common: Mapping[str, Any]) -> dict[str, Any]:
    text, tensors = flatten(dict(common))
    return {TREE: text.decode(), **dict(zip(_names(common), tensors, strict=True))}


def _names(tree: Any) -> list[str]:
    """Of the tensors in a tree, in the order of `flatten`; no two are the same."""
    found: dict[str, None] = {}
    for path, _ in places_of(tree):
        name, number = path, 1
        while name in found or name == TREE:
            name, number = f"{path}#{number}", number + 1
        found[name] = None
    return list(found)


def _plans(entries: dict[str, Any], ranks: int) -> tuple[list[SavePlan], Metadata]:
    """By rank: the largest tensor first, to whoever has the fewest bytes. The plain values are rank 0's."""
    shares: list[list[WriteItem]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    items = create_default_local_save_plan(entries, True).items
    for item in sorted(items, key=lambda one: -(one.tensor_storage_size() or 0)):
        least = 0 if item.index.fqn == TREE else loads.index(min(loads))
        shares[least].append(item)
        loads[least] += item.tensor_storage_size() or 0
    return create_default_global_save_plan([SavePlan(share) for share in shares])


def _digest(metadata: Metadata) -> str:
    described = sorted((name, repr(one)) for name, one in metadata.state_dict_metadata.items())
    return hashlib.sha256(repr(described).encode()).hexdigest()


def _read(folder: Path, entries: dict[str, Any]) -> None:
    """What `entries` name, into them."""
    reader = FileSystemReader(folder)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    metadata = reader.read_metadata()
    planner.set_up_planner(entries, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
