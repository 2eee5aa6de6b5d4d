"""A checkpoint, and a restoration, while a rank dies: there is a whole one afterwards, the new or the one before, and
what all could not restore is given up."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from byteps_like.errors import BytePSLikeError, CorruptError, PeerLostError
from byteps_like.store.saving.checkpoint import replace_all, save
from byteps_like.store.saving.manifest import Manifest, SavedTensor, read_manifest, read_piece
from byteps_like.store.saving.saved import ReadPiece, Saved, SavedContent, Void

RANKS = 3
MEETINGS = 3


class DiedError(Exception):
    """Of a rank's thread."""


class Room:
    """Where ranks meet; each may die instead of coming to a meeting."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alive, self._said, self._told = set(range(RANKS)), dict[int, str](), dict[int, str]()
        self._meeting = 0

    def meet(self, rank: int, word: str) -> dict[int, str]:
        with self._changed:
            self._said[rank] = word
            meeting = self._meeting
            self._end_if_complete()
            assert self._changed.wait_for(lambda: self._meeting > meeting, 20)
            return dict(self._told)

    def die(self, rank: int) -> None:
        with self._changed:
            self._alive.discard(rank)
            self._end_if_complete()
        raise DiedError

    def _end_if_complete(self) -> None:
        if self._said.keys() == self._alive:
            self._told = dict(sorted(self._said.items()))
            self._said = {}
            self._meeting += 1
            self._changed.notify_all()


class Bytes(Saved):
    """Nine bytes of `value`, three by each rank."""

    def __init__(self, room: Room, rank: int, value: int, dies_at: int = -1) -> None:
        self.name, self.rank, self.ranks = "bytes", rank, RANKS
        self._room, self._value, self._left = room, value, dies_at
        self.done: list[str] = []

    @property
    def tensors(self) -> Mapping[str, SavedTensor]:
        return {"w": SavedTensor("uint8", (9,), "terms")}

    def meet(self, word: str) -> dict[int, str]:
        if self._left == 0:
            self._room.die(self.rank)
        self._left -= 1
        return self._room.meet(self.rank, word)

    def contents(self, *, every: bool) -> Iterator[SavedContent | Void]:
        size = 9 // len(self.present)
        chunk = bytes([self._value]) * size
        yield SavedContent("w", self.turn, size * self.turn, size, 0, self._value, (0,) * RANKS, 0, [chunk])

    def clear(self) -> None:
        self.done.append("clear")

    def bring(self, manifest: Manifest, read: ReadPiece) -> None: ...
    def left(self) -> Iterator[SavedContent | Void]:
        raise NotImplementedError

    def lost(self, contents: Sequence[SavedContent]) -> str:
        raise NotImplementedError

    def bring_over(self, manifest: Manifest, contents: Sequence[SavedContent]) -> None: ...
    def commit(self, manifest: Manifest) -> None:
        self.done.append("commit")

    def give_up(self) -> None:
        self.done.append("give up")
        raise PeerLostError("the server is gone", rank=self.rank)

    def settle(self, manifest: Manifest) -> None: ...


def saved_by_all(folder: Path, value: int, victim: int = -1, meeting: int = -1) -> list[int | Exception]:
    """What came of it on each rank."""
    room = Room()

    def of(rank: int) -> int | Exception:
        try:
            return save(Bytes(room, rank, value, meeting if rank == victim else -1), folder)
        except (DiedError, PeerLostError) as error:
            return error

    with ThreadPoolExecutor(RANKS) as pool:
        return list(pool.map(of, range(RANKS)))


@pytest.mark.parametrize("victim", range(RANKS))
@pytest.mark.parametrize("failing", ["bring", "meet 1", "meet 2"])
def test_a_restoration_that_fails_is_given_up_by_all_who_are_left(failing: str, victim: int) -> None:
    room = Room()
    meeting = int(failing[-1]) if failing != "bring" else -1
    saved = [Bytes(room, rank, 0, meeting if rank == victim else -1) for rank in range(RANKS)]

    def bring() -> None:
        if failing == "bring":
            raise CorruptError("a piece is damaged")

    def of(rank: int) -> BaseException | None:
        try:
            replace_all(saved[rank], Manifest("bytes", 1, RANKS, {}), bring if rank == victim else lambda: None, "go")
        except (BytePSLikeError, DiedError) as error:
            return error
        return None

    with ThreadPoolExecutor(RANKS) as pool:
        outcomes = list(pool.map(of, range(RANKS)))
    survivors = [rank for rank in range(RANKS) if rank != victim or failing == "bring"]
    wanted = CorruptError if failing == "bring" else PeerLostError
    assert all(isinstance(outcomes[rank], wanted) for rank in survivors)
    assert all("the server is gone" not in str(outcomes[rank]) for rank in survivors), "the first error is the one"
    assert all(saved[rank].done == ["clear", "give up"] for rank in survivors)


def kept(folder: Path) -> tuple[int, bytes]:
    """The version, and all bytes, verified."""
    manifest = read_manifest(folder)
    return manifest.version, b"".join(bytes(read_piece(folder, piece)) for piece in manifest.tensors["w"].pieces)


@pytest.mark.parametrize("victim", range(RANKS))
@pytest.mark.parametrize("meeting", range(MEETINGS))
def test_there_is_a_whole_checkpoint_whenever_a_rank_dies(tmp_path: Path, victim: int, meeting: int) -> None:
    assert saved_by_all(tmp_path, 1) == [1] * RANKS
    outcomes = saved_by_all(tmp_path, 2, victim, meeting)
    others = [one for rank, one in enumerate(outcomes) if rank != victim]
    if meeting == 0 or (meeting == MEETINGS - 1 and victim != 0):
        assert others == [2, 2], "a loss before the first meeting, or after the last share, is none"
    else:
        assert all(isinstance(one, PeerLostError) and f"rank {victim} is gone" in str(one) for one in others)
    version = kept(tmp_path)[0]
    assert kept(tmp_path) == (version, bytes([version]) * (9 if version == 1 or meeting else 8))
    assert version == (1 if meeting == 1 else 2)


def test_a_rank_that_died_before_leaves_its_share_to_the_others(tmp_path: Path) -> None:
    outcomes = saved_by_all(tmp_path, 5, victim=1, meeting=0)
    assert [outcomes[0], outcomes[2]] == [5, 5]
    assert len(read_manifest(tmp_path).tensors["w"].pieces) == 2
