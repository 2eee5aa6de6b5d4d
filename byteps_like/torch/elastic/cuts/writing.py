"""Writing a cut: each rank its parts, by itself; then one of them the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from byteps_like.errors import MismatchError, SystemCallError
from byteps_like.store.saving.files import told
from byteps_like.torch.elastic.cuts.content import CutContent
from byteps_like.torch.elastic.cuts.index import CutShare, RankIndex, path_of, read_index, write_index
from byteps_like.torch.elastic.cuts.manifest import CutManifest, described, write_manifest
from byteps_like.torch.job.trees import packed
from byteps_like.wire.crc32c import Buffer

STATE, OWN, KEPT = "state", "own", "servers"
"""What is in a cut's directory: what all ranks hold alike, what is each rank's, and what servers keep."""


@dataclass(frozen=True)
class CutPart:
    """What one of `ranks` ranks has to write of cut `number`."""

    folder: Path
    number: int
    content: CutContent
    rank: int
    ranks: int

    def write(self) -> None:
        """Writes it, and then that it is there. Asks no other rank. Raises SystemCallError where the disk is full, and
        what the content's own objects raise."""
        share = self._write_share()
        names = {f"{STATE}/{result.storage_data.relative_path}" for result in share.results}
        names.add(self._write_own())
        for name, taken in self.content.kept.items():
            names.add(f"{KEPT}/{name}/{taken.write(self.folder / KEPT / name)}")
        files = {name: described(self.folder / name) for name in sorted(names)}
        write_index(self.folder, self.rank, RankIndex(share, files))

    def conclude(self) -> None:
        """All ranks have written, or are gone: makes it a cut. Raises CorruptError where a part is missing,
        MismatchError where ranks hold different things, and SystemCallError."""
        indexes = [read_index(self.folder, rank) for rank in range(self.ranks)]
        for rank, index in enumerate(indexes):
            if index.share.digest != indexes[0].share.digest:
                raise MismatchError(f"rank {rank} has not the same tensors as rank 0: names, shapes or types differ")
        written = {name: part for index in indexes for name, part in index.files.items()}
        names = self._conclude_parts([index.share for index in indexes], written)
        files = {name: written.get(name) or described(self.folder / name) for name in sorted(names)}
        write_manifest(self.folder, CutManifest(self.number, self.ranks, tuple(sorted(self.content.kept)), files))
        for rank in range(self.ranks):
            path_of(self.folder, rank).unlink(missing_ok=True)

    def _write_share(self) -> CutShare:
        from byteps_like.torch.elastic.cuts.shares import write_share

        try:
            return write_share(self.folder / STATE, self.content.common, self.rank, self.ranks)
        except (OSError, RuntimeError) as error:
            reason = _of_system(error)
            if reason is None:
                raise
            raise SystemCallError(f"{self.folder / STATE}: {reason.strerror}", operation="cut") from error

    def _write_own(self) -> str:
        name = f"{OWN}/{self.rank:05}.bin"
        _write(self.folder / name, packed(dict(self.content.own)))
        return name

    def _conclude_parts(self, written: list[CutShare], parts: Iterable[str]) -> set[str]:
        """Writes what tells how the parts belong together; all files that there are then."""
        from byteps_like.torch.elastic.cuts.shares import conclude

        with told(self.folder / STATE):
            conclude(self.folder / STATE, self.content.common, [share.results for share in written])
        files = {name for name in parts if not name.startswith(f"{KEPT}/")} | {f"{STATE}/.metadata"}
        for name, taken in self.content.kept.items():
            files |= {f"{KEPT}/{name}/{file}" for file in taken.conclude(self.folder / KEPT / name)}
        return files


def _write(path: Path, chunks: Iterable[Buffer]) -> None:
    with told(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            for chunk in chunks:
                out.write(chunk)
            out.flush()
            os.fsync(out.fileno())


def _of_system(error: BaseException | None) -> OSError | None:
    """What the operating system has refused, if that is why: torch's own errors follow from it."""
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__ or error.__context__
    return error
