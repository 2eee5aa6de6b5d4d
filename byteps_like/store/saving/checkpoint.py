"""Saves what is kept to a directory, and restores it: by all ranks together, each its share."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from byteps_like.errors import BytePSLikeError, CorruptError, InvalidArgumentError, MismatchError, PeerLostError
from byteps_like.store.saving.files import told
from byteps_like.store.saving.manifest import (
    MANIFEST,
    Index,
    Manifest,
    SavedOwn,
    SavedPartWriter,
    SavedPiece,
    SavedTensor,
    read_index,
    read_manifest,
    read_own,
    read_piece,
    remove_others,
    write_index,
    write_manifest,
)
from byteps_like.store.saving.saved import ReadPiece, Saved, SavedContent, Void, valid
from byteps_like.wire.crc32c import Buffer

GiveOwn = Callable[[], Sequence[Buffer]]
"""What this rank saves of its own beside; all ranks have something, or none."""
TakeOwn = Callable[[int, memoryview], None]
"""Gets a rank, and what that has saved of its own, before anything is changed; raises what is wrong with it."""
_PART = "part-"


def _nothing() -> Sequence[Buffer]:
    return ()


def save(saved: Saved, folder: Path, own: GiveOwn = _nothing) -> int:
    """Writes a checkpoint; its version. Blocks until it is whole on the disk. See Store.checkpoint."""
    token = _begin(saved, folder)
    index = _index(token, saved.rank)
    part: SavedPartWriter | None = None
    try:
        error: BytePSLikeError | None = None
        try:
            part = SavedPartWriter(folder, index.replace(".json", ".bin"))
            write_index(folder, index, Index(_write_share(part, saved.contents(every=False)), _write_own(part, own())))
        except BytePSLikeError as failed:
            error = failed
        saved.agree("end a checkpoint", error)
    except BaseException:
        if part is not None:
            part.drop()
        (folder / index).unlink(missing_ok=True)
        raise
    return _conclude(saved, folder, token)  # what fails here drops nothing: the manifest may have all parts by then


def _begin(saved: Saved, folder: Path) -> str:
    """What names the parts of this one."""
    error: BytePSLikeError | None = None
    try:
        with told(folder):
            folder.mkdir(parents=True, exist_ok=True)
        other = _name_in(folder)
        if other not in (None, saved.name):
            error = InvalidArgumentError(f"{folder} has a checkpoint of {other!r}: give {saved.name!r} another one")
    except BytePSLikeError as failed:
        error = failed
    return saved.agree(f"save to {folder}", error, note=secrets.token_hex(6))[0]


def _name_in(folder: Path) -> str | None:
    """Of the store whose checkpoint is there; None: there is none, or nobody can use it."""
    try:
        return read_manifest(folder).name
    except CorruptError:
        return None


@dataclass(frozen=True)
class Taken:
    """A rank's share of a checkpoint, in its memory, as of when all ranks have taken theirs: to be written later."""

    name: str
    rank: int
    present: tuple[int, ...]
    """The ranks that have a share."""
    tensors: Mapping[str, SavedTensor]
    contents: Sequence[SavedContent]
    own: Sequence[Buffer]

    def write(self, folder: Path) -> str:
        """Writes it to a directory in which there is no checkpoint yet; the part's name. It is on the disk then. Asks
        no other rank. Raises SystemCallError."""
        with told(folder):
            folder.mkdir(parents=True, exist_ok=True)
        index = _index(_TAKEN, self.rank)
        part = SavedPartWriter(folder, index.replace(".json", ".bin"))
        write_index(folder, index, Index(_write_share(part, self.contents), _write_own(part, self.own)))
        return part.file

    def conclude(self, folder: Path) -> set[str]:
        """Makes a checkpoint of what all ranks have written: one of them calls it. The files that there are then.
        Raises CorruptError where a share is missing, and SystemCallError."""
        manifest = _write_manifest(
            folder, _TAKEN, self.present, Manifest(self.name, 0, len(self.present), self.tensors)
        )
        return {MANIFEST, *manifest.files()}


_TAKEN = "cut"
"""What names the parts of such a checkpoint."""


def take(saved: Saved, own: GiveOwn = _nothing) -> Taken:
    """What `save` would write. All ranks call it; blocks until all have theirs, and raises as `save`."""
    return _taken(saved, lambda: saved.contents(every=False), own, "taken a checkpoint")


def leave(saved: Saved, leaving: Iterable[int] = ()) -> Taken:
    """What goes on in the next world, as of when all ranks have come here: nobody contributes to it any more. All ranks
    call it, those `leaving` the job, too, who have no share. Blocks until all have theirs; raises as `save`."""
    saved.leaving = frozenset(leaving)
    return _taken(saved, saved.left, _nothing, "left a world")


def _taken(saved: Saved, contents: Callable[[], Iterable[SavedContent | Void]], own: GiveOwn, what: str) -> Taken:
    saved.agree(f"will have {what}")
    error: BytePSLikeError | None = None
    found: list[SavedContent | Void] = []
    copied: list[Buffer] = []
    try:
        found += contents()
        copied += [bytes(one) for one in own()]
    except BytePSLikeError as failed:
        error = failed
    saved.agree(f"have {what}", error)
    return Taken(saved.name, saved.rank, saved.carriers, saved.tensors, valid(found), copied)


