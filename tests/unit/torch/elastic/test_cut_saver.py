"""When cuts begin and end, as ranks tell each other at commits: with threads that write when they are let."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import byteps_like.torch as bps
from byteps_like.errors import InvalidArgumentError, SystemCallError
from byteps_like.torch.elastic.cuts import saver as savers
from byteps_like.torch.elastic.cuts.content import CutContent
from byteps_like.torch.elastic.cuts.saver import Saver
from byteps_like.torch.elastic.cuts.writing import CutPart

DEADLINE = 20.0


class World:
    """Ranks of one process, whose savers hear each other as they would by a sum."""

    def __init__(self, directory: Path, size: int, monkeypatch: pytest.MonkeyPatch, every: int = 2) -> None:
        self.savers = [Saver(directory, every, keep=2) for _ in range(size)]
        self.rank = 0
        monkeypatch.setattr(savers._runtime, "rank", lambda: self.rank)
        monkeypatch.setattr(savers._runtime, "size", lambda: len(self.savers))

    def commit(self) -> int:
        """One, of all; the number of the cut that begins with it."""
        self.rank = 0
        order = self.savers[0].order()
        writing = [saver.writing for saver in self.savers]
        settled = self.savers[0].settled
        for rank, saver in enumerate(self.savers):
            self.rank = rank
            saver.hear(writing, settled)
            if order:
                saver.begin(order, CutContent({"w": torch.arange(4.0)}, {"random": {}, "values": {}, "residuals": {}}))
        return order

    def wait(self) -> None:
        """Until all have done what they can."""
        for saver in self.savers:
            saver.wait()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Nobody writes before it is set."""
    event, write = threading.Event(), CutPart.write

    def held(part: CutPart) -> None:
        assert event.wait(DEADLINE)
        write(part)

    monkeypatch.setattr(CutPart, "write", held)
    yield event
    event.set()


def whole(directory: Path) -> list[int]:
    return sorted(int(path.parent.name[4:]) for path in directory.glob("*/manifest.json"))


def test_the_next_one_begins_when_the_one_before_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: threading.Event
) -> None:
    world = World(tmp_path, 3, monkeypatch)
    assert [world.commit() for _ in range(5)] == [0, 1, 0, 0, 0], "due again, but nobody has written yet"
    gate.set()
    world.wait()
    assert world.commit() == 0 and not whole(tmp_path), "rank 0 hears that all have, and makes it one"
    world.wait()
    assert whole(tmp_path) == [1]
    orders = [world.commit(), world.commit()]
    assert orders == [0, 2]
    for _ in range(6):
        world.wait()
        world.commit()
    assert whole(tmp_path)[-1] >= 3 and len(whole(tmp_path)) == 2


def test_numbers_go_on_from_those_that_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or not."""
    (tmp_path / "cut-00000041").mkdir()
    (tmp_path / "cut-7").mkdir()
    (tmp_path / "notes.txt").touch()
    assert World(tmp_path, 1, monkeypatch, every=1).commit() == 42


def test_a_disk_that_is_full_on_one_rank_gives_up_the_cut_on_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = CutPart._write_own

    def full(part: CutPart) -> str:
        if part.rank == 1 and part.number == 1:
            raise SystemCallError("/data/own: No space left on device")
        return write(part)

    monkeypatch.setattr(CutPart, "_write_own", full)
    world = World(tmp_path, 2, monkeypatch)
    with caplog.at_level(logging.ERROR):
        for _ in range(5):
            world.commit()
            world.wait()
    told = [record.getMessage() for record in caplog.records]
    assert [line[:7] for line in told] == ["rank 1:", "rank 0:"]
    assert "No space left on device; training goes on" in told[0]
    assert "rank 1 has not written its part" in told[1]
    assert not (tmp_path / "cut-00000001").exists(), "its space is free again"
    with pytest.raises(SystemCallError, match="No space left"):
        world.savers[1].begun(raises=True)
    for _ in range(5):
        world.commit()
        world.wait()
    assert whole(tmp_path), "the next one succeeds"


def test_all_hear_that_rank_0_could_not_make_it_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(part: CutPart) -> None:
        raise SystemCallError("no")

    monkeypatch.setattr(CutPart, "conclude", refuse)
    world = World(tmp_path, 2, monkeypatch)
    for _ in range(4):
        world.commit()
        world.wait()
    with pytest.raises(SystemCallError, match="is given up: rank 0's log says why"):
        world.savers[1].begun(raises=True)


def test_the_next_rank_0_makes_it_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before died when all had written."""
    world = World(tmp_path, 3, monkeypatch)
    world.commit()
    world.commit()
    world.wait()
    del world.savers[0]
    world.commit()
    world.wait()
    assert whole(tmp_path) == [1]


def test_a_directory_that_can_not_be_read_is_told_and_no_cut_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    world = World(tmp_path / "file", 1, monkeypatch, every=1)
    assert world.commit() == 0
    assert "no cut can be begun" in caplog.text and "Not a directory" in caplog.text


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}])
def test_numbers_that_make_no_sense_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError, match="must be at least 1"):
        Saver(tmp_path, **wrong)


class TestRun:
    """In a world of one."""

    @pytest.fixture(autouse=True)
    def world(self) -> Iterator[None]:
        bps.init()
        yield
        bps.shutdown()

    def train(self, directory: Path, steps: int) -> list[int]:
        """The steps that were made."""
        made: list[int] = []

        @bps.elastic.run(save_to=directory, save_every=3)
        def train(state: bps.elastic.ObjectState) -> None:
            while state.step < steps:
                state.step += 1
                made.append(state.step)
                state.commit()
                state.finish_cut()

        train(bps.elastic.ObjectState(step=0))
        return made

    def test_goes_on_from_the_newest_cut(self, tmp_path: Path) -> None:
        assert self.train(tmp_path, 8) == list(range(1, 9))
        assert self.train(tmp_path, 10) == [7, 8, 9, 10]

    def test_raises_at_once_what_is_wrong_with_it(self, tmp_path: Path) -> None:
        self.train(tmp_path, 3)
        (tmp_path / "cut-00000001" / "own" / "00000.bin").unlink()
        with pytest.raises(bps.CorruptError, match="there is none before it"):
            self.train(tmp_path, 10)

    def test_one_state_has_cuts_in_one_directory(self, tmp_path: Path) -> None:
        state = bps.elastic.ObjectState(step=0)
        bps.elastic.save(tmp_path / "one", state)
        with pytest.raises(InvalidArgumentError, match="the cuts of this state are in"):
            bps.elastic.save(tmp_path / "two", state)
