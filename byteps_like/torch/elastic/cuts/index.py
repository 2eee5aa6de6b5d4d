"""What a rank has written of a cut: a file beside its parts. One rank makes the manifest of all these, and they go."""

from __future__ import annotations

import pickle
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from byteps_like.errors import CorruptError
from byteps_like.store.saving.files import read_checked, write_checked
from byteps_like.torch.elastic.cuts.manifest import FilePart

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import WriteResult  # takes seconds to import

_KIND = "byteps_like cut's index"


@dataclass(frozen=True)
class CutShare:
    """What a rank has written of that which all hold alike."""

    digest: str
    """Of the plan: the same on all ranks, or they don't hold the same."""
    results: list[WriteResult]


@dataclass(frozen=True)
class RankIndex:
    """Of one rank."""

    share: CutShare
    files: Mapping[str, FilePart]
    """By their paths in the cut's directory."""


def path_of(folder: Path, rank: int) -> Path:
    """Where it is."""
    return folder / f"rank-{rank:05}.json"


def write_index(folder: Path, rank: int, index: RankIndex) -> None:
    """All that it names is on the disk. Raises SystemCallError."""
    files = {name: [part.nbytes, part.crc] for name, part in index.files.items()}
    results = b64encode(pickle.dumps(index.share.results)).decode()
    write_checked(path_of(folder, rank), _KIND, {"digest": index.share.digest, "results": results, "files": files})


def read_index(folder: Path, rank: int) -> RankIndex:
    """Raises CorruptError where the rank has written none."""
    if not path_of(folder, rank).exists():
        raise CorruptError(f"rank {rank} has not written its part: it was lost, or its log says why")
    found = read_checked(path_of(folder, rank), _KIND)
    results: list[WriteResult] = pickle.loads(b64decode(found["results"]))
    files = {name: FilePart(nbytes, crc) for name, (nbytes, crc) in found["files"].items()}
    return RankIndex(CutShare(found["digest"], results), files)
