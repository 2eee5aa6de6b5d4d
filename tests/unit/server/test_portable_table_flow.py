"""What a portable worker says about tables, without any network: which lists of rows go out, and which do not; and that
sums are exact wherever links break and servers forget."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from fake_tables import FakeTables

from byteps_like.dtypes import DType
from byteps_like.errors import BytePSLikeError, CorruptError
from byteps_like.portable.row_numbers import RowNumbers, SentRows
from byteps_like.portable.store_flow import StoreFlow
from byteps_like.portable.store_lane import NOBODY, LaneSpec
from byteps_like.portable.table_lane import LaneFetch, LaneRows
from byteps_like.wire.frame import FrameType, Header
from byteps_like.wire.note import Applied, Note
from byteps_like.worker.keeping import Outcome
from byteps_like.worker.tables import TableSpec

WIDTH = 2
TEXT = TableSpec("asp", "sum:age=none,damp=none", "add").text
SPEC = LaneSpec(7, 0, DType.INT64, 8 * WIDTH, WIDTH, NOBODY, TEXT)


def counted(version: int) -> Outcome:
    return Outcome(Applied.COUNTED, version)


def rows_of(*ids: int) -> SentRows:
    return SentRows(np.array(ids, np.uint64).tobytes())


class Link:
    """One rank's flow, at a fake shard, frame by frame."""

    def __init__(self, server: FakeTables, rank: int = 0, segment: int = 1000, credit: int = 1000) -> None:
        self.flow, self.server, self.rank = StoreFlow(segment, credit), server, rank
        self.up: deque[tuple[Header, bytes]] = deque()
        self.opened: list[object] = []
        self.flow.open_table(SPEC, self.opened.append)

    def push(self, rows: SentRows, values: np.ndarray) -> list[Outcome]:
        outcomes: list[Outcome] = []
        data = memoryview(values).cast("B") if values.size else memoryview(b"")
        self.flow.push(7, LaneRows(data, Note(), outcomes.append, rows=rows))
        return outcomes

    def fetch(self, rows: SentRows) -> tuple[np.ndarray, list[Outcome]]:
        out, outcomes = np.full((len(rows), WIDTH), -1), list[Outcome]()
        memory = memoryview(out).cast("B") if len(rows) else memoryview(b"")
        self.flow.fetch(7, LaneFetch(rows, outcomes.append, memory))
        return out, outcomes

    def says(self) -> bool:
        if self.flow.urgency() is None:
            return False
        _, header, payload = self.flow.next_frame()
        self.up.append((header, bytes(payload)))
        return True

    def arrives(self) -> bool:
        if not self.up:
            return False
        self.server.take(self.rank, *self.up.popleft())
        return True

    def hears(self) -> bool:
        if not self.server.out[self.rank]:
            return False
        assert self.flow.take(*self.server.out[self.rank].pop(0))
        return True

    def settle(self) -> None:
        while self.says() or self.arrives() or self.hears():
            pass

    def cut(self) -> None:
        self.up.clear()
        self.server.cut(self.rank)
        self.flow.new_link()


def opened(server: FakeTables) -> Link:
    link = Link(server)
    link.settle()
    assert link.opened == [None]
    return link


def test_a_list_travels_once():
    server = FakeTables(WIDTH)
    link = opened(server)
    for step in range(5):
        pushed = link.push(rows_of(3, 5, 2**63), np.full((3, WIDTH), 10**step))
        out, _ = link.fetch(rows_of(3, 5, 2**63))
        link.settle()
        assert pushed == [counted(step + 1)] and (out == int("1" * (step + 1))).all()
    assert server.seen[FrameType.KEYS] == 1


def test_rows_that_there_are_not_are_zeros_and_are_not_made():
    server = FakeTables(WIDTH)
    link = opened(server)
    out, outcomes = link.fetch(rows_of(1, 2))
    link.settle()
    assert (out == 0).all() and outcomes == [counted(0)] and not server.rows


def test_nothing_is_a_contribution_too_and_a_range_has_what_there_is():
    server = FakeTables(WIDTH)
    link = opened(server)
    pushed = link.push(rows_of(), np.zeros((0, WIDTH), np.int64))
    link.push(rows_of(4, 9), np.arange(4).reshape(2, 2))
    outcomes = list[Outcome]()
    fetches = [LaneFetch(None, outcomes.append, range=ids) for ids in ((0, 9), (10, 12))]
    for fetch in fetches:
        link.flow.fetch(7, fetch)
    link.settle()
    assert pushed == [counted(1)] and outcomes == [counted(2)] * 2
    assert [bytes(one.out) for one in fetches] == [np.array([4, 0, 1]).tobytes(), b""]


