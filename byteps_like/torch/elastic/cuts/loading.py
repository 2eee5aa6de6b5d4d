"""Loading a cut, by all ranks together: everything is read and checked before anything is changed on any of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from byteps_like.errors import BytePSLikeError, CorruptError, MismatchError, SystemCallError, from_code
from byteps_like.torch.elastic.cuts.content import Cuttable, LeavesOut, Owns
from byteps_like.torch.elastic.cuts.manifest import CutManifest, before, check, is_there, newest, read_manifest
from byteps_like.torch.elastic.cuts.random_states import go_on_from
from byteps_like.torch.elastic.cuts.residuals import summed
from byteps_like.torch.elastic.cuts.writing import KEPT, OWN, STATE
from byteps_like.torch.job import runtime as _runtime
from byteps_like.torch.job.trees import unpacked
from byteps_like.torch.ops.objects import allgather_object, broadcast_object

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Found:
    """What a rank has read."""

    manifest: CutManifest
    common: Mapping[str, Any]
    owns: Owns


def load(directory: Path, state: Cuttable) -> Path | None:
    """See elastic.load."""
    folder = _chosen(directory)
    if folder is None:
        return None
    rank, size = _runtime.rank(), _runtime.size()
    found = _together(lambda: _read_checked(folder, state, rank, size))
    _together(lambda: state.resume_from_cut(found.common, found.owns.of("values")))
    for name, value in state.kept_on_servers().items():
        value.restore(folder / KEPT / name)
        if isinstance(value, LeavesOut):
            owed = found.owns.of("residuals").of(name)
            for tensor, residual in summed([owed.mine, *owed.missing]).items():
                value.owe(tensor, residual.numpy())
    if found.owns.mine is not None:
        go_on_from(found.owns.mine["random"])
    logger.info("rank %d of %d: goes on from cut %s of %d ranks", rank, size, folder, found.manifest.ranks)
    return folder


def _chosen(directory: Path) -> Path | None:
    """By rank 0: others may see the directory a little later."""

    def choose() -> Path | None:
        return directory if is_there(directory) else newest(directory)

    folder: Path | None = _together(lambda: choose() if _runtime.rank() == 0 else None, broadcast_object)
    return folder


def _read_checked(folder: Path, state: Cuttable, rank: int, size: int) -> _Found:
    try:
        return _read(folder, state, rank, size)
    except CorruptError as error:
        older = before(folder)
        remedy = "there is none before it" if older is None else f"name {older}, the one before, to load that"
        raise CorruptError(f"{error}: this cut can't be loaded; {remedy}") from None


def _read(folder: Path, state: Cuttable, rank: int, size: int) -> _Found:
    from byteps_like.torch.elastic.cuts.shares import read_common

    manifest = read_manifest(folder)
    _check_kept(folder, manifest, state)
    owners = [one for one in range(manifest.ranks) if one in (0, rank) or (rank == 0 and one >= size)]
    mine = {f"{OWN}/{owner:05}.bin" for owner in owners}
    for number, (name, part) in enumerate(sorted(manifest.files.items())):
        # What servers keep is read by all ranks together, and each looks at its share of that before.
        if name.startswith(f"{STATE}/") or name in mine or number % size == rank:
            check(folder, name, part)
    owns = {owner: unpacked(memoryview((folder / f"{OWN}/{owner:05}.bin").read_bytes())) for owner in owners}
    missing = [owns[one] for one in owners if one >= size]
    return _Found(manifest, read_common(folder / STATE), Owns(owns[0], owns.get(rank), missing))


def _check_kept(folder: Path, manifest: CutManifest, state: Cuttable) -> None:
    here = sorted(state.kept_on_servers())
    if here != sorted(manifest.kept):
        raise MismatchError(
            f"{folder} has what servers kept of {_listed(manifest.kept)}, and this state has {_listed(here)} there"
        )


def _listed(names: Any) -> str:
    return ", ".join(map(repr, sorted(names))) or "nothing"


def _together(work: Callable[[], Result], share: Callable[[Result], Result] | None = None) -> Result:
    """What `work` returns, if no rank has failed in it; then by way of `share`. Raises this rank's error, or that of
    another."""
    error: BytePSLikeError | None = None
    result: Any = None
    try:
        result = work()
    except BytePSLikeError as failed:
        error = failed
    except OSError as failed:
        error = SystemCallError(f"{failed.filename}: {failed.strerror}", operation="load")
    except (RuntimeError, ValueError, KeyError, TypeError, AttributeError, ImportError) as failed:
        error = MismatchError(f"the cut doesn't fit this program: {failed}")
        error.__cause__ = failed
    words = allgather_object(None if error is None else (int(error.code), str(error)))
    if error is not None:
        raise error
    for rank, word in enumerate(words):
        if word is not None:
            raise from_code(word[0], f"rank {rank}: {word[1]}", rank=rank)
    found: Result = result if share is None else share(result)
    return found