def _write_share(part: SavedPartWriter, contents: Iterable[SavedContent | Void]) -> dict[str, list[SavedPiece]]:
    """By tensor."""
    written: dict[int, list[tuple[str, SavedPiece]]] = {}
    for found in contents:
        if isinstance(found, Void):
            written.pop(found.source, None)
        else:
            written.setdefault(found.source, []).append((found.tensor, _written(part, found)))
    pieces: dict[str, list[SavedPiece]] = {}
    for tensor, piece in (one for some in written.values() for one in some):
        pieces.setdefault(tensor, []).append(piece)
    return pieces


def _written(part: SavedPartWriter, found: SavedContent) -> SavedPiece:
    at, crc = part.write(found.chunks)
    return SavedPiece(
        part.file, at, found.offset, found.nbytes, found.state_bytes, found.version, found.clocks, crc, found.waiting
    )


def _write_own(part: SavedPartWriter, own: Sequence[Buffer]) -> SavedOwn | None:
    """Behind the share. The part is on the disk then."""
    at, crc = part.write(own)
    part.close()
    return SavedOwn(part.file, at, sum(len(one) for one in own), crc) if own else None


def _conclude(saved: Saved, folder: Path, token: str) -> int:
    """The first rank writes the manifest; the version."""
    error: BytePSLikeError | None = None
    version = 0
    if saved.turn == 0:
        try:
            manifest = Manifest(saved.name, 0, len(saved.present), saved.tensors)
            version = _write_manifest(folder, token, saved.present, manifest).version
        except BytePSLikeError as failed:
            error = failed
    notes = saved.conclude("have a checkpoint", error, note=str(version))
    first = saved.present[0]
    if first not in notes:
        raise PeerLostError(
            f"rank {saved.rank}: rank {first} is gone, which was to write the manifest of {saved.name!r}: {folder} has"
            " either the new checkpoint or the one before",
            rank=saved.rank,
            operation="checkpoint",
        )
    return int(notes[first])


def _write_manifest(folder: Path, token: str, present: Sequence[int], described: Manifest) -> Manifest:
    """Of what ranks have written, as their indexes have it. `described`: without pieces."""
    indexes = [read_index(folder, _index(token, rank)) for rank in present]
    pieces: dict[str, list[SavedPiece]] = {}
    for index in indexes:
        for name, some in index.pieces.items():
            pieces.setdefault(name, []).extend(some)
    tensors = {
        name: replace(one, pieces=tuple(sorted(pieces.get(name, []), key=lambda piece: piece.offset)))
        for name, one in described.tensors.items()
    }
    version = min((piece.version for some in pieces.values() for piece in some), default=0)
    own = tuple(index.own for index in indexes if index.own is not None)
    manifest = replace(described, version=version, tensors=tensors, own=own)
    write_manifest(folder, manifest)
    remove_others(folder, manifest.files(), _PART)
    return manifest


def _index(token: str, rank: int) -> str:
    """Of a rank's part: the name of a file."""
    return f"{_PART}{token}-{rank:05}.json"


def restore(saved: Saved, folder: Path, take: TakeOwn | None = None) -> None:
    """Puts a checkpoint in place. See Store.restore. `take`: is given what this rank has saved of its own, or rank 0,
    where there was none of this number."""

    def take_own() -> None:
        if take is not None:
            rank = saved.turn if saved.turn < len(manifest.own) else 0
            take(rank, read_own(folder, manifest.own[rank]))

    try:
        manifest = read_manifest(folder)
        check(saved, manifest, str(folder))
        if take is not None and not manifest.own:
            raise MismatchError(f"{folder} has nothing of the ranks' own: it is a checkpoint of another kind")
    except BytePSLikeError as error:
        saved.agree(f"restore {folder}", error)
        raise
    put(saved, manifest, lambda piece: read_piece(folder, piece), f"restore {folder}", take_own)


def put(
    saved: Saved, manifest: Manifest, read: ReadPiece, what: str, take_own: Callable[[], None] = lambda: None
) -> None:
    """Has kept what was saved: nothing is changed before all ranks have read and verified theirs."""

    def bring() -> None:
        saved.bring(manifest, read)
        take_own()

    replace_all(saved, manifest, bring, what)


def replace_all(saved: Saved, manifest: Manifest, bring: Callable[[], None], what: str) -> None:
    """The same of what all ranks `bring`, each a part. Raises what that raises, of any of them."""
    saved.agree(what)
    try:
        saved.clear()
        saved.agree("begin to restore")
        _all_bring(saved, bring)
        saved.commit(manifest)
    except BaseException:
        with suppress(BytePSLikeError):  # whoever can't be told any more has nothing left of it either
            saved.give_up()
        raise
    saved.agree("go on")
    saved.settle(manifest)


def _all_bring(saved: Saved, bring: Callable[[], None]) -> None:
    error: BytePSLikeError | None = None
    try:
        bring()
    except BytePSLikeError as failed:
        error = failed
    saved.agree("have restored", error)


def check(saved: Saved, manifest: Manifest, where: str) -> None:
    """Raises MismatchError where the checkpoint is of something else."""
    here = saved.tensors
    for name in dict.fromkeys([*here, *manifest.tensors]):
        texts = [_text(some.get(name)) for some in (manifest.tensors, here)]
        if texts[0] != texts[1]:
            raise MismatchError(
                f"{where} has {name!r} as {texts[0]}, but {saved.name!r} of this job as {texts[1]}", key=name
            )


def _text(one: SavedTensor | None) -> str:
    if one is None:
        return "nothing"
    kind = "rows" if one.is_table else "a value"
    return f"{kind} of shape {list(one.shape)}, {one.dtype}, {one.terms}"