def test_a_server_that_has_forgotten_a_list_is_told_again():
    server = FakeTables(WIDTH)
    link = opened(server)
    first = link.push(rows_of(1), np.ones((1, WIDTH), np.int64))
    link.settle()
    server.forget(0)
    second = link.push(rows_of(1), np.ones((1, WIDTH), np.int64))
    third = link.push(rows_of(2), np.ones((1, WIDTH), np.int64))
    out, _ = link.fetch(rows_of(1))
    link.settle()
    assert [*first, *second, *third] == [counted(1), counted(2), counted(3)]
    assert (out == 2).all() and 3 <= server.seen[FrameType.KEYS] <= 4


def test_an_answer_that_makes_no_sense_is_refused():
    server = FakeTables(WIDTH)
    link = opened(server)
    link.fetch(rows_of(1, 2))
    while link.says():
        pass
    for header in (
        Header(FrameType.VALUE, key=7, total=40, length=8),
        Header(FrameType.VALUE, key=7, total=32, offset=8, length=8),
    ):
        with pytest.raises(CorruptError, match="store key 7: the answer to read 0"):
            link.flow.take(header, bytes(8))


def test_numbers_go_to_new_lists_and_what_is_in_use_keeps_its_own():
    numbers = RowNumbers(numbers=2, nbytes=1000)
    held = [numbers.hold(rows_of(one)) for one in (1, 2, 3)]
    assert held == [0, 1, None]
    for one in (0, 1):
        numbers.announce(one, 100)
    numbers.release(1)
    assert numbers.hold(rows_of(3)) == 1 and not numbers.known(1) and numbers.known(0)


def test_a_server_keeps_so_many_bytes_of_lists():
    numbers = RowNumbers(nbytes=24)
    for one in range(3):
        assert numbers.hold(rows_of(one)) == one
        numbers.announce(one, 100)
        numbers.release(one)
    assert numbers.hold(rows_of(7, 8)) == 3
    told = [numbers.announce(3, 100)[0] for _ in range(3)]
    assert sorted((one.aux, one.total) for one in told) == [(0, 0), (1, 0), (3, 16)]
    assert numbers.known(2) and numbers.known(3)


@dataclass
class Asked:
    """What one rank has asked for."""

    pushed: list[tuple[SentRows, np.ndarray, list[Outcome]]] = field(default_factory=list)
    reads: list[tuple[int, SentRows, np.ndarray, list[Outcome]]] = field(default_factory=list)
    """With how many contributions before each."""


RANKS, SCHEDULES, STEPS = 3, 200, 300


def play(seed: int) -> tuple[FakeTables, list[Asked]]:
    """Ranks push and read rows drawn from a few lists; links break, and the server forgets lists."""
    random = Random(seed)
    server = FakeTables(WIDTH)
    links = [Link(server, rank, segment=40, credit=random.choice([0, 100, 1000])) for rank in range(RANKS)]
    lists = [rows_of(*sorted(random.sample(range(20), random.randrange(6)))) for _ in range(8)]
    asked = [Asked() for _ in range(RANKS)]
    breaks = random.choice([0, 1, 5])
    for _ in range(STEPS):
        rank = random.randrange(RANKS)
        link, own = links[rank], asked[rank]
        (step,) = random.choices(["push", "fetch", "says", "arrives", "hears", "cut", "forget"],
                                 [8, 6, 40, 40, 40, breaks, breaks])  # fmt: skip
        if step in ("push", "fetch") and not link.opened:
            continue
        rows = random.choice(lists)
        if step == "push":
            values = np.full((len(rows), WIDTH), random.randrange(1000))
            own.pushed.append((rows, values, link.push(rows, values)))
        elif step == "fetch":
            own.reads.append((len(own.pushed), rows, *link.fetch(rows)))
        elif step == "forget":
            server.forget(rank)
        else:
            getattr(link, step)()
    for link in links:
        link.settle()
    return server, asked


def test_sums_are_exact_wherever_links_break_and_lists_are_forgotten():
    seen = 0
    for seed in range(SCHEDULES):
        try:
            server, asked = play(seed)
            check(server, asked)
        except (AssertionError, BytePSLikeError) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen += server.seen[FrameType.RESUME]
    assert seen > 50


def check(server: FakeTables, asked: list[Asked]) -> None:
    sums = np.zeros((20, WIDTH), np.int64)
    for own in asked:
        for rows, values, outcomes in own.pushed:
            assert len(outcomes) == 1
            sums[np.frombuffer(rows.ids, np.int64)] += values
        for before, rows, out, outcomes in own.reads:
            assert len(outcomes) == 1
            least = np.zeros((20, WIDTH), np.int64)
            for pushed, values, _ in own.pushed[:before]:
                least[np.frombuffer(pushed.ids, np.int64)] += values
            assert (out >= least[np.frombuffer(rows.ids, np.int64)]).all()
    for key, row in server.rows.items():
        assert (row == sums[key]).all()
    assert all((sums[key] == 0).all() for key in range(20) if key not in server.rows)
